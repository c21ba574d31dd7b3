// What the low-latency kernels must produce, in plain loops: no lane, no layout, no epoch.
#include <cmath>

#include "kernels/device/fp8.h"
#include "kernels/host/vector.h"
#include "kernels/low_latency/calls.h"
#include "kernels/low_latency/logfmt_reference.h"
#include "native/check.h"

namespace uccl::testing {
namespace {

u64 combine_key(const LowLatencyCase& c, u64 round, u32 expert, u32 source, u32 token) {
  return key_of(c.seed, 0xc0, round, expert, source, token);
}

bool valid(const LowLatencyCase& c, i64 expert) { return expert >= 0 && expert < static_cast<i64>(c.num_experts); }

struct Selection {
  u32 source, token, k;
};
// Rows of one expert in the order of the contract: source, then token; a token that repeats an expert counts once.
std::vector<Selection> selections(const std::vector<TokenInput>& inputs, u32 expert, const std::set<u32>& masked) {
  std::vector<Selection> found;
  for (u32 s = 0; s < inputs.size(); ++s) {
    if (masked.count(s)) continue;
    for (u32 t = 0; t < inputs[s].num_tokens; ++t)
      for (u32 k = 0; k < inputs[s].topk; ++k)
        if (inputs[s].topk_idx[t * inputs[s].topk + k] == static_cast<i64>(expert)) {
          found.push_back({s, t, k});
          break;
        }
  }
  return found;
}

// The e2m1 code nearest to a value, by search; of two as near, the even one.
u32 nearest_e2m1(float value) {
  static constexpr float kValues[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const float magnitude = std::fabs(value);
  u32 best = 0;
  for (u32 i = 1; i < 8; ++i) {
    const float nearer = std::fabs(kValues[best] - magnitude) - std::fabs(kValues[i] - magnitude);
    if (nearer > 0 || (nearer == 0 && i % 2 == 0)) best = i;
  }
  return best | (std::signbit(value) ? 8u : 0u);
}
void expected_nvfp4(const LowLatencyCase& c, const u16* x, u32 hidden, std::vector<u8>* payload,
                    std::vector<u32>* scales) {
  payload->assign(hidden / 2, 0);
  scales->assign(hidden / 64, 0);
  for (u32 g = 0; g < hidden / 16; ++g) {
    float amax = 0;
    for (u32 i = 0; i < 16; ++i) amax = std::max(amax, std::fabs(bf16_value(x[g * 16 + i])));
    const u32 code = simt::e4m3_software(c.global_scale * (amax * (1.0f / 6.0f)));
    const float stored = simt::e4m3_to_f(static_cast<u8>(code));
    const float scale = stored == 0 ? 0 : 1.0f / (stored * (1.0f / c.global_scale));
    (*scales)[g / 4] |= code << 8 * (g % 4);
    for (u32 i = 0; i < 16; ++i)
      (*payload)[g * 8 + i / 2] |= static_cast<u8>(nearest_e2m1(bf16_value(x[g * 16 + i]) * scale) << 4 * (i % 2));
  }
}
// Where a scale word of a row is, in an expert's own words: tensor cores' order for NVFP4, else column-major.
u64 scale_place(const LowLatencyCase& c, u64 rows, u64 row, u64 word, u64 words) {
  if (c.format != RowFormat::kNvfp4) return word * rows + row;
  return row / 128 * words * 128 + word * 128 + row % 128 % 32 * 4 + row % 128 / 32;
}

// One row as it is received: payload bytes, then scale words.
void expected_row(const LowLatencyCase& c, const u16* x, u32 hidden, std::vector<u8>* payload,
                  std::vector<u32>* scales) {
  if (c.format == RowFormat::kBf16) {
    payload->resize(2ull * hidden);
    std::memcpy(payload->data(), x, payload->size());
    return;
  }
  if (c.format == RowFormat::kNvfp4) return expected_nvfp4(c, x, hidden, payload, scales);
  const u32 groups = hidden / kScaleChannels;
  std::vector<float> inverse(groups);
  payload->resize(hidden);
  const bool round = c.round_scale || c.format == RowFormat::kFp8Ue8m0;
  simt::host::quantize_row(x, payload->data(), inverse.data(), hidden, round);
  scales->assign(c.format == RowFormat::kFp8 ? groups : ceil_div(groups, 4), 0);
  for (u32 g = 0; g < groups; ++g) {
    if (c.format == RowFormat::kFp8)
      (*scales)[g] = __builtin_bit_cast(u32, inverse[g]);
    else
      (*scales)[g / 4] |= simt::ue8m0(inverse[g]) << 8 * (g % 4);
  }
}

[[noreturn]] void differ(const std::string& what, u64 round, u32 me) {
  throw check::Failure("rank " + std::to_string(me) + ", round " + std::to_string(round) + ": " + what);
}

void choose_experts(const LowLatencyCase& c, u64 round, u64 key, u32 topk, i64* ids) {
  const u64 pattern = round % 7;
  for (u32 k = 0; k < topk; ++k) {
    const u64 r = mix(key + k);
    const i64 any = static_cast<i64>(r % c.num_experts);
    ids[k] = static_cast<i64>((mix(key) + k * (1 + round % 3)) % c.num_experts);  // mostly distinct
    if (pattern == 1) ids[k] = any;                                              // repeats
    if (pattern == 2) ids[k] = r % 3 == 0 ? -1 : any;
    if (pattern == 3) ids[k] = -1;                                               // nothing is routed
    if (pattern == 4) ids[k] = static_cast<i64>(mix(c.seed + round) % c.num_experts);  // one expert for all
    if (pattern == 5 && r % 2) ids[k] = r % 4 == 1 ? -7 : static_cast<i64>(c.num_experts + r % 9);
  }
}

}  // namespace

TokenInput low_latency_input(const World& world, const LowLatencyCase& c, u64 round, u32 rank) {
  const WorldShape& shape = world.shape();
  const u64 key = key_of(c.seed, 0xd1, round, rank);
  TokenInput in;
  const u64 wish = c.steady ? 2 : key % 4;
  in.num_tokens = wish == 0 ? 0 : wish == 1 ? shape.max_tokens : static_cast<u32>(mix(key) % (shape.max_tokens + 1));
  in.topk = static_cast<u32>(1 + mix(c.seed ^ round * 31) % shape.max_topk);
  if (c.steady) {
    in.num_tokens = static_cast<u32>(mix(key_of(c.seed, rank)) % (shape.max_tokens + 1));
    in.topk = shape.max_topk;
  }
  in.topk_idx.resize(u64{in.num_tokens} * in.topk);
  in.weights.resize(in.topk_idx.size());
  in.x.resize(u64{in.num_tokens} * shape.hidden);
  for (u32 t = 0; t < in.num_tokens; ++t) {
    choose_experts(c, round, key_of(key, t), in.topk, &in.topk_idx[u64{t} * in.topk]);
    fill_row(&in.x[u64{t} * shape.hidden], shape.hidden, key_of(key, t, 0x11));
  }
  for (u64 i = 0; i < in.weights.size(); ++i) in.weights[i] = static_cast<float>(mix(key ^ i << 20) % 1000) / 512.0f;
  return in;
}

void check_received(const World& world, const LowLatencyCase& c, u64 round, u32 me, const Received& got,
                    const std::set<u32>& masked) {
  const u32 ranks = world.num_ranks(), experts = c.num_experts / ranks, hidden = world.shape().hidden;
  const u64 stride = u64{ranks} * world.shape().max_tokens, plane = experts * stride;
  std::vector<TokenInput> inputs;
  for (u32 s = 0; s < ranks; ++s) inputs.push_back(low_latency_input(world, c, round, s));
  for (u32 e = 0; e < experts; ++e) {
    const auto rows = selections(inputs, me * experts + e, masked);
    const std::string where = "expert " + std::to_string(me * experts + e);
    if (got.count[e] != static_cast<i32>(rows.size()))
      differ(where + " has " + std::to_string(got.count[e]) + " rows, not " + std::to_string(rows.size()), round, me);
    std::vector<u64> per_source(ranks, 0);
    for (u64 i = 0; i < rows.size(); ++i) {
      const Selection& s = rows[i];
      ++per_source[s.source];
      const std::string row = where + " row " + std::to_string(i);
      const u64 at = e * stride + i;
      if (got.src_info[at] != static_cast<i32>(s.token) || got.src_info[2 * plane + at] != static_cast<i32>(s.source) ||
          got.src_info[plane + at] != static_cast<i32>(s.token * inputs[s.source].topk + s.k))
        differ(row + ": wrong source, token or slot", round, me);
      std::vector<u8> payload;
      std::vector<u32> scales;
      expected_row(c, &inputs[s.source].x[u64{s.token} * hidden], hidden, &payload, &scales);
      if (std::memcmp(got.x.data() + at * payload.size(), payload.data(), payload.size()) != 0)
        differ(row + ": payload differs", round, me);
      const u64 first = e * (got.scales.size() / experts);
      for (u64 w = 0; w < scales.size(); ++w)
        if (got.scales[first + scale_place(c, stride, i, w, scales.size())] != scales[w])
          differ(row + ": scale word " + std::to_string(w) + " differs", round, me);
    }
    u64 begin = 0;
    for (u32 s = 0; s < ranks; begin += per_source[s], ++s)
      if (got.layout_range[u64{e} * ranks + s] != static_cast<i64>(begin << 32 | per_source[s]))
        differ(where + ": layout range of source " + std::to_string(s), round, me);
    const u64 bytes = got.x.size() / plane;
    for (u64 i = (e * stride + rows.size()) * bytes; i < (e + 1) * stride * bytes; ++i)
      if (got.x[i] != kPoison) differ(where + ": a row beyond its count was written", round, me);
  }
}

void fill_combine_rows(const World& world, const LowLatencyCase& c, u64 round, const Received& from, u32 me, u16* x,
                       u32 row_stride) {
  const u32 ranks = world.num_ranks(), experts = c.num_experts / ranks;
  const u64 stride = u64{ranks} * world.shape().max_tokens, plane = experts * stride;
  for (u32 e = 0; e < experts; ++e)
    for (i32 i = 0; i < from.count[e]; ++i) {
      const u64 at = e * stride + static_cast<u64>(i);
      fill_row(x + at * row_stride, world.shape().hidden,
               combine_key(c, round, me * experts + e, static_cast<u32>(from.src_info[2 * plane + at]),
                           static_cast<u32>(from.src_info[at])));
    }
}

// What a row becomes on its way as fp8.
std::vector<float> fp8_round_trip(const std::vector<u16>& row) {
  std::vector<float> values(row.size());
  for (u64 first = 0; first < row.size(); first += kScaleGroup) {
    float amax = 0;
    for (u64 i = 0; i < kScaleGroup; ++i) amax = std::max(amax, std::fabs(bf16_value(row[first + i])));
    const Fp8Scale s = fp8_scale(amax, false);
    for (u64 i = first; i < first + kScaleGroup; ++i)
      values[i] = e4m3_to_f(static_cast<u8>(simt::e4m3_software(bf16_value(row[i]) * s.scale))) * s.scale_inv;
  }
  return values;
}

float e4m3_round_trip(float v) { return e4m3_to_f(static_cast<u8>(simt::e4m3_software(v))); }

float largest_of(const std::vector<u16>& row, u64 first, u64 count) {
  float amax = 0;
  for (u64 i = first; i < first + count; ++i) amax = std::max(amax, std::fabs(bf16_value(row[i])));
  return amax;
}

// As MXFP8, by a loop over powers of two in place of a float's bits.
std::vector<float> mxfp8_round_trip(const std::vector<u16>& row) {
  std::vector<float> values(row.size());
  for (u64 first = 0; first < row.size(); first += 32) {
    const float amax = largest_of(row, first, 32) * (1.f / 448.f);
    float scale = 0x1p-126f;
    while (scale < amax) scale *= 2;
    for (u64 i = first; i < first + 32; ++i) values[i] = e4m3_round_trip(bf16_value(row[i]) / scale) * scale;
  }
  return values;
}

// As NVFP4 with a float of the row's own.
std::vector<float> nvfp4_round_trip(const std::vector<u16>& row) {
  const float global = 2688.f / std::max(largest_of(row, 0, row.size()), 0x1p-100f), inverse = 1.f / global;
  std::vector<float> values(row.size());
  for (u64 first = 0; first < row.size(); first += 16) {
    const float code = e4m3_round_trip(global * (largest_of(row, first, 16) * (1.f / 6.f)));
    const float scale = code * inverse, multiplier = code == 0 ? 0.f : 1.f / scale;
    for (u64 i = first; i < first + 16; ++i)
      values[i] = simt::e2m1_to_f(simt::e2m1(bf16_value(row[i]) * multiplier)) * scale;
  }
  return values;
}

// What a row becomes on its way.
std::vector<float> round_trip(RowFormat format, const std::vector<u16>& row) {
  if (format == RowFormat::kLogfmt) return logfmt_round_trip(row);
  if (format == RowFormat::kFp8) return fp8_round_trip(row);
  if (format == RowFormat::kMxfp8) return mxfp8_round_trip(row);
  if (format == RowFormat::kNvfp4Row) return nvfp4_round_trip(row);
  std::vector<float> values(row.size());
  for (u64 i = 0; i < row.size(); ++i) values[i] = bf16_value(row[i]);
  return values;
}

// sum += weight * row, of one selection in a source's input.
void add_row(const World& world, const LowLatencyCase& c, RowFormat format, u64 round, const TokenInput& in,
             const Selection& s, std::vector<float>* sum) {
  const u32 hidden = world.shape().hidden;
  const u64 at = u64{s.token} * in.topk + s.k;
  const std::vector<u16> row =
      row_of(hidden, combine_key(c, round, static_cast<u32>(in.topk_idx[at]), s.source, s.token));
  const std::vector<float> values = round_trip(format, row);
  for (u32 h = 0; h < hidden; ++h) (*sum)[h] = std::fma(values[h], in.weights[at], (*sum)[h]);
}

void check_combined(const World& world, const LowLatencyCase& c, u64 round, u32 me, const Poisoned<u16>& got,
                    const std::set<u32>& masked) {
  const u32 hidden = world.shape().hidden, experts = c.num_experts / world.num_ranks();
  const TokenInput in = low_latency_input(world, c, round, me);
  for (u32 t = 0; t < in.num_tokens; ++t) {
    std::vector<float> sum(hidden, 0.0f);
    std::set<u32> summed;  // other nodes whose rows are in the sum, all of them at their lowest k
    for (u32 k = 0; k < in.topk; ++k) {
      const i64 e = in.topk_idx[t * in.topk + k];
      if (!valid(c, e) || masked.count(static_cast<u32>(e) / experts)) continue;
      const u32 node = world.shape().node_of[static_cast<u32>(e) / experts];
      if (!c.reduces || node == world.shape().node_of[me]) {
        add_row(world, c, c.back, round, in, {me, t, k}, &sum);
        continue;
      }
      if (!summed.insert(node).second) continue;
      std::vector<float> partial(hidden, 0.0f);
      for (u32 i = k; i < in.topk; ++i) {
        const i64 other = in.topk_idx[t * in.topk + i];
        if (valid(c, other) && world.shape().node_of[static_cast<u32>(other) / experts] == node)
          add_row(world, c, RowFormat::kBf16, round, in, {me, t, i}, &partial);
      }
      std::vector<u16> rounded(hidden);
      for (u32 h = 0; h < hidden; ++h) rounded[h] = simt::f_to_bf16(partial[h]);
      const std::vector<float> values = round_trip(c.back, rounded);
      for (u32 h = 0; h < hidden; ++h) sum[h] += values[h];
    }
    for (u32 h = 0; h < hidden; ++h)
      if (got[u64{t} * hidden + h] != simt::f_to_bf16(sum[h]))
        differ("combined token " + std::to_string(t) + " differs at channel " + std::to_string(h), round, me);
  }
  if (!got.untouched(u64{in.num_tokens} * hidden)) differ("combine wrote beyond its tokens", round, me);
}

u64 low_latency_round(World& world, LowLatencyRank& rank, const LowLatencyCase& c, u64 round, u32 me) {
  const TokenInput in = low_latency_input(world, c, round, me);
  Received got(world, c);
  rank.dispatch_send(in);
  rank.dispatch_recv(&got);
  check_no_fault(world, me, "dispatch");
  check_received(world, c, round, me, got);
  Poisoned<u16> x(c.zero_copy ? 0 : u64{c.num_experts} * world.shape().max_tokens * rank.row_stride());
  fill_combine_rows(world, c, round, got, me, c.zero_copy ? rank.zero_copy_rows() : x.data(), rank.row_stride());
  rank.combine_send(got, x.data(), &in);
  if (c.reduces) rank.combine_reduce();
  Poisoned<u16> out(u64{world.shape().max_tokens} * world.shape().hidden);
  rank.combine_recv(in, &out);
  check_no_fault(world, me, "combine");
  check_combined(world, c, round, me, out);
  u64 rows = in.num_tokens;
  for (u32 e = 0; e < c.num_experts / world.num_ranks(); ++e) rows += static_cast<u64>(got.count[e]);
  return rows;
}

void low_latency_rounds(const WorldShape& shape, const LowLatencyCase& c, u64 rounds) {
  World world(shape);
  world.run([&](u32 me) {
    LowLatencyRank rank(world, me, c);
    for (u64 round = 0; round < check::rounds(rounds); ++round) low_latency_round(world, rank, c, round, me);
  });
}

}  // namespace uccl::testing

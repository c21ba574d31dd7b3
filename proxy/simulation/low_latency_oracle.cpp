// The low-latency oracle.
#include "simulation/low_latency_oracle.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/device/fp8.h"
#include "kernels/host/vector.h"
#include "simulation/driver.h"

namespace uccl::simulation {
namespace {

[[noreturn]] void differ(const std::string& what, u64 round, u32 rank) {
  throw Violation("rank " + std::to_string(rank) + ", round " + std::to_string(round) + ": " + what);
}

void choose_experts(const Case& c, u64 round, u64 key, u32 topk, i64* ids) {
  const u64 pattern = key_of(c.seed, 0xe1, round) % 8;
  const u64 n = c.num_experts;
  for (u32 k = 0; k < topk; ++k) {
    const u64 r = mix(key + k);
    const i64 any = static_cast<i64>(r % n);
    ids[k] = static_cast<i64>((mix(key) + k * (1 + round % 3)) % n);                      // mostly distinct
    if (pattern == 1) ids[k] = any;                                                       // repeats
    if (pattern == 2) ids[k] = r % 3 == 0 ? -1 : any;
    if (pattern == 3) ids[k] = -1;                                                        // nothing is routed
    if (pattern == 4) ids[k] = static_cast<i64>(mix(c.seed + round) % n);                 // one expert for all
    if (pattern == 5 && r % 2) ids[k] = r % 4 == 1 ? -7 : static_cast<i64>(n + r % 9);    // out of range
  }
}

// One row as it is received: payload bytes, then scale words.
void expected_row(const Case& c, const u16* x, std::vector<u8>* payload, std::vector<u32>* scales) {
  const u32 hidden = c.world.hidden, groups = hidden / kScaleChannels;
  payload->resize(hidden);
  float inverse[64];
  simt::host::quantize_row(x, payload->data(), inverse, hidden, c.round_scale || c.format == RowFormat::kFp8Ue8m0);
  scales->assign(c.format == RowFormat::kFp8 ? groups : ceil_div(groups, 4), 0);
  for (u32 g = 0; g < groups; ++g) {
    if (c.format == RowFormat::kFp8)
      (*scales)[g] = __builtin_bit_cast(u32, inverse[g]);
    else
      (*scales)[g / 4] |= simt::ue8m0(inverse[g]) << 8 * (g % 4);
  }
}

}  // namespace

u64 LowLatencyOracle::combine_key(u64 round, u32 expert, u32 source, u32 token) const {
  return key_of(case_.seed, 0xc0, round, u64{expert} << 40 | u64{source} << 20 | token);
}

void LowLatencyOracle::draw(u64 round, u32 rank, LowLatencyInput* in) const {
  const WorldShape& w = case_.world;
  const u64 key = key_of(case_.seed, 0xd1, round, rank), wish = key % 4;
  in->num_tokens = wish == 0 ? 0 : wish == 1 ? w.max_tokens : static_cast<u32>(mix(key) % (w.max_tokens + 1));
  in->topk = static_cast<u32>(1 + mix(case_.seed ^ round * 31) % w.max_topk);
  in->topk_idx.resize(u64{in->num_tokens} * in->topk);
  in->weights.resize(in->topk_idx.size());
  in->x.resize(u64{in->num_tokens} * w.hidden);
  for (u32 t = 0; t < in->num_tokens; ++t) {
    choose_experts(case_, round, key_of(key, t), in->topk, &in->topk_idx[u64{t} * in->topk]);
    fill_row(&in->x[u64{t} * w.hidden], w.hidden, key_of(key, t, 0x11));
  }
  for (u64 i = 0; i < in->weights.size(); ++i) in->weights[i] = static_cast<float>(mix(key ^ i << 20) % 1000) / 512.0f;
}

const LowLatencyInput& LowLatencyOracle::input(u64 round, u32 rank) {
  if (inputs_.size() <= round) inputs_.resize(round + 1);
  if (inputs_[round].empty()) inputs_[round].resize(case_.world.num_ranks());
  auto& slot = inputs_[round][rank];
  if (!slot) {
    slot = std::make_unique<LowLatencyInput>();
    draw(round, rank, slot.get());
  }
  return *slot;
}

std::vector<LowLatencyOracle::Row> LowLatencyOracle::rows_of(u64 round, u32 expert, const Presences& from) {
  std::vector<Row> found;
  for (u32 s = 0; s < case_.world.num_ranks(); ++s) {
    if (presence_of(from, s) == Presence::kGone) continue;
    const LowLatencyInput& in = input(round, s);
    for (u32 t = 0; t < in.num_tokens; ++t)
      for (u32 k = 0; k < in.topk; ++k)
        if (in.topk_idx[u64{t} * in.topk + k] == static_cast<i64>(expert)) {
          found.push_back({s, t, k});
          break;
        }
  }
  return found;
}

void LowLatencyOracle::fill_combine_rows(u64 round, u32 rank, const Received& from, u16* x, u32 row_stride) const {
  const u32 ranks = case_.world.num_ranks(), experts = case_.num_experts / ranks;
  const u64 stride = u64{ranks} * case_.world.max_tokens, plane = experts * stride;
  for (u32 e = 0; e < experts; ++e)
    for (i32 i = 0; i < from.count[e]; ++i) {
      const u64 at = e * stride + static_cast<u64>(i);
      fill_row(x + at * row_stride, case_.world.hidden,
               combine_key(round, rank * experts + e, static_cast<u32>(from.src_info[2 * plane + at]),
                           static_cast<u32>(from.src_info[at])));
    }
}

std::vector<u16> LowLatencyOracle::combine_row(u64 round, u32 expert, u32 source, u32 token) const {
  std::vector<u16> row(case_.world.hidden);
  fill_row(row.data(), case_.world.hidden, combine_key(round, expert, source, token));
  return row;
}

u64 LowLatencyOracle::check_received(u64 round, u32 rank, const Received& got, Presences sources) {
  const u32 ranks = case_.world.num_ranks(), experts = case_.num_experts / ranks, hidden = case_.world.hidden;
  const u64 stride = u64{ranks} * case_.world.max_tokens, plane = experts * stride;
  const bool bf16 = case_.format == RowFormat::kBf16;
  const u64 row_bytes = got.x_bytes / plane;
  u64 checked = 0;
  std::vector<u8> payload;
  std::vector<u32> scales;
  std::vector<u64> from(ranks);
  for (u32 s = 0; s < sources.size(); ++s) {  // who was lost meanwhile has sent all of it or nothing
    u64 rows = 0;
    for (u32 e = 0; e < experts; ++e) rows |= static_cast<u64>(got.layout_range[u64{e} * ranks + s]);
    if (sources[s] == Presence::kEither) sources[s] = low_bits(32) & rows ? Presence::kHere : Presence::kGone;
  }
  for (u32 e = 0; e < experts; ++e) {
    const auto rows = rows_of(round, rank * experts + e, sources);
    const auto where = [&](u64 i) {
      return "expert " + std::to_string(rank * experts + e) + ", row " + std::to_string(i) + " (rank " +
             std::to_string(rows[i].source) + ", token " + std::to_string(rows[i].token) + ")";
    };
    if (got.count[e] != static_cast<i32>(rows.size()))
      differ("expert " + std::to_string(rank * experts + e) + " has " + std::to_string(got.count[e]) + " rows, not " +
                 std::to_string(rows.size()),
             round, rank);
    from.assign(ranks, 0);
    for (u64 i = 0; i < rows.size(); ++i) {
      const Row& s = rows[i];
      const LowLatencyInput& in = input(round, s.source);
      const u64 at = e * stride + i;
      ++from[s.source];
      if (got.src_info[at] != static_cast<i32>(s.token) || got.src_info[2 * plane + at] != static_cast<i32>(s.source) ||
          got.src_info[plane + at] != static_cast<i32>(s.token * in.topk + s.k))
        differ(where(i) + ": wrong source, token or slot", round, rank);
      const u16* x = &in.x[u64{s.token} * hidden];
      if (!bf16) expected_row(case_, x, &payload, &scales);
      if (std::memcmp(got.x + at * row_bytes, bf16 ? static_cast<const void*>(x) : payload.data(), row_bytes) != 0)
        differ(where(i) + ": payload differs", round, rank);
      for (u64 w = 0; w < scales.size(); ++w)
        if (got.scales[(e * scales.size() + w) * stride + i] != scales[w])
          differ(where(i) + ": scale word " + std::to_string(w) + " differs", round, rank);
    }
    u64 begin = 0;
    for (u32 s = 0; s < ranks; begin += from[s], ++s)
      if (got.layout_range[u64{e} * ranks + s] != static_cast<i64>(begin << 32 | from[s]))
        differ("layout range of source " + std::to_string(s), round, rank);
    for (u64 i = (e * stride + rows.size()) * row_bytes; i < (e + 1) * stride * row_bytes; ++i)
      if (got.x[i] != kPoison) differ("a row beyond the count was written", round, rank);
    checked += rows.size();
  }
  return checked;
}

std::vector<u16> LowLatencyOracle::combined_token(u64 round, u32 rank, u32 t, const Presences& owners) {
  const u32 hidden = case_.world.hidden, local = case_.num_experts / case_.world.num_ranks();
  const LowLatencyInput& in = input(round, rank);
  std::vector<u16> out(hidden), row(hidden);
  std::vector<float> sum(hidden);
  const auto gone = [&](i64 e) { return presence_of(owners, static_cast<u32>(e) / local) == Presence::kGone; };
  for (u32 k = 0; k < in.topk; ++k) {
    const i64 e = in.topk_idx[u64{t} * in.topk + k];
    if (e < 0 || e >= static_cast<i64>(case_.num_experts) || gone(e)) continue;
    fill_row(row.data(), hidden, combine_key(round, static_cast<u32>(e), rank, t));
    const float weight = in.weights[u64{t} * in.topk + k];
    for (u32 h = 0; h < hidden; ++h) sum[h] = std::fma(bf16_value(row[h]), weight, sum[h]);
  }
  for (u32 h = 0; h < hidden; ++h) out[h] = simt::f_to_bf16(sum[h]);
  return out;
}

std::vector<u16> LowLatencyOracle::combined(u64 round, u32 rank) {
  std::vector<u16> all;
  for (u32 t = 0; t < input(round, rank).num_tokens; ++t) {
    const std::vector<u16> one = combined_token(round, rank, t);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

u64 LowLatencyOracle::check_combined(u64 round, u32 rank, const Buffer<u16>& got, const Presences& owners) {
  const LowLatencyInput& in = input(round, rank);
  const u32 hidden = case_.world.hidden, local = case_.num_experts / case_.world.num_ranks();
  for (u32 t = 0; t < in.num_tokens; ++t) {
    const u16* const seen = got.data() + u64{t} * hidden;
    const i64* const chosen = in.topk_idx.data() + u64{t} * in.topk;
    const auto is_chosen = [&](u32 r) {
      return std::any_of(chosen, chosen + in.topk, [&](i64 e) { return e >= 0 && static_cast<u32>(e) / local == r; });
    };
    std::ptrdiff_t at = 0;
    const auto same = [&](const Presences& p) {
      const std::vector<u16> expected = combined_token(round, rank, t, p);
      at = std::mismatch(expected.begin(), expected.end(), seen).first - expected.begin();
      return at == std::ptrdiff_t{hidden};
    };
    if (!fits_some_loss(owners, is_chosen, same))
      differ("combined token " + std::to_string(t) + " differs at channel " + std::to_string(at), round, rank);
  }
  if (!got.untouched(u64{in.num_tokens} * hidden, got.size())) differ("combine wrote beyond its tokens", round, rank);
  return in.num_tokens;
}

}  // namespace uccl::simulation

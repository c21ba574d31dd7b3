// The throughput oracle: inputs and sums. Its checks are in throughput_checks.cpp.
#include "simulation/throughput_oracle.h"

#include <algorithm>

#include "kernels/device/fp8.h"

namespace uccl::simulation {
namespace {

float combine_weight(u64 key, u32 k) { return static_cast<float>(key + k * 977) / 1.7e16f; }
u64 bias_key(const Case& c, u64 round, u32 rank, u32 which, u32 token) {
  return key_of(c.seed, 0xb1, round, rank, u64{which} << 32 | token);
}

}  // namespace

RowShape dispatch_shape(const RoundPlan& plan, u32 topk) {
  RowShape s;
  s.payload_bytes = plan.hidden * 2;
  s.scale_bytes = plan.scale_words * 4;
  s.topk = topk;
  s.has_ids = s.has_weights = topk != 0;
  return s;
}

RowShape combine_shape(const RoundPlan& plan) {
  RowShape s;
  s.payload_bytes = plan.combine_hidden * 2;
  s.topk = plan.combine_topk;
  s.has_weights = plan.combine_topk != 0;
  return s;
}

RoundPlan ThroughputOracle::draw_plan(u64 round) const {
  const u64 r = key_of(case_.seed, 0x91, case_.same_geometry ? 0 : round), any = key_of(case_.seed, 0x92, round);
  RoundPlan p{};
  p.channels = 1 + static_cast<u32>(r % case_.max_channels);
  p.hidden = 8 * (1 + static_cast<u32>((r >> 8) % (case_.max_hidden / 8)));
  p.scale_words = (r >> 16) % 3 == 0 ? 1 + static_cast<u32>((r >> 20) % 5) : 0;
  p.topk = (r >> 24) % 5 == 0 ? 0 : case_.max_topk;
  p.combine_hidden = 8 * (1 + static_cast<u32>((r >> 32) % (case_.max_hidden / 8)));
  p.combine_topk = (r >> 40) % 3 == 0 ? 0 : 1 + static_cast<u32>((r >> 44) % case_.max_topk);
  p.alignment = 1 + static_cast<u32>(any % 4);
  p.worst = p.topk != 0 && (any >> 8) % 3 == 0;
  p.cached = (any >> 16) % 3 == 0;
  p.biases = static_cast<u32>((any >> 24) % 3);
  // Fewer channels where the memory is small, as Throughput._fit has it.
  const u64 largest = std::max(dispatch_shape(p, p.topk).bytes(), combine_shape(p).bytes());
  while (p.channels > 1 && StreamGeometry::make(case_.world.unit_bytes, p.channels, largest).num_slots == 0)
    --p.channels;
  return p;
}

ThroughputOracle::Round& ThroughputOracle::at(u64 round) {
  if (rounds_.size() <= round) rounds_.resize(round + 1);
  if (!rounds_[round]) {
    rounds_[round] = std::make_unique<Round>();
    rounds_[round]->plan = draw_plan(round);
    rounds_[round]->inputs.resize(case_.world.num_ranks());
    rounds_[round]->taken.resize(case_.world.num_ranks());
  }
  return *rounds_[round];
}

const RoundPlan& ThroughputOracle::plan(u64 round) { return at(round).plan; }

void ThroughputOracle::draw(u64 round, u32 rank, ThroughputInput* in) {
  const RoundPlan& p = plan(round);
  const u64 key = key_of(case_.seed, 0x93, round, rank), pattern = key_of(case_.seed, 0x94, round) % 7;
  const u32 ranks = case_.world.num_ranks();
  const i64 experts = case_.num_experts;
  in->num_tokens = key % 5 == 0   ? 0
                   : key % 5 == 1 ? case_.max_tokens
                                  : static_cast<u32>(mix(key) % (case_.max_tokens + 1));
  in->topk = case_.max_topk;
  in->topk_idx.resize(u64{in->num_tokens} * in->topk);
  in->topk_weights.resize(in->topk_idx.size());
  in->x.resize(u64{in->num_tokens} * p.hidden);
  in->scales.resize(u64{in->num_tokens} * p.scale_words);
  in->goes_to.assign(u64{in->num_tokens} * ranks, 0);
  const bool columns = round % 2 != 0;
  in->scale_token_stride = columns ? 1 : p.scale_words;
  in->scale_stride = columns ? in->num_tokens : 1;
  for (u64 i = 0; i < in->topk_idx.size(); ++i) {
    const u64 r = mix(key ^ i << 8);
    i64 e = static_cast<i64>(r % static_cast<u64>(experts));
    if (pattern == 1 && r % 3 != 0) e = -1;
    if (pattern == 2) e = -1;
    if (pattern == 3) e = static_cast<i64>(mix(case_.seed ^ round) % static_cast<u64>(experts));  // one expert for all
    if (pattern == 4 && r % 4 == 0) e = r % 8 == 0 ? -9 : experts + static_cast<i64>(r % 5);
    in->topk_idx[i] = e;
    in->topk_weights[i] = static_cast<float>(r % 4096) / 512.0f;
    if (e >= 0 && e < experts) in->goes_to[i / in->topk * ranks + static_cast<u32>(e) / local_experts()] = 1;
  }
  for (u32 t = 0; t < in->num_tokens; ++t) fill_row(&in->x[u64{t} * p.hidden], p.hidden, key_of(key, t));
  for (u64 i = 0; i < in->scales.size(); ++i) in->scales[i] = static_cast<u32>(mix(key + i));
}

const ThroughputInput& ThroughputOracle::input(u64 round, u32 rank) {
  auto& slot = at(round).inputs[rank];
  if (!slot) {
    slot = std::make_unique<ThroughputInput>();
    draw(round, rank, slot.get());
  }
  return *slot;
}

const std::vector<Taken>& ThroughputOracle::taken(u64 round, u32 rank) {
  auto& slot = at(round).taken[rank];
  if (!slot) {
    slot = std::make_unique<std::vector<Taken>>();
    const u32 ranks = case_.world.num_ranks();
    for (u32 s = 0; s < ranks; ++s) {
      const ThroughputInput& in = input(round, s);
      for (u32 t = 0; t < in.num_tokens; ++t)
        if (in.goes_to[u64{t} * ranks + rank]) slot->push_back({s, t});
    }
  }
  return *slot;
}

u64 ThroughputOracle::combine_key(u64 round, u32 holder, u32 source, u32 token) const {
  return key_of(case_.seed, 0xcc, round, u64{holder} << 40 | u64{source} << 20 | token);
}

ThroughputOracle::CombineInput ThroughputOracle::combine_input(u64 round, u32 rank) {
  const RoundPlan& p = plan(round);
  const auto& rows = taken(round, rank);
  CombineInput in;
  in.x.resize(rows.size() * p.combine_hidden);
  in.weights.resize(rows.size() * p.combine_topk);
  for (u64 i = 0; i < rows.size(); ++i) {
    const u64 key = combine_key(round, rank, rows[i].source, rows[i].token);
    fill_row(&in.x[i * p.combine_hidden], p.combine_hidden, key);
    for (u32 k = 0; k < p.combine_topk; ++k) in.weights[i * p.combine_topk + k] = combine_weight(key, k);
  }
  for (u32 b = 0; b < p.biases; ++b)
    for (u32 t = 0; t < input(round, rank).num_tokens; ++t) {
      std::vector<u16>& all = in.bias[b];
      all.resize(all.size() + p.combine_hidden);
      fill_row(&all[u64{t} * p.combine_hidden], p.combine_hidden, bias_key(case_, round, rank, b, t));
    }
  return in;
}

// One node: one fp32 sum of bias and rows by rank. Several: the rows of each cell rounded to bf16, then added by cell;
// the own node is one, under the own cell's number.
ThroughputOracle::Combined ThroughputOracle::combined_token(u64 round, u32 rank, u32 t, const Presences& from) {
  const RoundPlan& p = plan(round);
  const ThroughputInput& in = input(round, rank);
  const WorldShape& w = case_.world;
  const u32 hidden = p.combine_hidden, ranks = w.num_ranks();
  const bool one_node = w.num_nodes() == 1;
  Combined out;
  out.x.resize(hidden);
  out.weights.assign(p.combine_topk, 0.0f);
  std::vector<float> sum(hidden), of_cell(hidden), cell_weights(p.combine_topk);
  std::vector<u16> row(hidden);
  for (u32 b = 0; b < p.biases; ++b) {
    fill_row(row.data(), hidden, bias_key(case_, round, rank, b, t));
    for (u32 h = 0; h < hidden; ++h) sum[h] += bf16_value(row[h]);
  }
  for (u32 n = 0; n < w.num_cells(); ++n) {
    std::fill(of_cell.begin(), of_cell.end(), 0.0f);
    std::fill(cell_weights.begin(), cell_weights.end(), 0.0f);
    bool any = false;
    for (u32 r = 0; r < ranks; ++r) {
      const bool local = w.node_of[r] == w.node_of[rank];
      if ((local ? w.cells()[rank] : w.cells()[r]) != n || !in.goes_to[u64{t} * ranks + r]) continue;
      if (presence_of(from, r) == Presence::kGone) continue;
      any = true;
      const u64 key = combine_key(round, r, rank, t);
      fill_row(row.data(), hidden, key);
      std::vector<float>& to = one_node ? sum : of_cell;
      for (u32 h = 0; h < hidden; ++h) to[h] += bf16_value(row[h]);
      for (u32 k = 0; k < p.combine_topk; ++k) cell_weights[k] += combine_weight(key, k);
    }
    for (u32 k = 0; k < p.combine_topk; ++k) out.weights[k] += cell_weights[k];
    for (u32 h = 0; !one_node && any && h < hidden; ++h) sum[h] += bf16_value(simt::f_to_bf16(of_cell[h]));
  }
  for (u32 h = 0; h < hidden; ++h) out.x[h] = simt::f_to_bf16(sum[h]);
  return out;
}

ThroughputOracle::Combined ThroughputOracle::combined(u64 round, u32 rank) {
  Combined all;
  for (u32 t = 0; t < input(round, rank).num_tokens; ++t) {
    const Combined one = combined_token(round, rank, t);
    all.x.insert(all.x.end(), one.x.begin(), one.x.end());
    all.weights.insert(all.weights.end(), one.weights.begin(), one.weights.end());
  }
  return all;
}

}  // namespace uccl::simulation

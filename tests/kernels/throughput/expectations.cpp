// What the throughput kernels must produce, in plain loops: no channel, no chunk, no ring.
#include <algorithm>
#include <string>

#include "kernels/device/simt.h"
#include "kernels/throughput/calls.h"
#include "native/check.h"

namespace uccl::testing {
namespace {

[[noreturn]] void differ(const std::string& what, u64 round, u32 me) {
  throw check::Failure("rank " + std::to_string(me) + ", round " + std::to_string(round) + ": " + what);
}
void same(u64 got, u64 expected, const std::string& what, u64 round, u32 me) {
  if (got != expected) differ(what + " is " + std::to_string(got) + ", not " + std::to_string(expected), round, me);
}

std::vector<RankInput> all_inputs(const World& w, const ThroughputCase& c, u64 round) {
  std::vector<RankInput> in;
  for (u32 r = 0; r < w.num_ranks(); ++r) in.push_back(throughput_input(w, c, round, r));
  return in;
}

u64 combine_key(const ThroughputCase& c, u64 round, u32 holder, u32 source, u32 token) {
  return key_of(c.seed, 0xcc, round, holder, source, token);
}
float combine_weight(const ThroughputCase& c, u64 round, const Taken& row, u32 holder, u32 k) {
  return static_cast<float>(combine_key(c, round, holder, row.source, row.token) + k * 977) / 1.7e16f;
}
u64 bias_key(const ThroughputCase& c, u64 round, u32 rank, u32 which) {
  return key_of(c.seed, 0xb1, round, rank, which);
}

}  // namespace

bool RankInput::goes_to(u32 token, u32 rank, u32 num_local_experts, u32 num_experts) const {
  for (u32 k = 0; k < topk; ++k) {
    const i64 e = topk_idx[u64{token} * topk + k];
    if (e >= 0 && e < static_cast<i64>(num_experts) && static_cast<u32>(e) / num_local_experts == rank) return true;
  }
  return false;
}

RoundPlan round_plan(const World& w, const ThroughputCase& c, u64 round) {
  const u64 r = key_of(c.seed, 0x91, c.same_geometry || c.steady ? 0 : round);
  const u64 any = key_of(c.seed, 0x92, c.steady ? 0 : round);
  RoundPlan p{};
  p.channels = 1 + static_cast<u32>(r % c.max_channels);
  p.hidden = 8 * (1 + static_cast<u32>((r >> 8) % (c.max_hidden / 8)));
  p.scale_words = (r >> 16) % 3 == 0 ? 1 + static_cast<u32>((r >> 20) % 5) : 0;
  p.topk = (r >> 24) % 5 == 0 ? 0 : c.max_topk;
  p.combine_hidden = 8 * (1 + static_cast<u32>((r >> 32) % (c.max_hidden / 8)));
  p.combine_topk = (r >> 40) % 3 == 0 ? 0 : 1 + static_cast<u32>((r >> 44) % c.max_topk);
  p.alignment = 1 + static_cast<u32>(any % 4);
  p.worst = p.topk != 0 && (any >> 8) % 3 == 0;
  p.cached = (any >> 16) % 3 == 0;
  p.biases = static_cast<u32>((any >> 24) % 3);
  if (c.steady) {
    p.topk = c.max_topk;
    p.worst = true;
    p.biases = 2;
  }
  // Fewer channels where the memory is small, as Throughput._fit has it.
  const u64 largest =
      std::max(dispatch_shape(p, p.topk).bytes(), RowShape{p.combine_hidden * 2, 0, c.max_topk, 0, 1}.bytes());
  while (p.channels > 1 && StreamGeometry::make(w.throughput.unit_bytes, p.channels, largest).num_slots == 0)
    --p.channels;
  return p;
}

RankInput throughput_input(const World& w, const ThroughputCase& c, u64 round, u32 rank) {
  const RoundPlan plan = round_plan(w, c, round);
  const u64 key = key_of(c.seed, 0x93, round, rank);
  RankInput in;
  in.num_tokens = key % 5 == 0 ? 0 : key % 5 == 1 ? c.max_tokens : static_cast<u32>(mix(key) % (c.max_tokens + 1));
  if (c.steady) in.num_tokens = static_cast<u32>(mix(key_of(c.seed, rank)) % (c.max_tokens + 1));
  in.topk = c.max_topk;
  in.topk_idx.resize(u64{in.num_tokens} * in.topk);
  in.topk_weights.resize(in.topk_idx.size());
  in.x.resize(u64{in.num_tokens} * plan.hidden);
  in.scales.resize(u64{in.num_tokens} * plan.scale_words);
  const bool columns = !c.steady && round % 2 != 0;
  in.scale_token_stride = columns ? 1 : plan.scale_words;
  in.scale_stride = columns ? in.num_tokens : 1;
  for (u64 i = 0; i < in.topk_idx.size(); ++i) {
    const u64 r = mix(key ^ i << 8), pattern = round % 6;
    in.topk_idx[i] = static_cast<i64>(r % c.num_experts);
    if (pattern == 1 && r % 3 != 0) in.topk_idx[i] = -1;
    if (pattern == 2) in.topk_idx[i] = -1;
    if (pattern == 3) in.topk_idx[i] = static_cast<i64>(mix(c.seed ^ round) % c.num_experts);  // one expert for all
    if (pattern == 4 && r % 4 == 0) in.topk_idx[i] = r % 8 == 0 ? -9 : static_cast<i64>(c.num_experts + r % 5);
    in.topk_weights[i] = static_cast<float>(r % 4096) / 512.0f;
  }
  for (u32 t = 0; t < in.num_tokens; ++t) fill_row(&in.x[u64{t} * plan.hidden], plan.hidden, key_of(key, t));
  for (u64 i = 0; i < in.scales.size(); ++i) in.scales[i] = static_cast<u32>(mix(key + i));
  return in;
}

std::vector<Taken> taken_rows(const World& w, const ThroughputCase& c, u64 round, u32 me) {
  std::vector<Taken> rows;
  const auto inputs = all_inputs(w, c, round);
  for (u32 s = 0; s < w.num_ranks(); ++s)
    for (u32 t = 0; t < inputs[s].num_tokens; ++t)
      if (inputs[s].goes_to(t, me, c.num_experts / w.num_ranks(), c.num_experts)) rows.push_back({s, t});
  return rows;
}

void check_layout(const World& w, const ThroughputCase& c, u64 round, u32 me, const Routing& got) {
  const RankInput in = throughput_input(w, c, round, me);
  const u32 ranks = w.num_ranks(), local = c.num_experts / ranks;
  std::vector<u64> per_rank(ranks), per_node(w.num_nodes), per_expert(c.num_experts);
  for (u32 t = 0; t < in.num_tokens; ++t) {
    std::vector<bool> nodes(w.num_nodes);
    for (u32 r = 0; r < ranks; ++r) {
      const bool goes = in.goes_to(t, r, local, c.num_experts);
      same(got.is_token_in_rank[u64{t} * ranks + r], goes, "is_token_in_rank of token " + std::to_string(t), round, me);
      per_rank[r] += goes;
      if (goes) nodes[w.shape().node_of[r]] = true;
    }
    for (u32 n = 0; n < w.num_nodes; ++n) per_node[n] += nodes[n];
    for (u32 k = 0; k < in.topk; ++k) {
      const i64 e = in.topk_idx[u64{t} * in.topk + k];
      if (e >= 0 && e < static_cast<i64>(c.num_experts)) ++per_expert[static_cast<u64>(e)];
    }
  }
  for (u32 r = 0; r < ranks; ++r) same(got.tokens_per_rank[r], per_rank[r], "tokens per rank", round, me);
  for (u32 e = 0; e < c.num_experts; ++e) same(got.tokens_per_expert[e], per_expert[e], "tokens per expert", round, me);
  for (u32 n = 0; n < w.num_nodes; ++n)
    same(got.tokens_per_node[n], w.num_nodes == 1 ? 0 : per_node[n], "tokens per node", round, me);
}

void check_counts(const World& w, const ThroughputCase& c, u64 round, u32 me, const Routing& got) {
  const auto inputs = all_inputs(w, c, round);
  const auto rows = taken_rows(w, c, round, me);
  const u32 ranks = w.num_ranks(), local = c.num_experts / ranks;
  same(got.recv_total[0], rows.size(), "recv_total", round, me);
  u64 begin = 0;
  for (u32 s = 0; s < ranks; ++s) {
    const u64 from_s =
        static_cast<u64>(std::count_if(rows.begin(), rows.end(), [&](Taken t) { return t.source == s; }));
    u64 sum = 0;
    for (u32 ch = 0; ch < got.channels; ++ch) {
      same(got.recv_begin[s * got.channels + ch], begin + sum, "recv_begin", round, me);
      sum += got.recv_tokens[s * got.channels + ch];
    }
    same(sum, from_s, "rows from rank " + std::to_string(s), round, me);
    begin += from_s;
    if (w.num_nodes > 1) same(got.rank_prefix[s], begin, "rank_prefix", round, me);
    u64 to_s = 0;
    for (u32 t = 0; t < inputs[me].num_tokens; ++t) to_s += inputs[me].goes_to(t, s, local, c.num_experts);
    same(got.channel_prefix[(s + 1) * got.channels - 1], to_s, "channel_prefix", round, me);
  }
  for (u32 r = 0; w.num_nodes == 1 && r < ranks; ++r) {
    const auto theirs = taken_rows(w, c, round, r);
    for (u32 s = 0; s < ranks; ++s)
      same(got.rank_prefix[s * ranks + r],
           static_cast<u64>(std::count_if(theirs.begin(), theirs.end(), [&](Taken t) { return t.source <= s; })),
           "rank_prefix matrix", round, me);
  }
  const u32 alignment = round_plan(w, c, round).alignment;
  for (u32 e = 0; e < local; ++e) {
    u64 n = 0;
    for (const RankInput& in : inputs)
      n += static_cast<u64>(std::count(in.topk_idx.begin(), in.topk_idx.end(), static_cast<i64>(me * local + e)));
    same(got.expert_counts[e], align_up(n, alignment), "rows of expert " + std::to_string(e), round, me);
  }
}

void check_dispatched(const World& w, const ThroughputCase& c, u64 round, u32 me, const Dispatched& got, u32 topk) {
  const RoundPlan plan = round_plan(w, c, round);
  const auto inputs = all_inputs(w, c, round);
  const auto rows = taken_rows(w, c, round, me);
  const i64 local = c.num_experts / w.num_ranks(), first = me * local;
  for (u64 i = 0; i < rows.size(); ++i) {
    const RankInput& in = inputs[rows[i].source];
    const u32 t = rows[i].token;
    const std::string what =
        "row " + std::to_string(i) + " (rank " + std::to_string(rows[i].source) + ", token " + std::to_string(t) + ")";
    same(static_cast<u64>(got.src_idx[i]), t, what + ": token", round, me);
    if (std::memcmp(got.x.data() + i * plan.hidden, &in.x[u64{t} * plan.hidden], 2ull * plan.hidden) != 0)
      differ(what + ": payload differs", round, me);
    for (u32 s = 0; s < plan.scale_words; ++s)
      same(got.scales[i * plan.scale_words + s],
           in.scales[static_cast<u64>(t * in.scale_token_stride + s * in.scale_stride)], what + ": scale", round, me);
    for (u32 k = 0; k < topk; ++k) {
      const i64 e = in.topk_idx[u64{t} * in.topk + k] - first;
      const bool here = e >= 0 && e < local;
      if (got.topk_idx[i * topk + k] != (here ? e : -1)) differ(what + ": expert " + std::to_string(k), round, me);
      if (got.topk_weights[i * topk + k] != (here ? in.topk_weights[u64{t} * in.topk + k] : 0.0f))
        differ(what + ": weight " + std::to_string(k), round, me);
    }
  }
  for (u64 i = rows.size() * topk; plan.worst && topk != 0 && i < got.topk_idx.size(); ++i)
    if (got.topk_idx[i] != -1) differ("a row beyond the count is not marked", round, me);
  if (!got.x.untouched(rows.size() * plan.hidden) || !got.src_idx.untouched(rows.size()))
    differ("a row beyond the count was written", round, me);
}

CombineInput::CombineInput(const World& w, const ThroughputCase& c, u64 round, u32 me) {
  const RoundPlan plan = round_plan(w, c, round);
  const auto rows = taken_rows(w, c, round, me);
  x.resize(rows.size() * plan.combine_hidden);
  weights.resize(rows.size() * plan.combine_topk);
  for (u64 i = 0; i < rows.size(); ++i) {
    fill_row(&x[i * plan.combine_hidden], plan.combine_hidden,
             combine_key(c, round, me, rows[i].source, rows[i].token));
    for (u32 k = 0; k < plan.combine_topk; ++k)
      weights[i * plan.combine_topk + k] = combine_weight(c, round, rows[i], me, k);
  }
  const u64 own = u64{throughput_input(w, c, round, me).num_tokens} * plan.combine_hidden;
  for (u32 b = 0; b < plan.biases; ++b) {
    bias[b].resize(own);
    fill_row(bias[b].data(), static_cast<u32>(own), bias_key(c, round, me, b));
  }
}

void check_combined(const World& w, const ThroughputCase& c, u64 round, u32 me, const Poisoned<u16>& got,
                    const Poisoned<float>& got_weights) {
  const RoundPlan plan = round_plan(w, c, round);
  const RankInput in = throughput_input(w, c, round, me);
  const CombineInput own(w, c, round, me);
  const u32 hidden = plan.combine_hidden, ranks = w.num_ranks();
  for (u32 t = 0; t < in.num_tokens; ++t) {
    std::vector<float> sum(hidden, 0.0f), weights(plan.combine_topk, 0.0f);
    for (u32 b = 0; b < plan.biases; ++b)
      for (u32 h = 0; h < hidden; ++h) sum[h] += bf16_value(own.bias[b][u64{t} * hidden + h]);
    const std::vector<u32>& node_of = w.shape().node_of;
    const auto in_cell = [&](u32 r, u32 n) {  // this rank's own cell stands for its node
      if (!w.shape().apart || w.num_nodes == 1) return node_of[r] == n;
      return n == me ? node_of[r] == node_of[me] : r == n && node_of[r] != node_of[me];
    };
    for (u32 n = 0; n < w.num_cells; ++n) {
      std::vector<float> of_node(hidden, 0.0f), node_weights(plan.combine_topk, 0.0f);
      bool any = false;
      for (u32 r = 0; r < ranks; ++r) {
        if (!in_cell(r, n) || !in.goes_to(t, r, c.num_experts / ranks, c.num_experts)) continue;
        any = true;
        const std::vector<u16> row = row_of(hidden, combine_key(c, round, r, me, t));
        for (u32 h = 0; h < hidden; ++h) (w.num_nodes == 1 ? sum : of_node)[h] += bf16_value(row[h]);
        for (u32 k = 0; k < plan.combine_topk; ++k) node_weights[k] += combine_weight(c, round, {me, t}, r, k);
      }
      for (u32 k = 0; k < plan.combine_topk; ++k) weights[k] += node_weights[k];
      for (u32 h = 0; w.num_nodes > 1 && any && h < hidden; ++h) sum[h] += bf16_value(simt::f_to_bf16(of_node[h]));
    }
    for (u32 h = 0; h < hidden; ++h)
      if (got[u64{t} * hidden + h] != simt::f_to_bf16(sum[h]))
        differ("combined token " + std::to_string(t) + " differs at channel " + std::to_string(h), round, me);
    for (u32 k = 0; k < plan.combine_topk; ++k)
      if (got_weights[u64{t} * plan.combine_topk + k] != weights[k])
        differ("combined weight " + std::to_string(k) + " of token " + std::to_string(t) + " differs", round, me);
  }
}

}  // namespace uccl::testing

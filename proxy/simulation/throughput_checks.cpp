// What the throughput kernels left, against the oracle.
#include <algorithm>
#include <string>

#include "simulation/driver.h"
#include "simulation/throughput_oracle.h"

namespace uccl::simulation {
namespace {

[[noreturn]] void differ(const std::string& what, u64 round, u32 rank) {
  throw Violation("rank " + std::to_string(rank) + ", round " + std::to_string(round) + ": " + what);
}
void same(u64 got, u64 expected, const char* what, u64 round, u32 rank) {
  if (got != expected)
    differ(std::string(what) + " is " + std::to_string(got) + ", not " + std::to_string(expected), round, rank);
}

}  // namespace

void ThroughputOracle::check_layout(u64 round, u32 me, const LayoutGot& got, const std::vector<u8>& left_out) {
  const ThroughputInput& in = input(round, me);
  const u32 ranks = case_.world.num_ranks(), nodes = case_.world.num_nodes();
  std::vector<u64> of_rank(ranks), of_node(nodes), of_expert(case_.num_experts);
  std::vector<u8> seen(nodes);
  const auto out = [&left_out](u64 rank) { return !left_out.empty() && left_out[rank] != 0; };
  for (u32 t = 0; t < in.num_tokens; ++t) {
    std::fill(seen.begin(), seen.end(), 0);
    for (u32 r = 0; r < ranks; ++r) {
      const u8 goes = in.goes_to[u64{t} * ranks + r] && !out(r);
      same(got.is_token_in_rank[u64{t} * ranks + r], goes, "is_token_in_rank", round, me);
      of_rank[r] += goes;
      if (goes) seen[case_.world.node_of[r]] = 1;
    }
    for (u32 n = 0; n < nodes; ++n) of_node[n] += seen[n];
  }
  for (const i64 e : in.topk_idx)
    if (e >= 0 && e < static_cast<i64>(case_.num_experts) && !out(static_cast<u64>(e) / local_experts()))
      ++of_expert[static_cast<u64>(e)];
  for (u32 r = 0; r < ranks; ++r) same(got.per_rank[r], of_rank[r], "tokens per rank", round, me);
  for (u32 e = 0; e < case_.num_experts; ++e) same(got.per_expert[e], of_expert[e], "tokens per expert", round, me);
  for (u32 n = 0; nodes > 1 && n < nodes; ++n) same(got.per_node[n], of_node[n], "tokens per node", round, me);
}

void ThroughputOracle::check_counts(u64 round, u32 me, const CountsGot& got, const std::vector<u8>& left_out,
                                    Presences sources) {
  const u32 ranks = case_.world.num_ranks(), local = local_experts(), channels = got.channels;
  for (u32 s = 0; s < sources.size(); ++s) {  // who was lost meanwhile has sent all of its counts or none
    u64 sum = 0;
    for (u32 c = 0; c < channels; ++c) sum += got.recv_tokens[s * channels + c];
    if (sources[s] == Presence::kEither) sources[s] = sum != 0 ? Presence::kHere : Presence::kGone;
  }
  std::vector<Taken> rows;
  for (const Taken& t : taken(round, me))
    if (presence_of(sources, t.source) == Presence::kHere) rows.push_back(t);
  *at(round).taken[me] = rows;
  const ThroughputInput& own = input(round, me);
  same(got.recv_total, rows.size(), "recv_total", round, me);
  std::vector<u64> from(ranks), selections(local);
  for (const Taken& t : rows) ++from[t.source];
  u64 begin = 0;
  for (u32 s = 0; s < ranks; ++s) {
    u64 sum = 0, to = 0;
    for (u32 c = 0; c < channels; ++c) {
      same(got.recv_begin[s * channels + c], begin + sum, "recv_begin", round, me);
      sum += got.recv_tokens[s * channels + c];
    }
    same(sum, from[s], "rows from a rank", round, me);
    begin += sum;
    if (case_.world.num_nodes() > 1) same(got.rank_prefix[s], begin, "rank_prefix", round, me);
    for (u32 t = 0; t < own.num_tokens && (left_out.empty() || left_out[s] == 0); ++t)
      to += own.goes_to[u64{t} * ranks + s];
    same(got.channel_prefix[(s + 1) * channels - 1], to, "channel_prefix", round, me);
    if (presence_of(sources, s) == Presence::kGone) continue;
    for (const i64 e : input(round, s).topk_idx)
      if (e >= static_cast<i64>(me * local) && e < static_cast<i64>((me + 1) * local))
        ++selections[static_cast<u64>(e) - me * local];
  }
  // Of a rank that was lost, counts that name nobody here may have come too.
  for (u32 e = 0; e < local; ++e)
    same(got.expert_counts[e], align_up(selections[e], plan(round).alignment), "rows of an expert", round, me);
}

// A row of a source that was left out before it came: zeros that name no expert and no token.
bool ThroughputOracle::is_owed(u64 round, const DispatchGot& got, u64 at) {
  const RoundPlan& p = plan(round);
  const auto zero = [](const auto* v, u64 n) { return std::all_of(v, v + n, [](auto one) { return one == 0; }); };
  const i64* const ids = got.topk_idx.data() + at * got.topk;
  return got.src_idx[at] == -1 && zero(got.x.data() + at * p.hidden, p.hidden) &&
         zero(got.scales.data() + at * p.scale_words, p.scale_words) &&
         std::all_of(ids, ids + got.topk, [](i64 e) { return e == -1; }) &&
         zero(got.topk_weights.data() + at * got.topk, got.topk);
}

void ThroughputOracle::check_row(u64 round, u32 me, const DispatchGot& got, u64 at) {
  const RoundPlan& p = plan(round);
  const Taken& row = taken(round, me)[at];
  const ThroughputInput& in = input(round, row.source);
  const u32 t = row.token, topk = got.topk;
  const i64 local = local_experts(), first = me * local;
  const auto where = [&](const std::string& what) {
    return "row " + std::to_string(at) + " (rank " + std::to_string(row.source) + ", token " + std::to_string(t) +
           "): " + what;
  };
  if (got.src_idx[at] != static_cast<i32>(t)) differ(where("is token " + std::to_string(got.src_idx[at])), round, me);
  if (std::memcmp(got.x.data() + at * p.hidden, &in.x[u64{t} * p.hidden], 2ull * p.hidden) != 0)
    differ(where("payload differs"), round, me);
  for (u32 s = 0; s < p.scale_words; ++s)
    if (got.scales[at * p.scale_words + s] !=
        in.scales[static_cast<u64>(t * in.scale_token_stride + s * in.scale_stride)])
      differ(where("scale " + std::to_string(s) + " differs"), round, me);
  for (u32 k = 0; k < topk; ++k) {
    const i64 e = in.topk_idx[u64{t} * in.topk + k] - first;
    const bool here = e >= 0 && e < local;
    if (got.topk_idx[at * topk + k] != (here ? e : -1)) differ(where("an expert differs"), round, me);
    if (got.topk_weights[at * topk + k] != (here ? in.topk_weights[u64{t} * in.topk + k] : 0.0f))
      differ(where("a weight differs"), round, me);
  }
}

u64 ThroughputOracle::check_dispatched(u64 round, u32 me, const DispatchGot& got, const Presences& from) {
  const RoundPlan& p = plan(round);
  const auto& rows = taken(round, me);
  const u32 topk = got.topk;
  u32 stopped_source = ~0u, stopped_channel = 0;  // what is owed is the end of a source's channel
  for (u64 i = 0; i < rows.size(); ++i) {
    const Presence presence = presence_of(from, rows[i].source);
    const u32 share = static_cast<u32>(ceil_div(input(round, rows[i].source).num_tokens, p.channels));
    const u32 channel = rows[i].token / share;
    const bool stopped = stopped_source == rows[i].source && stopped_channel == channel;
    if (presence == Presence::kGone || (presence == Presence::kEither && (stopped || is_owed(round, got, i)))) {
      if (!is_owed(round, got, i)) differ("row " + std::to_string(i) + " of a rank that is left out", round, me);
      stopped_source = rows[i].source;
      stopped_channel = channel;
    } else {
      check_row(round, me, got, i);
    }
  }
  for (u64 i = rows.size() * topk; p.worst && i < got.topk_idx.size(); ++i)
    if (got.topk_idx[i] != -1) differ("a row beyond the count is not marked", round, me);
  if (!got.x.untouched(rows.size() * p.hidden, got.x.size()) || !got.src_idx.untouched(rows.size(), got.src_idx.size()))
    differ("a row beyond the count was written", round, me);
  return rows.size();
}

u64 ThroughputOracle::check_combined(u64 round, u32 me, const Buffer<u16>& got, const Buffer<float>& got_weights,
                                     const Presences& from) {
  const u32 hidden = plan(round).combine_hidden, topk = plan(round).combine_topk, tokens = input(round, me).num_tokens;
  const u8* const goes_to = input(round, me).goes_to.data();
  for (u32 t = 0; t < tokens; ++t) {
    const u16* const x = got.data() + u64{t} * hidden;
    const float* const weights = got_weights.data() + u64{t} * topk;
    std::ptrdiff_t at = 0;
    const auto same = [&](const Presences& p) {
      const Combined expected = combined_token(round, me, t, p);
      at = std::mismatch(expected.x.begin(), expected.x.end(), x).first - expected.x.begin();
      return at == std::ptrdiff_t{hidden} && std::equal(expected.weights.begin(), expected.weights.end(), weights);
    };
    const auto is_sent = [&](u32 r) { return goes_to[u64{t} * case_.world.num_ranks() + r] != 0; };
    if (!fits_some_loss(from, is_sent, same))
      differ("combined token " + std::to_string(t) +
                 (at == std::ptrdiff_t{hidden} ? ": a weight differs" : " differs at channel " + std::to_string(at)),
             round, me);
  }
  return tokens;
}

}  // namespace uccl::simulation

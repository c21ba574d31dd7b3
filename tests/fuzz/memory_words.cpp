// Where those words are, by the layouts that kernels and proxies go by.
#include "fuzz/memory_words.h"

#include "kernels/low_latency/dispatch_recv.h"
#include "kernels/low_latency/logfmt.h"
#include "kernels/throughput/dispatch.h"

namespace uccl::fuzz {

using namespace uccl::testing;

namespace {

// Collects places.
struct Collector {
  Places all;
  void add(const void* at, u64 bytes, Proof proof = Proof::kSealed) {
    all.push_back({const_cast<u8*>(static_cast<const u8*>(at)), bytes, proof});
  }
  // The headers of all rows that a ring of one channel holds.
  void add_headers(const u8* unit, const StreamGeometry& g, u32 channel) {
    for (u32 slot = 0; slot < g.num_slots; ++slot)
      for (u32 row = 0; row < g.rows_per_chunk; ++row)
        add(unit + g.chunk(channel, slot) + u64{row} * g.row_bytes, sizeof(RowHeader));
  }
};

// A dispatch stream of `source`, with the words that its readers and its writer tell each other.
void add_dispatch(const World& world, const StreamGeometry& g, u32 source, u32 victim, Collector& to) {
  const RankContext& me = world.context(victim);
  for (u32 channel = 0; channel < g.num_channels; ++channel) {
    const StreamAddress s = dispatch_stream(me, world.throughput, source, channel);
    to.add_headers(s.unit, g, channel);
    to.add(s.tail, 8, Proof::kCounter);
    for (u32 i = 0; source == victim && i < me.topology.local_size; ++i) to.add(&s.heads[i], 8, Proof::kCounter);
    to.add(own_control(me) + me.control_layout.credit(Direction::kDispatch, source, channel), 8, Proof::kCounter);
  }
}

// Both sets of who takes part in which call, where `peer` or its proxy has written them.
void add_identities(const RankContext& me, Phase phase, u32 peer, Collector& to) {
  if (peer == me.topology.rank) return;
  for (const u64 epoch : {0, 1})
    to.add(me.topology.is_local(peer) ? data_of(me, peer) + me.signals.identity(phase, epoch)
                                      : own_control(me) + me.control_layout.identity(epoch, peer),
           sizeof(CallIdentity));
}

void add_combine(const World& world, const StreamGeometry& g, u32 peer, u32 victim, Collector& to) {
  const RankContext& me = world.context(victim);
  const TopologyView& t = me.topology;
  add_identities(me, Phase::kIdentity, peer, to);
  for (u32 channel = 0; channel < g.num_channels; ++channel) {
    to.add(contribution_stream(me, world.throughput, victim, peer, channel).heads, 8, Proof::kCounter);
    to.add(own_control(me) + me.control_layout.credit(Direction::kCombine, peer, channel), 8, Proof::kCounter);
    if (!t.is_local(peer)) {
      const u32 cell = t.cell_of[peer];
      const StreamAddress s = partial_stream(me, world.throughput, cell, channel);
      to.add_headers(s.unit, g, channel);
      to.add(s.tail, 8, Proof::kCounter);
      continue;
    }
    for (u32 source = 0; peer != victim && source < t.num_ranks; ++source) {
      if (t.landing_rank(source, t.cell) != victim) continue;
      const StreamAddress s = contribution_stream(me, world.throughput, peer, source, channel);
      to.add_headers(s.unit, g, channel);
      to.add(s.tail, 8, Proof::kCounter);
    }
  }
}

}  // namespace

Places count_words(const World& world, const ThroughputCase& c, u64 round, u32 victim) {
  CountsArgs a{};
  a.rank = world.context(victim);
  a.layout = world.throughput;
  Collector to;
  const u32 channels = round_plan(world, c, round).channels, local = c.num_experts / world.num_ranks();
  for (u32 source = 0; source < world.num_ranks(); ++source) {
    if (source == victim) continue;
    const u64 words =
        u64{channels} * (1 + a.rank.topology.crowd_size(source)) + u64{a.rank.topology.crowd_size(source)} * local;
    to.add(counts_of(a, round + 1, source), sizeof(CountsHeader));
    to.add(counts_of(a, round + 1, source) + 1, 4 * words);
    to.add(arrival_flag(a.rank, Phase::kCounts, source), 8);
    for (const u64 epoch : {round + 1, round + 2})
      to.add(own_control(a.rank) + a.rank.control_layout.expect(Phase::kCounts, epoch, source), sizeof(ExpectHeader));
  }
  return to.all;
}

Places stream_words(const World& world, const ThroughputCase& c, u64 round, u32 victim, Direction direction) {
  const RoundPlan plan = round_plan(world, c, round);
  RowShape shape = dispatch_shape(plan, plan.topk);
  if (direction == Direction::kCombine) {
    shape = RowShape{};
    shape.payload_bytes = plan.combine_hidden * 2;
    shape.topk = plan.combine_topk;
    shape.has_weights = plan.combine_topk != 0;
  }
  const StreamGeometry g = StreamGeometry::make(world.throughput.unit_bytes, plan.channels, shape.bytes());
  Collector to;
  for (u32 peer = 0; peer < world.num_ranks(); ++peer)
    if (direction == Direction::kDispatch)
      add_dispatch(world, g, peer, victim, to);
    else
      add_combine(world, g, peer, victim, to);
  return to.all;
}

Places received_words(const World& world, u64 epoch, u32 victim) {
  DispatchReceiveArgs a{};
  a.rank = world.context(victim);
  a.call.layout = world.low_latency;
  Collector to;
  for (u32 source = 0; source < world.num_ranks(); ++source) {
    if (source == victim) continue;
    const u64 bytes = LowLatencyLayout::routing_bytes(world.shape().max_tokens, world.shape().max_topk);
    to.add(routing_header(a, epoch, source), bytes, Proof::kNone);
    if (a.rank.topology.is_local(source)) add_identities(a.rank, Phase::kDispatch, source, to);
    to.add(dispatch_flag(a, epoch, source), 8, Proof::kNone);
    to.add(own_data(a.rank) + a.rank.signals.consumed(Phase::kDispatch, source), 8, Proof::kNone);
    to.add(own_control(a.rank) + a.rank.control_layout.consumed(Phase::kDispatch, source), 8, Proof::kNone);
    to.add(own_control(a.rank) + a.rank.control_layout.expect(Phase::kDispatch, epoch, source), sizeof(ExpectHeader));
    to.add(own_control(a.rank) + a.rank.control_layout.expect(Phase::kSpare, epoch, source), sizeof(ExpectHeader),
           Proof::kNone);
  }
  return to.all;
}

Places combined_words(const World& world, const LowLatencyCase& c, u64 epoch, u32 victim) {
  const RankContext& me = world.context(victim);
  const TopologyView& t = me.topology;
  const LowLatencyLayout& layout = world.low_latency;
  const u64 slots = u64{layout.max_tokens} * layout.max_topk;
  u8* const data = own_data(me);
  Collector to;
  for (u64 slot = 0; slot < slots; ++slot) {
    // bf16 rows that are copied do not look at it; where they stay, an offset in range is another row.
    to.add(data + layout.combine_slot(epoch, slot), sizeof(LogfmtHeader),
           c.back == RowFormat::kLogfmt ? Proof::kSealed : Proof::kNone);
  }
  for (u32 peer = 0; peer < t.num_ranks; ++peer) {
    if (t.is_local(peer)) add_identities(me, Phase::kCombine, peer, to);
    if (t.is_local(peer)) to.add(node_flag(me, Phase::kCombine, epoch, peer), 8, Proof::kNone);
    to.add(data + me.signals.consumed(Phase::kCombine, peer), 8, Proof::kNone);
    for (const Phase phase : {Phase::kCombine, Phase::kWeights, Phase::kReduced}) {
      to.add(own_control(me) + me.control_layout.flag_beside(phase, epoch, peer), 8, Proof::kNone);
      to.add(own_control(me) + me.control_layout.expect(phase, epoch, peer), sizeof(ExpectHeader));
    }
    if (!c.reduces || t.is_local(peer) || t.landing_rank(peer, t.cell) != victim) continue;
    const u32 hosted = t.landing_slot(peer, t.cell);
    to.add(data + layout.landing_weights(epoch, hosted), layout.weights_stride(), Proof::kNone);
    for (u64 slot = 0; slot < slots; ++slot)
      to.add(data + layout.landing_combine_slot(epoch, hosted, slot), sizeof(u64), Proof::kNone);
  }
  return to.all;
}

}  // namespace uccl::fuzz

// Addresses of streams as both ends see them, shares of channels, destinations, and slot arithmetic.
#include <algorithm>
#include <set>

#include "kernels/throughput/calls.h"
#include "kernels/throughput/common.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

WorldShape shape_of(std::vector<u32> node_of) {
  WorldShape shape;
  shape.node_of = std::move(node_of);
  shape.unit_bytes = 1024;
  return shape;
}

}  // namespace

TEST(throughput_common_ranks_of_a_node_agree_on_every_stream) {
  World world(shape_of({0, 0, 1, 2, 2, 2, 1}));
  for (u32 source = 0; source < 7; ++source)
    for (u32 channel = 0; channel < 4; ++channel)
      for (u32 a = 0; a < 7; ++a) {
        const RankContext& ca = world.context(a);
        const u32 host = ca.topology.landing_rank(source, ca.topology.node);
        const StreamAddress mine = dispatch_stream(ca, world.throughput, source, channel);
        const StreamAddress hosts = dispatch_stream(world.context(host), world.throughput, source, channel);
        CHECK(mine.unit == hosts.unit && mine.tail == hosts.tail && mine.heads == hosts.heads);
        // A remote stream's tail is written by the host's proxy, so it lies in the control segment.
        const u8* tail = reinterpret_cast<const u8*>(mine.tail);
        const bool in_control = tail >= world.control(host) && tail < world.control(host) + ca.control_layout.bytes();
        CHECK_EQ(in_control, !ca.topology.is_local(source));
      }
}

TEST(throughput_common_streams_do_not_share_memory) {
  World world(shape_of({0, 0, 1, 2, 2}));
  for (u32 me = 0; me < 5; ++me) {
    std::set<const void*> units, words;
    const RankContext& c = world.context(me);
    for (u32 source = 0; source < 5; ++source) {
      if (c.topology.landing_rank(source, c.topology.node) == me)
        CHECK(units.insert(dispatch_stream(c, world.throughput, source, 0).unit).second);
      CHECK(units.insert(contribution_stream(c, world.throughput, me, source, 0).unit).second);
      for (u32 channel = 0; channel < 4; ++channel) {
        const StreamAddress s = contribution_stream(c, world.throughput, me, source, channel);
        CHECK(words.insert(s.tail).second && words.insert(s.heads).second);
      }
    }
    for (u32 n = 0; n < 3; ++n)
      if (n != c.topology.node) CHECK(units.insert(partial_stream(c, world.throughput, n, 0).unit).second);
  }
}

TEST(throughput_common_channels_share_tokens_out) {
  for (const u32 tokens : {0u, 1u, 7u, 8u, 9u, 63u, kMaxTokensPerRank})
    for (const u32 channels : {1u, 2u, 7u, kMaxChannels}) {
      CHECK_EQ(channel_begin(tokens, channels, 0), 0u);
      CHECK_EQ(channel_begin(tokens, channels, channels), tokens);
      for (u32 c = 0; c < channels; ++c) {
        const u32 begin = channel_begin(tokens, channels, c), end = channel_begin(tokens, channels, c + 1);
        CHECK(begin <= end && end - begin <= ceil_div(tokens, channels));
      }
    }
}

TEST(throughput_common_destinations_are_ranks_of_the_node) {
  World world(shape_of({0, 1, 0, 1, 1}));
  const u8 in_rank[10] = {1, 0, 0, 1, 1, 0, 1, 1, 0, 0};
  const RankContext& c = world.context(2);
  CHECK_EQ(destinations(c, in_rank, 0, 0), 1u);
  CHECK_EQ(destinations(c, in_rank, 0, 1), 6u);
  CHECK_EQ(destinations(c, in_rank, 1, 0), 2u);
  CHECK_EQ(destinations(c, in_rank, 1, 1), 1u);
}

TEST(throughput_common_destinations_of_cells_a_rank) {
  WorldShape shape = shape_of({0, 1, 0, 1, 1});
  shape.apart = true;
  World world(shape);
  const u8 in_rank[10] = {1, 0, 0, 1, 1, 0, 1, 1, 0, 0};
  const RankContext& c = world.context(2);
  CHECK_EQ(destinations(c, in_rank, 0, 2), 1u);  // its own cell stands for its node: ranks 0 and 2
  CHECK_EQ(destinations(c, in_rank, 1, 2), 2u);
  for (u32 r : {1u, 3u, 4u}) {
    CHECK_EQ(destinations(c, in_rank, 0, r), u64{in_rank[r]});
    CHECK_EQ(destinations(c, in_rank, 1, r), u64{in_rank[5 + r]});
  }
}

TEST(throughput_common_slot_opens_when_the_slowest_reader_has_left) {
  World world(shape_of({0, 0}));
  const RankContext& c = world.context(0);
  StreamGeometry g;
  g.num_slots = 3;
  u64 heads[2] = {4, 6};
  const WaitContext wait = wait_context(c);
  const u64 tail = 9;
  const StreamAddress stream{nullptr, &tail, heads};
  u32 who = 9;
  const auto head = [&] { return slowest_head(c, 0, stream, &who); };
  CHECK_EQ(head(), 4u);
  CHECK_EQ(who, 0u);
  WaitSite site{WaitPhase::kDispatchSend, 1, 0, 6};
  bool absent = true;
  CHECK(wait_for_slot(c, wait, site, g, head, &absent) && !absent);
  WaitContext late = wait;
  late.deadline_ns = 0;  // chunk 7 is one beyond what the ring holds
  site.expected = 7;
  CHECK(!wait_for_slot(c, late, site, g, head, &absent));
  CHECK(world.fault(0).kind == FaultKind::kTimeout);
  heads[0] = 5;
  CHECK(wait_for_slot(c, wait, site, g, head, &absent) && !absent);
  heads[0] = 9;
  CHECK_EQ(head(), 6u);
  CHECK_EQ(who, 1u);
  heads[1] = 10;  // of what was never written
  CHECK_EQ(head(), 0u);
  CHECK_EQ(who, 1u);
}

TEST(throughput_common_masked_readers_hold_nobody_back) {
  WorldShape shape = shape_of({0, 0, 0});
  shape.shrink = true;
  World world(shape);
  const RankContext& c = world.context(0);
  StreamGeometry g;
  g.num_slots = 3;
  u64 heads[3] = {8, 4, 7};
  const u64 tail = 9;
  const StreamAddress stream{nullptr, &tail, heads};
  u32 who = 9;
  WaitSite site{WaitPhase::kDispatchSend, 0, 0, 9};
  const auto head = [&] { return slowest_head(c, 0, stream, &site.peer); };
  WaitContext late = wait_context(c);
  late.deadline_ns = late.renewed_ns = 0;  // over, and not begun anew
  bool absent = false;
  CHECK(wait_for_slot(c, late, site, g, head, &absent) && absent);  // the slowest is masked instead of a fault
  CHECK(world.mask(0)[1] == 1 && world.mask(0)[2] == 0);
  CHECK(world.fault(0).kind == FaultKind::kNone && !world.aborted(0));
  CHECK_EQ(slowest_head(c, 0, stream, &who), 7u);
  CHECK_EQ(who, 2u);
  CHECK_EQ(combine_peer(c, 2), 2u);
}

namespace {

template <class T>
void refill(std::vector<T>* to, const std::vector<T>& from) {
  CHECK_EQ(to->size(), from.size());
  std::copy(from.begin(), from.end(), to->begin());
}

// Everything that a recorded round reads and writes, always at the same addresses.
struct ReplayedRound {
  ReplayedRound(const World& w, const ThroughputCase& c, const RoundPlan& plan, u32 me)
      : in(throughput_input(w, c, 0, me)),
        routing(w, c, in, plan.channels),
        got(w.num_ranks() * c.max_tokens, plan.hidden, plan.scale_words, plan.topk),
        combine(w, c, 0, me),
        out(u64{in.num_tokens} * plan.combine_hidden),
        out_weights(u64{in.num_tokens} * plan.combine_topk) {
    combine.x.resize(u64{got.capacity} * plan.combine_hidden);
    combine.weights.resize(u64{got.capacity} * plan.combine_topk);
  }
  void prepare(const RankInput& next, const CombineInput& rows) {
    refill(&in.topk_idx, next.topk_idx);
    refill(&in.topk_weights, next.topk_weights);
    refill(&in.x, next.x);
    refill(&in.scales, next.scales);
    std::copy(rows.x.begin(), rows.x.end(), combine.x.begin());
    std::copy(rows.weights.begin(), rows.weights.end(), combine.weights.begin());
    for (u32 b = 0; b < 2; ++b) refill(&combine.bias[b], rows.bias[b]);
    for (const auto* counter : {&routing.tokens_per_rank, &routing.tokens_per_node, &routing.tokens_per_expert})
      std::fill_n(counter->data(), counter->size(), 0);  // a graph zeroes them too: get_dispatch_layout adds to them
    got.x.poison();
    got.src_idx.poison();
    out.poison();
  }
  RankInput in;
  Routing routing;
  Dispatched got;
  CombineInput combine;
  Poisoned<u16> out;
  Poisoned<float> out_weights;
};

void run_round(ThroughputRank& rank, const RoundPlan& plan, ReplayedRound& r) {
  rank.layout(r.in, &r.routing);
  rank.counts(plan, r.in, &r.routing);
  rank.dispatch(plan, r.in, plan.topk, r.routing, &r.got, true);
  rank.combine(plan, r.in.num_tokens, r.routing,
               {r.combine.x.data(), r.combine.weights.data(), r.got.src_idx.data(), r.combine.bias[0].data(),
                r.combine.bias[1].data(), r.out.data(), r.out_weights.data()});
}

}  // namespace

// Layout, counts, dispatch and combine, with the two settles before them: the same argument bytes a hundred times. Now
// and then an ordinary round with another geometry comes between.
TEST(throughput_common_replays_recorded_calls) {
  u64 seed = 400;
  const u64 rounds = check::rounds(101, 25);
  for (const auto& node_of : std::vector<std::vector<u32>>{{0, 0}, {0, 1}, {0, 1, 1}}) {
    WorldShape shape = shape_of(node_of);
    shape.unit_bytes = 4096;
    shape.shuffle_seed = ++seed;
    ThroughputCase c, other;
    other.seed = seed + 50;
    c.seed = seed;
    c.num_experts = other.num_experts = 2 * shape.num_ranks();
    c.steady = true;
    World world(shape);
    world.run([&](u32 me) {
      ThroughputRank rank(world, me, c);
      const RoundPlan plan = round_plan(world, c, 0);
      ReplayedRound r(world, c, plan, me);
      for (u64 round = 0; round < rounds; ++round) {
        if (round % 11 == 7) {
          throughput_round(world, rank, other, round, me);
          continue;
        }
        r.prepare(throughput_input(world, c, round, me), CombineInput(world, c, round, me));
        rank.recording.record(round == 0);
        if (round == 0)
          run_round(rank, plan, r);
        else
          rank.recording.replay(0, rank.recording.size());
        rank.recording.record(false);
        check_no_fault(world, me, "a replayed round");
        check_layout(world, c, round, me, r.routing);
        check_counts(world, c, round, me, r.routing);
        check_dispatched(world, c, round, me, r.got, plan.topk);
        check_combined(world, c, round, me, r.out, r.out_weights);
      }
      CHECK_EQ(rank.recording.size(), 6u);
      CHECK_EQ(rank.epoch(), rounds);
    });
  }
}

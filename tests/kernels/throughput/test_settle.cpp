// Between calls that cut their streams differently: the drain lets a change of row size or channels through, waits for
// readers that are behind, and gives up at the deadline.
#include "kernels/throughput/calls.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

TEST(throughput_settle_between_geometries) {
  u64 seed = 330;
  for (const auto& node_of : std::vector<std::vector<u32>>{{0, 0}, {0, 1}, {0, 0, 1}, {0, 1, 1, 2}}) {
    WorldShape shape;
    shape.node_of = node_of;
    shape.unit_bytes = 4096;
    shape.shuffle_seed = ++seed;
    ThroughputCase c;
    c.seed = seed;
    c.num_experts = 2 * shape.num_ranks();
    c.max_channels = 4;
    c.max_tokens = 30;
    c.max_hidden = 128;
    CHECK(throughput_rounds(shape, c, 16, 16) > 8);
  }
}

TEST(throughput_settle_not_needed_for_equal_geometries) {
  WorldShape shape;
  shape.node_of = {0, 0, 1};
  shape.unit_bytes = 2048;
  ThroughputCase c;
  c.num_experts = 6;
  c.same_geometry = true;
  c.seed = 4;
  const u64 drains = throughput_rounds(shape, c, 8, 8);
  CHECK(drains <= 6);  // only between a call and its cached repeat, whose rows are smaller
}

TEST(throughput_settle_names_the_stream_that_is_not_read) {
  for (const Direction direction : {Direction::kDispatch, Direction::kCombine}) {
    WorldShape shape;
    shape.node_of = {0, 0};
    shape.unit_bytes = 2048;
    shape.timeout_ns = 50'000'000;
    World world(shape);
    const bool dispatch = direction == Direction::kDispatch;
    const RankContext& c = world.context(0);
    *reinterpret_cast<u64*>(world.data(0) + c.signals.stream_tail(direction, dispatch ? 0 : 1, 3)) = 7;
    *reinterpret_cast<u64*>(world.data(0) + c.signals.stream_head(direction, dispatch ? 0 : 1, 3, 0)) = 5;
    if (dispatch) *reinterpret_cast<u64*>(world.data(0) + c.signals.stream_head(direction, 0, 3, 1)) = 7;
    ThroughputCase settings;
    ThroughputRank rank(world, 0, settings);
    rank.settled(direction) = SettledGeometry{4, 64};
    rank.settle(direction, 4, 64);  // cut the same way: there is nothing to wait for
    CHECK(world.fault(0).kind == FaultKind::kNone);
    rank.settle(direction, 2, 64);
    CHECK_EQ(rank.settled(direction).num_channels, 4u);  // not settled, so not noted
    const Fault f = world.fault(0);
    CHECK(f.kind == FaultKind::kTimeout);
    CHECK(f.phase == (dispatch ? WaitPhase::kDispatchSend : WaitPhase::kCombineSend));
    CHECK_EQ(f.peer, dispatch ? 0u : 1u);
    CHECK_EQ(f.detail.word, DetailWord(3u).word);
    CHECK_EQ(f.expected, 7u);
    CHECK_EQ(f.seen, 5u);
  }
}

TEST(throughput_settle_returns_when_the_last_reader_has_read) {
  WorldShape shape;
  shape.node_of = {0, 0};
  shape.unit_bytes = 2048;
  World world(shape);
  const RankContext& c = world.context(0);
  *reinterpret_cast<u64*>(world.data(0) + c.signals.stream_tail(Direction::kDispatch, 0, 0)) = 3;
  u64* heads = reinterpret_cast<u64*>(world.data(0) + c.signals.stream_head(Direction::kDispatch, 0, 0, 0));
  bool before = true, after = false;
  u64 drained = 0;
  world.run([&](u32 me) {
    if (me == 0) {
      ThroughputCase settings;
      ThroughputRank rank(world, 0, settings);
      rank.settled(Direction::kDispatch) = SettledGeometry{1, 64};
      rank.settle(Direction::kDispatch, 1, 80);
      CHECK_EQ(rank.settled(Direction::kDispatch).row_bytes, 80u);
      __atomic_store_n(&drained, 1, __ATOMIC_RELEASE);
      after = !world.aborted(0) && __atomic_load_n(&heads[1], __ATOMIC_ACQUIRE) == 3;
      return;
    }
    __atomic_store_n(&heads[0], 3, __ATOMIC_RELEASE);
    __atomic_store_n(&heads[1], 2, __ATOMIC_RELEASE);
    before = __atomic_load_n(&drained, __ATOMIC_ACQUIRE) == 0;
    __atomic_store_n(&heads[1], 3, __ATOMIC_RELEASE);
  });
  CHECK(before && after);
}

// Kernels of a Buffer count in memory of their own; a call's blocks and its memory follow from its channels.
#include <vector>

#include "kernels/launch/throughput.h"
#include "native/check.h"

using namespace uccl;

namespace {

struct Fixture {
  RankContext rank{};
  ThroughputLayout layout{};
  std::vector<u64> workspace = std::vector<u64>(ThroughputCalls::kWorkspaceBytes / sizeof(u64));

  explicit Fixture(u32 nodes) {
    rank.topology.num_ranks = 8;
    rank.topology.num_nodes = rank.topology.num_cells = nodes;
    layout.max_readers = 4;
  }
  ThroughputCalls calls(const DeviceShape& device = {}) {
    return {rank, layout, reinterpret_cast<u8*>(workspace.data()), device};
  }
};

}  // namespace

TEST(launch_throughput_words_lie_in_the_workspace_and_apart) {
  Fixture f(1);
  const ThroughputCalls calls = f.calls();
  const auto at = [&](const void* p) { return static_cast<const u8*>(p) - reinterpret_cast<u8*>(f.workspace.data()); };
  const auto last = at(&calls.settled(Direction::kCombine));
  CHECK_EQ(at(&calls.identities()), 0);
  CHECK(at(&calls.epoch()) >= static_cast<i64>(sizeof(IdentityState)));
  CHECK(at(&calls.settled(Direction::kDispatch)) >= at(&calls.epoch()) + static_cast<i64>(sizeof(u64)));
  CHECK_EQ(last + sizeof(SettledGeometry), ThroughputCalls::kWorkspaceBytes);
}

TEST(launch_throughput_blocks_follow_channels_and_nodes) {
  RoutingTables routing{};
  routing.channels = 5;
  u8 memory[4096];
  Fixture one(1), several(2);
  CHECK_EQ(one.calls().dispatch({}, {}, {}, routing, false).grid.blocks, 10u);
  CHECK_EQ(one.calls().combine({}, {}, {}, routing, memory).grid.blocks, 10u);
  CHECK_EQ(several.calls().combine({}, {}, {}, routing, memory).grid.blocks, 15u);
  CHECK(one.calls().dispatch({}, {}, {}, routing, false).grid.exact);
  const DeviceShape gpu{66, 16, false};
  CHECK_EQ(one.calls(gpu).dispatch({}, {}, {}, routing, false).grid.blocks, 10u);
  CHECK_EQ(one.calls(gpu).dispatch({}, {}, {}, routing, false).grid.warps, 16u);
  CHECK_EQ(several.calls(gpu).combine({}, {}, {}, routing, memory).grid.warps, 16u);
  LayoutArgs own{};
  own.num_tokens = 65;
  CHECK_EQ(one.calls().layout(own).grid.blocks, 3u);
  CHECK(!one.calls().layout(own).grid.exact);
}

TEST(launch_throughput_memory_of_a_combine_holds_its_sums_and_states) {
  RoutingTables routing{};
  routing.channels = 3;
  CombineArgs own{};
  own.hidden = 24;
  std::vector<u64> memory(4096);
  u8* const begin = reinterpret_cast<u8*>(memory.data());
  const DeviceShape two{1, 2};  // warps a block
  Fixture several(4);
  const auto l = several.calls(two).combine(own, {}, {}, routing, begin);
  CHECK_EQ(reinterpret_cast<u8*>(l.args.scratch), begin);
  CHECK(reinterpret_cast<u8*>(l.args.partials) >= begin + 3 * 2 * 24 * sizeof(u16));
  CHECK_EQ(reinterpret_cast<u8*>(l.args.partials + 3 * 4), begin + several.calls(two).combine_bytes(3, 24));
  Fixture one(1);
  CHECK_EQ(reinterpret_cast<u8*>(one.calls(two).combine(own, {}, {}, routing, begin).args.partials), begin);
}

TEST(launch_throughput_counts_keep_a_copy_of_the_tokens_only_where_ranks_may_be_masked) {
  u8 given[8]{}, kept[8]{};
  Fixture f(1);
  CountsArgs own{};
  own.is_token_in_rank = given;
  RoutingTables routing{};
  routing.is_token_in_rank = given;
  CHECK(f.calls().counts(own, {}, routing).args.taken == nullptr);
  routing.is_token_in_rank = kept;
  const auto l = f.calls().counts(own, {}, routing);
  CHECK_EQ(l.args.taken, kept);
  CHECK_EQ(l.args.is_token_in_rank, given);
  CHECK_EQ(l.args.readers, 4u);
  CHECK_EQ(l.args.epoch, &f.calls().epoch());
}

TEST(launch_throughput_dispatch_identifies_itself_where_no_counts_were_exchanged) {
  Fixture f(1);
  u32 total = 0;
  RoutingTables routing{};
  routing.num_tokens = 12;
  routing.recv_total = &total;
  for (const bool identify : {false, true}) {
    const auto l = f.calls().dispatch({}, {}, {}, routing, identify);
    CHECK_EQ(l.args.call.identify != 0, identify);
    CHECK_EQ(l.args.call.num_tokens, 12u);
    CHECK_EQ(l.args.recv_total, &total);
  }
  const auto s = f.calls().settle(Direction::kCombine, 4, 512);
  CHECK_EQ(s.args.last, &f.calls().settled(Direction::kDispatch));
  CHECK_EQ(s.args.direction, static_cast<u32>(Direction::kCombine));
}

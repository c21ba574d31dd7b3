// get_dispatch_layout against plain loops: repeats, ids out of range, no tokens, any number of blocks.
#include "kernels/throughput/calls.h"
#include "kernels/throughput/layout.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

TEST(throughput_layout_counts_every_topology) {
  u64 seed = 200;
  for (const auto& node_of : std::vector<std::vector<u32>>{{0}, {0, 0, 0}, {0, 1, 0}, {0, 0, 1, 2, 2}}) {
    WorldShape shape;
    shape.node_of = node_of;
    World world(shape);
    ThroughputCase c;
    c.seed = ++seed;
    c.max_tokens = 90;
    c.num_experts = 4 * world.num_ranks();
    for (u64 round = 0; round < 12; ++round)
      for (u32 me = 0; me < world.num_ranks(); ++me) {
        const RankInput in = throughput_input(world, c, round, me);
        Routing routing(world, c, in, 1);
        ThroughputRank rank(world, me, c);
        rank.layout(in, &routing);
        check_layout(world, c, round, me, routing);
      }
  }
}

TEST(throughput_layout_at_4096_experts_and_64_local_ranks) {
  WorldShape shape;
  shape.node_of.clear();
  for (u32 r = 0; r < 128; ++r) shape.node_of.push_back(r / 64);
  std::vector<u64> nothing(128, 0);
  RankTablesSettings s;
  s.node_of = shape.node_of;
  s.rank = 70;
  s.data.assign(64, 0);
  s.control.assign(64, 0);
  s.num_rings = 0;
  const RankTables tables(s);
  const std::vector<i64> ids = {4095, 0, 4095, 2047, -1, 4096, 2048, 2048, 31};
  std::vector<u32> per_rank(128), per_node(2), per_expert(4096);
  std::vector<u8> in_rank(3 * 128, 9);
  LayoutArgs a{};
  a.topology = tables.context().topology;
  a.topk_idx = ids.data();
  a.num_tokens_per_rank = per_rank.data();
  a.num_tokens_per_node = per_node.data();
  a.num_tokens_per_expert = per_expert.data();
  a.is_token_in_rank = in_rank.data();
  a.num_tokens = 3;
  a.topk = 3;
  a.num_experts = 4096;
  launch_kernel(throughput_layout, a, LaunchShape{2, 1, 1, 0});
  CHECK_EQ(per_expert[4095], 2u);
  CHECK_EQ(per_expert[2048], 2u);
  CHECK_EQ(per_rank[127], 1u);  // token 0 twice, counted once
  CHECK_EQ(per_rank[63], 1u);
  CHECK_EQ(per_rank[64], 1u);
  CHECK_EQ(per_rank[0], 2u);
  CHECK_EQ(per_node[0], 3u);
  CHECK_EQ(per_node[1], 2u);
  u32 ones = 0;
  for (const u8 v : in_rank) {
    CHECK(v <= 1);
    ones += v;
  }
  CHECK_EQ(ones, 5u);
}

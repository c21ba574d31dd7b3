// Warps of one lane give what warps of 32 give, in the same program. Whole rounds at this width are the tests of
// kernels/throughput once more (native_tests_wave1), and those of Buffer on a CPU.
#include "kernels/cpu/throughput.h"
#include "kernels/throughput/calls.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

LayoutArgs layout_args(const World& world, const ThroughputCase& c, const RankInput& in, Routing* routing) {
  LayoutArgs a{};
  a.topology = world.context(0).topology;
  a.topk_idx = in.topk_idx.data();
  a.num_tokens = in.num_tokens;
  a.topk = in.topk;
  a.num_experts = c.num_experts;
  a.num_tokens_per_rank = routing->tokens_per_rank.data();
  a.num_tokens_per_expert = routing->tokens_per_expert.data();
  a.is_token_in_rank = routing->is_token_in_rank.data();
  return a;
}

}  // namespace

TEST(cpu_throughput_counts_as_warps_of_32_do) {
  WorldShape shape;
  shape.node_of = {0, 0, 0};
  World world(shape);
  ThroughputCase c;
  c.max_tokens = 90;
  c.num_experts = 12;
  for (u64 round = 0; round < 20; ++round) {
    const RankInput in = throughput_input(world, c, round, 0);
    Routing wide(world, c, in, 1), narrow(world, c, in, 1);
    launch_kernel(throughput_layout, layout_args(world, c, in, &wide), LaunchShape{2, 1, 1, 0});
    cpu::throughput_layout(layout_args(world, c, in, &narrow), cpu::Shape{2, 3, 2});
    check_layout(world, c, round, 0, narrow);
    for (u32 r = 0; r < 3; ++r) CHECK_EQ(narrow.tokens_per_rank[r], wide.tokens_per_rank[r]);
    for (u32 e = 0; e < c.num_experts; ++e) CHECK_EQ(narrow.tokens_per_expert[e], wide.tokens_per_expert[e]);
  }
}

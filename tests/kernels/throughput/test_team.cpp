// Launch shapes of a GPU: teams of warps work on one stream together, and the warps of a channel's blocks are shared out by
// the rows that there are to send and to read.
#include "kernels/throughput/calls.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

WorldShape shape_of(const std::vector<u32>& node_of, u64 unit_bytes) {
  WorldShape shape;
  shape.node_of = node_of;
  shape.unit_bytes = unit_bytes;
  return shape;
}

void same_rows(u64 seed, const std::vector<std::vector<u32>>& worlds) {
  for (const auto& node_of : worlds)
    for (const u32 warps : {2u, 5u, kMaxBlockWarps})
      for (const bool arenas : {false, true}) {
        ThroughputCase c;
        c.gpu = true;
        c.seed = ++seed;
        if (!check::plays(seed)) continue;
        c.num_experts = 4 * static_cast<u32>(node_of.size());
        c.max_tokens = 40;
        c.warps = warps;
        c.arenas = arenas;
        throughput_rounds(shape_of(node_of, 32768), c, 5);
      }
}

}  // namespace

TEST(throughput_team_shapes_of_a_gpu_give_the_same_rows_in_a_node) { same_rows(40, {{0}, {0, 0}, {0, 0, 0, 0, 0}}); }
TEST(throughput_team_shapes_of_a_gpu_give_the_same_rows_between_nodes) {
  same_rows(58, {{0, 0, 1}, {0, 1, 1, 2}, {0, 0, 1, 1}});
}

TEST(throughput_team_shapes_of_a_gpu_with_more_ranks_than_warps) {
  ThroughputCase c;
  c.gpu = true;
  c.seed = 7;
  c.num_experts = 14;
  c.warps = 2;
  throughput_rounds(shape_of({0, 0, 0, 0, 0, 0, 0}, 16384), c, 4);
}

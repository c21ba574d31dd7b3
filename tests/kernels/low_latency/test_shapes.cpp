// Launch shapes of a GPU: more warps than rows, so that several take a row together, and one block that asks for all.
#include "kernels/low_latency/calls.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

WorldShape few_long_rows(const std::vector<u32>& node_of, u32 hidden) {
  WorldShape shape;
  shape.node_of = node_of;
  shape.max_tokens = 3;
  shape.max_topk = 4;
  shape.hidden = hidden;
  return shape;
}
LowLatencyCase many_warps(u64 seed) {
  LowLatencyCase c;
  c.gpu = true;
  c.seed = seed;
  c.batch = 2;
  c.shape = LaunchShape{5, kMaxBlockWarps, 1, seed};
  return c;
}

}  // namespace

namespace {

void same_rows(const std::vector<u32>& node_of, std::initializer_list<RowFormat> formats) {
  u64 seed = 1;
  for (const RowFormat format : formats)
    for (const RowFormat back : kCombineFormats) {
      LowLatencyCase c = many_warps(++seed);
      if (!check::plays(seed)) continue;
      c.num_experts = 2 * static_cast<u32>(node_of.size());
      c.format = format;
      c.back = back;
      low_latency_rounds(few_long_rows(node_of, 4608), c, 4);  // rows of whole pieces and half a one
    }
}

}  // namespace

TEST(low_latency_shapes_of_a_gpu_give_the_same_rows_alone) {
  same_rows({0}, {RowFormat::kBf16, RowFormat::kFp8, RowFormat::kFp8Ue8m0, RowFormat::kNvfp4});
}
TEST(low_latency_shapes_of_a_gpu_give_the_same_rows_in_a_node) {
  same_rows({0, 0, 0}, {RowFormat::kBf16, RowFormat::kFp8});
}
TEST(low_latency_shapes_of_a_gpu_give_the_same_small_rows_in_a_node) {
  same_rows({0, 0, 0}, {RowFormat::kFp8Ue8m0, RowFormat::kNvfp4});
}
TEST(low_latency_shapes_of_a_gpu_give_the_same_rows_between_nodes) {
  same_rows({0, 1, 1}, {RowFormat::kBf16, RowFormat::kFp8});
}
TEST(low_latency_shapes_of_a_gpu_give_the_same_small_rows_between_nodes) {
  same_rows({0, 1, 1}, {RowFormat::kFp8Ue8m0, RowFormat::kNvfp4});
}

TEST(low_latency_shapes_of_a_gpu_deal_more_rows_and_experts_than_warps) {
  for (const u64 seed : {1, 2, 3}) {
    WorldShape shape = few_long_rows({0, 0, 1, 1}, 128);
    shape.max_tokens = 40;
    LowLatencyCase c = many_warps(seed);
    c.num_experts = 4 * 70;  // more a rank than a warp has lanes
    c.batch = 7;
    c.shape.warps = 4;
    low_latency_rounds(shape, c, 4);
  }
}

TEST(low_latency_shapes_of_a_gpu_sum_in_the_node) {
  for (const bool in_place : {false, true}) {
    WorldShape shape = few_long_rows({0, 0, 1, 1}, 2560);
    shape.reduces = true;
    LowLatencyCase c = many_warps(9);
    c.num_experts = 8;
    c.reduces = true;
    c.zero_copy = c.in_place = in_place;
    if (in_place) shape.zero_copy_bytes = 3ull * c.num_experts * shape.max_tokens * 2 * (2560 + 2560 / 64) + (1 << 16);
    low_latency_rounds(shape, c, 5);
    for (const RowFormat back : kCombineFormats) {
      if (in_place || !check::plays(static_cast<u64>(back))) continue;
      c.back = back;
      low_latency_rounds(shape, c, 3);
    }
  }
}

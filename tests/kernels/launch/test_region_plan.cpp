// Parts of a rank's memory follow each other without overlap, whatever the group and the sizes.
#include "kernels/launch/region_plan.h"
#include "kernels/layout/topology.h"
#include "kernels/values.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

TEST(launch_region_plan_group_shape) {
  const GroupShape one = GroupShape::of({0, 0, 0}, {});
  CHECK_EQ(one.num_nodes, 1u);
  CHECK_EQ(one.num_cells, 1u);
  CHECK_EQ(one.max_readers, 3u);
  CHECK_EQ(one.num_landing_slots, 0u);
  const GroupShape uneven = GroupShape::of({0, 0, 0, 1, 1, kNoNode}, {});
  CHECK_EQ(uneven.num_ranks, 6u);
  CHECK_EQ(uneven.fan, 2u);
  CHECK_EQ(uneven.num_landing_slots, 4u);  // a rank of node 1 stands for two of node 0's
  const GroupShape apart = GroupShape::of({0, 0, 1, 1}, {0, 1, 2, 3});
  CHECK_EQ(apart.num_cells, 4u);
  CHECK_EQ(apart.num_landing_slots, 4u);
  CHECK_THROWS(std::invalid_argument, GroupShape::of({kNoNode}, {}));
  CHECK_THROWS(std::invalid_argument, GroupShape::of({0, 7}, {}));
  CHECK_THROWS(std::invalid_argument, GroupShape::of({0, 2, 2}, {}));
  CHECK_THROWS(std::invalid_argument, GroupShape::of({0, 0, 0}, {0, 2, 2}));
}

TEST(launch_region_plan_parts_do_not_overlap) {
  for (u64 seed = 0; seed < 200; ++seed) {
    const auto draw = [&](u64 what, u64 most) { return static_cast<u32>(mix(seed ^ what << 32) % most); };
    std::vector<u32> node_of;
    for (u32 n = 0; n <= draw(1, 3); ++n) node_of.insert(node_of.end(), 1 + draw(2 + n, 4), n);
    const GroupShape group = GroupShape::of(node_of, {});
    RegionSizes sizes;
    sizes.num_channels = 1 + draw(10, 8);
    sizes.max_local_experts = draw(11, 9);
    sizes.unit_bytes = 128 * draw(12, 5);
    sizes.low_latency.max_tokens = 1 + draw(13, 20);
    sizes.low_latency.hidden = 8 * draw(14, 20);
    sizes.low_latency.max_topk = 1 + draw(15, 8);
    sizes.low_latency.staging_rows = draw(16, 20);
    sizes.low_latency.reduces = draw(17, 2);
    sizes.low_latency_bytes = draw(18, 1 << 16);
    const RegionPlan p(group, sizes);
    CHECK(p.throughput.base >= p.signals.bytes());
    CHECK(p.low_latency.base >= p.throughput.base + p.throughput.bytes());
    const u64 rows = sizes.low_latency.hidden == 0 ? 0 : p.low_latency.bytes();
    CHECK(p.data_bytes >= p.low_latency.base + rows + kRegionSlackBytes);
    CHECK(p.data_bytes >= p.low_latency.base + sizes.low_latency_bytes + kRegionSlackBytes);
    CHECK(p.control_offset >= p.data_bytes);
    CHECK(p.zero_copy_offset >= p.control_offset + p.control.bytes());
    for (const u64 page : {p.throughput.base, p.low_latency.base, p.control_offset, p.zero_copy_offset})
      CHECK_EQ(page % 4096, 0u);
    CHECK_EQ(p.low_latency.staging_rows, group.num_nodes == 1 ? 0 : sizes.low_latency.staging_rows);
  }
}

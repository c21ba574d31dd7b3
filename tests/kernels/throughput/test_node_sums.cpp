// What a rank sums for ranks of other nodes: wide rows, of which a ring has room for few.
#include "kernels/throughput/calls.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

TEST(throughput_node_sums_of_wide_rows) {
  WorldShape shape;
  shape.node_of = {0, 0, 1};
  shape.unit_bytes = 64 << 10;
  ThroughputCase c;
  c.seed = 5;
  c.num_experts = 6;
  c.max_hidden = 2048;
  throughput_rounds(shape, c, 6);
}

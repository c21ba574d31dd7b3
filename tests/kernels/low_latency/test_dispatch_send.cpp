// Low-latency dispatch, sending half: staging in every format, runs of rows, rings with many wraps.
#include "kernels/low_latency/calls.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

TEST(low_latency_dispatch_send_probe) {
  WorldShape shape;
  shape.node_of = {0, 0, 1};
  shape.max_tokens = 12; shape.hidden = 1024; shape.max_topk = 5; shape.shuffle_seed = 5;
  for (auto f : {RowFormat::kBf16, RowFormat::kFp8, RowFormat::kFp8Ue8m0}) {
  LowLatencyCase c;
  c.num_experts = 9;
  c.format = f;
  low_latency_rounds(shape, c, 8);
  }
}

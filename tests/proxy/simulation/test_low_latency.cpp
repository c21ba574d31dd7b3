// The low-latency calls over a network without disorder, in every format.
#include "native/check.h"
#include "proxy/simulation/small.h"
#include "simulation/low_latency.h"
#include "simulation/run.h"

TEST(simulation_low_latency_rounds_in_every_format) {
  using namespace uccl;
  using namespace uccl::simulation;
  for (const RowFormat format : {RowFormat::kBf16, RowFormat::kFp8, RowFormat::kFp8Ue8m0})
    for (const bool zero_copy : {false, true}) {
      Case c = testing::small_case(Mode::kLowLatency);
      c.format = format;
      c.rounds = 7;
      c.world.hidden = format == RowFormat::kBf16 ? 24 : 256;
      c.zero_copy = zero_copy;
      const u64 stride = align_up(c.world.hidden + c.world.hidden / 64, 8);
      c.world.zero_copy_bytes = zero_copy ? 2 * align_up(u64{c.num_experts} * c.world.max_tokens * stride * 2, 128) : 0;
      const simulation::Outcome o = run_case(c);
      CHECK_EQ(o.violation, std::string());
      CHECK(o.rows > 20);
      CHECK_EQ(o.network.overtakes, 0u);
    }
}

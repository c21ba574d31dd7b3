// The throughput calls over a network without disorder, on one node and on several.
#include "native/check.h"
#include "proxy/simulation/small.h"
#include "simulation/run.h"
#include "simulation/throughput.h"

TEST(simulation_throughput_rounds_on_one_node_and_several) {
  using namespace uccl;
  using namespace uccl::simulation;
  for (const std::vector<u32>& nodes : {std::vector<u32>{0, 0, 0}, {0, 0, 1, 1}, {0, 1, 1, 1}, {0, 1, 2}}) {
    Case c = testing::small_case(Mode::kThroughput);
    c.world.node_of = nodes;
    c.num_experts = 2 * c.world.num_ranks();
    c.rounds = 6;
    const simulation::Outcome o = run_case(c);
    CHECK_EQ(o.violation, std::string());
    CHECK(o.rows > 50);
    CHECK_EQ(o.network.writes != 0, c.world.num_nodes() > 1);
  }
}

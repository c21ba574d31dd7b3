// What seeds stand for: the same every time, within the limits, and of every kind that is wanted.
#include <stdexcept>

#include "native/check.h"
#include "simulation/case.h"
#include "wire/limits.h"

namespace {
using namespace uccl;
using namespace uccl::simulation;
}  // namespace

TEST(simulation_case_is_the_seeds) {
  for (u64 seed = 0; seed < 50; ++seed) {
    CHECK_EQ(describe(draw_case(seed, "any")), describe(draw_case(seed, "any")));
    CHECK(describe(draw_case(seed, "any")) != describe(draw_case(seed + 1, "any")));
    CHECK_EQ(draw_case(seed, "srd").profile.name, std::string("srd"));
    CHECK_EQ(draw_case(seed, "rc").profile.ordered, true);
  }
  CHECK_THROWS(std::invalid_argument, draw_case(1, "token ring"));
}

TEST(simulation_case_has_the_wished_ranks) {
  const Case c = draw_case(7, {"rc", 256, 32});
  CHECK_EQ(c.world.num_ranks(), 256u);
  CHECK_EQ(c.world.num_nodes(), 32u);
  CHECK_EQ(c.world.node_of[9], 1u);
  for (const Wish& wish :
       {Wish{"any", 5, 6}, Wish{"any", 129, 2}, Wish{"any", 4, 0}, Wish{"any", 0, 4}, Wish{"any", 1, 1}})
    CHECK_THROWS(std::invalid_argument, draw_case(1, wish));
}

TEST(simulation_case_covers_what_it_should) {
  u32 cut = 0, apart = 0, shrink = 0, leavings[3] = {}, absences = 0;
  u32 largest = 0, uneven = 0, single = 0, lethal = 0, calm = 0, aged = 0, throughput = 0, tiny_ring = 0;
  for (u64 seed = 0; seed < 4000; ++seed) {
    const Case c = draw_case(seed, "any");
    const WorldShape& w = c.world;
    largest = std::max(largest, w.num_ranks());
    std::vector<u32> sizes(w.num_nodes());
    for (u32 r = 0; r < w.num_ranks(); ++r) ++sizes[w.node_of[r]];
    u32 highest = 0;
    for (const u32 n : w.node_of) {  // numbered by their lowest rank
      CHECK(n <= highest);
      if (n == highest) ++highest;
    }
    for (const u32 s : sizes) {
      CHECK(s != 0);
      uneven += s != sizes[0];
    }
    CHECK(w.num_ranks() >= 2 && w.num_ranks() <= 64);
    CHECK_EQ(c.num_experts % w.num_ranks(), 0u);
    CHECK(w.max_in_flight >= 1 && w.max_in_flight <= kMaxSequenceInFlight);
    for (u32 r = 0; r < w.cell_of.size(); ++r)  // a cell lies within a node
      for (u32 other = 0; other < r; ++other)
        if (w.cell_of[r] == w.cell_of[other]) CHECK_EQ(w.node_of[r], w.node_of[other]);
    CHECK(w.num_cells() >= w.num_nodes() && w.num_cells() <= w.num_ranks());
    cut += w.num_cells() > w.num_nodes() && w.num_cells() < w.num_ranks();
    apart += w.num_cells() == w.num_ranks() && w.num_nodes() < w.num_ranks();
    if (w.shrink && w.num_nodes() > 1) CHECK_EQ(w.num_cells(), w.num_ranks());
    shrink += w.shrink;
    absences += c.absences();
    CHECK(w.shrink || c.leavings.empty());
    CHECK(c.leavings.size() < w.num_ranks());
    for (const Leaving& l : c.leavings) ++leavings[static_cast<u32>(l.kind)];
    single += w.num_nodes() == 1;
    lethal += c.lethal();
    calm += c.faults.empty();
    aged += w.age != 0;
    throughput += c.mode == Mode::kThroughput;
    tiny_ring += w.ring_capacity == 2;
    for (const FaultPlan& p : c.faults) CHECK(p.source != p.target && p.source < w.num_ranks());
  }
  CHECK(largest > 40 && uneven > 100 && single > 50 && lethal > 400 && calm > 1000 && aged > 1000);
  CHECK(cut > 50 && apart > 500 && shrink > 1000 && absences > 800);
  for (const u32 n : leavings) CHECK(n > 200);
  CHECK(throughput > 1500 && throughput < 2500 && tiny_ring > 200);
}

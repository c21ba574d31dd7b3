// The fixed seeds of the normal suite, in parts that fit a test's time limit; and the loop over seeds itself.
#include <stdexcept>

#include "native/check.h"
#include "simulation/batch.h"

namespace {

using namespace uccl;
using namespace uccl::simulation;

const std::atomic<bool> go_on{false};

void seeds(u64 first, u64 count, const Wish& wish) {
  const Totals t = run_seeds(first, count, wish, go_on);
  for (const auto& [seed, what] : t.failures) throw check::Failure("seed " + std::to_string(seed) + ": " + what);
  CHECK_EQ(t.seeds, count);
  CHECK(t.rows > (count == 1 ? 0 : 50 * count));
}

}  // namespace

TEST(simulation_batch_fixed_seeds_any) { seeds(1, 120, "any"); }
TEST(simulation_batch_fixed_seeds_rc) { seeds(1'000'000, 60, "rc"); }
TEST(simulation_batch_fixed_seeds_srd) { seeds(2'000'000, 60, "srd"); }
// Both modes, one of them on GPUs; two where a network disturbs, one where ranks leave. (More than 64 ranks once did not
// fit the oracle's notes of who was lost.)
TEST(simulation_batch_of_256_ranks_throughput) { seeds(4, 1, {"any", 256, 32}); }
TEST(simulation_batch_of_256_ranks_low_latency) { seeds(6, 1, {"any", 256, 32}); }
TEST(simulation_batch_of_256_ranks_that_leave) { seeds(3, 1, {"any", 256, 32}); }
// Faults of the simulator: a rank that was not told of what another did before its first spin missed its deadline; ranks
// that had heard of a death kept time going so that others did not see theirs pass; and time
// was moved by a whole timeout to come to a deadline that a block had begun a little late. And of the kernels: after a
// call had left out one rank at its deadline, its next wait ended at once; ranks that waited to send gave up a silent rank no sooner than others gave them up; and rows were waited for that nobody
// contributed any more, since the rank they were for had died meanwhile.
TEST(simulation_batch_seeds_that_once_failed) {
  for (const u64 seed :
       std::initializer_list<u64>{100'039'191, 200'024'917, 3842, 3946, 10'021, 146, 275, 529, 1'015'739, 1'016'230,
                                  1'032'432, 1'037'331, 1'044'427, 696'188'894'241})
    seeds(seed, 1, "any");
}

TEST(simulation_batch_adds_up) {
  const Totals t = run_seeds(500, 40, "any", go_on);
  CHECK_EQ(t.seeds, 40u);
  CHECK(t.low_latency > 5 && t.low_latency < 35 && t.lethal > 0 && t.faults > 10);
  CHECK(t.absences > 3 && t.absences < 30);
  CHECK(t.overtakes > 50 && t.deepest > 1 && t.parked > 0 && t.most_ranks > 4 && t.virtual_ns > 1'000'000);
  CHECK(t.finished > 50 && t.failed > 5);
  CHECK_EQ(t.trace, run_seeds(500, 40, "any", go_on).trace);
  const std::atomic<bool> stop{true};
  CHECK_EQ(run_seeds(500, 40, "any", stop).seeds, 0u);
  CHECK_THROWS(std::invalid_argument, run_seeds(1, 1, "ethernet", go_on));
  CHECK_EQ(explain_seed(500, "any"), std::string());
}

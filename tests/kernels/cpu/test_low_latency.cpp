// Warps of one lane give what warps of 32 give: whole rounds in which the first take the place of the second, in the same
// program. More at this width: the tests of kernels/low_latency once more (native_tests_wave1), and those of Buffer.
#include <atomic>

#include "kernels/cpu/low_latency.h"
#include "kernels/low_latency/calls.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

template <class Args>
void narrow(LowLatencyRank* rank, void (*run)(const Args&, const cpu::Shape&)) {
  rank->recording.replace<Args>([run](const Args& args, const LaunchShape& shape) {
    run(args, cpu::Shape{shape.grid, shape.warps, shape.threads});
  });
}

// A round's results are checked against the same expectations at every width.
void narrow_rounds(const WorldShape& shape, const LowLatencyCase& c, u64 rounds) {
  World world(shape);
  std::atomic<u64> rows = 0;
  world.run([&](u32 me) {
    LowLatencyRank rank(world, me, c);
    narrow(&rank, cpu::low_latency_dispatch_recv);
    narrow(&rank, cpu::low_latency_combine_send);
    narrow(&rank, cpu::low_latency_combine_reduce);
    narrow(&rank, cpu::low_latency_combine_recv);
    for (u64 round = 0; round < check::rounds(rounds); ++round) rows += low_latency_round(world, rank, c, round, me);
  });
  CHECK(rows > 0);
}

}  // namespace

TEST(cpu_low_latency_gives_the_same_rows_at_one_lane) {
  u64 number = 0;
  for (const auto& node_of : std::vector<std::vector<u32>>{{0}, {0, 0, 0}, {0, 0, 1, 1}})
    for (const RowFormat back : kCombineFormats) {
      if (!check::plays(number++)) continue;
      WorldShape shape;
      shape.node_of = node_of;
      shape.max_tokens = 13;
      shape.max_topk = 8;
      shape.hidden = 512;
      LowLatencyCase c;
      c.num_experts = 40 * shape.num_ranks();  // more than a search has neighbours
      c.back = back;
      c.format = back == RowFormat::kLogfmt ? RowFormat::kFp8 : RowFormat::kBf16;
      c.shape = LaunchShape{2, 3, 1, 7};
      narrow_rounds(shape, c, 8);
    }
}

TEST(cpu_low_latency_reduces_in_the_node_at_one_lane) {
  WorldShape shape;
  shape.node_of = {0, 0, 1, 1};
  shape.max_tokens = 13;
  shape.max_topk = 8;
  shape.hidden = 512;
  shape.reduces = true;
  LowLatencyCase c;
  c.reduces = true;
  for (const RowFormat back : kCombineFormats) {
    c.back = back;
    narrow_rounds(shape, c, 5);
  }
}

TEST(cpu_low_latency_combines_more_than_a_cache_has_room_for) {  // rows that are stored past the caches (copy_row_out)
  WorldShape shape;
  shape.node_of = {0, 0};
  shape.max_tokens = 256;
  shape.max_topk = 8;
  shape.hidden = 7168;
  LowLatencyCase c;
  c.num_experts = 16;
  c.shape = LaunchShape{2, 3, 1, 7};
  narrow_rounds(shape, c, check::rounds(6, 2));
}

// Low-latency combine, sending half: staging that is smaller than the grid, zero copy, logfmt on the wire, rows that
// leave while others are still being computed, and nothing published or read after a failure.
#include <map>
#include <thread>

#include "kernels/low_latency/calls.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

WorldShape shape_of(std::vector<u32> node_of, u32 hidden) {
  WorldShape shape;
  shape.node_of = std::move(node_of);
  shape.max_tokens = 14;
  shape.hidden = hidden;
  shape.max_topk = 4;
  return shape;
}

u64 bytes_written(const World& world) {
  u64 sum = 0;
  for (u32 r = 0; r < world.num_ranks(); ++r)
    for (const WorkerCounters& w : world.worker_counters(r)) sum += __atomic_load_n(&w.write_bytes, __ATOMIC_RELAXED);
  return sum;
}

// What computes a rank's rows beside its combine: rows of a block, then the block's signal, in order.
struct Computation {
  u32 experts, per_expert, block, value;
  Poisoned<u32> signals;
  Computation(const World& world, const LowLatencyCase& c, u32 block_rows, u32 signal_value)
      : experts(c.num_experts / world.num_ranks()),
        per_expert(static_cast<u32>(ceil_div(world.num_ranks() * world.shape().max_tokens, block_rows))),
        block(block_rows),
        value(signal_value),
        signals(Poisoned<u32>(u64{experts} * per_expert).zeroed()) {}
  void expect(LowLatencyRank* rank) const {
    rank->signals = signals.data();
    rank->signals_per_expert = per_expert;
    rank->signal_rows = block;
    rank->signal_value = value;
  }
  // Pairs with the acquire of await_computed. Twice: a signal may be counted up to its value.
  void give(u64 at) const {
    if (value > 1) __atomic_store_n(&signals[at], value - 1, __ATOMIC_RELEASE);
    __atomic_store_n(&signals[at], value, __ATOMIC_RELEASE);
  }
};

void copy_rows_of(const Computation& work, const Received& got, const LowLatencyRank& rank, const Poisoned<u16>& from,
                  u16* to) {
  const u64 rows = got.src_info.size() / 3 / work.experts;
  for (u32 e = 0; e < work.experts; ++e)
    for (u32 b = 0; b < work.per_expert; ++b) {
      for (u64 i = u64{b} * work.block; i < std::min<u64>((b + 1ull) * work.block, static_cast<u64>(got.count[e])); ++i)
        std::memcpy(to + (e * rows + i) * rank.row_stride(), &from[(e * rows + i) * rank.row_stride()],
                    2ull * rank.layout.hidden);
      work.give(u64{e} * work.per_expert + b);
    }
}

// A round whose rows are computed while they are sent.
void overlapped_round(World& world, LowLatencyRank& rank, const LowLatencyCase& c, u64 round, u32 me) {
  const u32 rows = world.num_ranks() * world.shape().max_tokens;
  const u32 blocks[] = {rows, 1, 5, 64};  // a signal an expert, a row, and so on
  const TokenInput in = low_latency_input(world, c, round, me);
  Received got(world, c);
  rank.dispatch_send(in);
  rank.dispatch_recv(&got);
  check_no_fault(world, me, "dispatch");
  Poisoned<u16> wanted(u64{c.num_experts} * world.shape().max_tokens * rank.row_stride()), x(wanted.size());
  fill_combine_rows(world, c, round, got, me, wanted.data(), rank.row_stride());
  const Computation work(world, c, blocks[round % 4], 1 + static_cast<u32>(round % 3));
  work.expect(&rank);
  u16* const to = c.zero_copy ? rank.zero_copy_rows() : x.data();
  std::thread computing([&] { copy_rows_of(work, got, rank, wanted, to); });
  rank.combine_send(got, x.data());
  computing.join();
  Poisoned<u16> out(u64{world.shape().max_tokens} * world.shape().hidden);
  rank.combine_recv(in, &out);
  check_no_fault(world, me, "combine");
  check_combined(world, c, round, me, out);
}

void overlapped_rounds(const WorldShape& shape, const LowLatencyCase& c, u64 rounds) {
  World world(shape);
  world.run([&](u32 me) {
    LowLatencyRank rank(world, me, c);
    for (u64 round = 0; round < rounds; ++round) overlapped_round(world, rank, c, round, me);
  });
}

// Every rank sends each of its tokens to both experts of rank 0.
TokenInput to_both_experts(u32 tokens, u32 hidden) {
  TokenInput in;
  in.num_tokens = tokens;
  in.topk = 2;
  for (u32 t = 0; t < tokens; ++t) in.topk_idx.insert(in.topk_idx.end(), {0, 1});
  in.weights.assign(2ull * tokens, 0.5f);
  in.x.assign(u64{tokens} * hidden, 0x3f80);
  return in;
}

// Rows of rank 0's combine that are at rank 1: counted by its proxy, or by who stores them there.
u64 rows_arrived(const World& world, bool remote) {
  const RankContext& c = world.context(0);
  if (remote) return world.word(world.control(1), c.control_layout.progress(Phase::kCombine, 0)) & low_bits(32);
  return __atomic_load_n(&c.peer_stats[1 * kPeerStats + static_cast<u32>(PeerStat::kRowsOut)], __ATOMIC_RELAXED);
}

// Spins until `done`, for at most 10 seconds.
template <class Done>
bool soon(Done done) {
  const u64 end = simt::now_ns() + 10'000'000'000ull;
  while (!done())
    if (simt::now_ns() > end) return false;
  return true;
}

}  // namespace

TEST(low_latency_combine_send_overlaps_with_what_computes_its_rows) {
  u64 seed = 200;
  for (const std::vector<u32>& nodes : {std::vector<u32>{0}, {0, 0, 0}, {0, 1}, {0, 1, 0, 2}})
    for (const u32 grid : {1u, 3u}) {
      WorldShape shape = shape_of(nodes, 72);
      shape.shuffle_seed = ++seed % 2 ? seed : 0;
      shape.num_rings = 1 + static_cast<u32>(seed % 3);
      LowLatencyCase c;
      c.seed = seed;
      c.num_experts = 12;
      c.shape = LaunchShape{grid, 2, 1, seed};
      overlapped_rounds(shape, c, 5);
    }
}

TEST(low_latency_combine_send_overlaps_in_every_form_of_rows) {
  for (const RowFormat back : kCombineFormats) {
    WorldShape shape = shape_of({0, 1, 1}, 512);
    LowLatencyCase c;
    c.num_experts = 6;
    c.zero_copy = back == RowFormat::kBf16;
    c.back = back;
    c.shape.grid = 2;
    shape.zero_copy_bytes = 2 * align_up(6ull * shape.max_tokens * (512 + 16) * 2, 128);
    overlapped_rounds(shape, c, 4);
  }
}

TEST(low_latency_combine_send_rows_are_there_before_the_next_signal) {
  // The trace: expert 0's rows, and none of expert 1's, are at rank 1 while expert 1 is still computing.
  constexpr u32 kTokens = 9;
  for (const bool remote : {false, true})
    for (const u32 grid : {1u, 2u}) {
      const WorldShape shape = shape_of({0, remote ? 1u : 0u}, 64);
      World world(shape);
      LowLatencyCase c;
      c.num_experts = 4;
      c.shape.grid = grid;
      std::vector<u64> trace;
      bool in_time = false;
      world.run([&](u32 me) {
        LowLatencyRank rank(world, me, c);
        Received got(world, c);
        rank.dispatch_send(me == 1 ? to_both_experts(kTokens, 64) : to_both_experts(0, 64));
        rank.dispatch_recv(&got);
        check_no_fault(world, me, "dispatch");
        const Poisoned<u16> x(u64{c.num_experts} * shape.max_tokens * shape.hidden);
        if (me == 1) return rank.combine_send(got, x.data());
        const u64 before = rows_arrived(world, remote);  // the stat also counts the dispatch's
        const Computation work(world, c, world.num_ranks() * shape.max_tokens, 1);
        work.expect(&rank);
        std::thread computing([&] {
          trace.push_back(rows_arrived(world, remote) - before);
          work.give(0);
          in_time = soon([&] { return rows_arrived(world, remote) - before >= kTokens; });
          trace.push_back(rows_arrived(world, remote) - before);
          work.give(1);
        });
        rank.combine_send(got, x.data());
        computing.join();
        check_no_fault(world, 0, "combine");
        const RankContext& c0 = world.context(0);
        CHECK(in_time && soon([&] {
                return 1 == (remote ? world.word(world.control(1), c0.control_layout.flag(Phase::kCombine, 0))
                                    : world.word(world.data(1), c0.signals.flag(Phase::kCombine, 0)));
              }));
      });
      CHECK_EQ(trace.size(), 2u);
      CHECK_EQ(trace[0], 0u);
      CHECK_EQ(trace[1], u64{kTokens});
    }
}

TEST(low_latency_combine_send_without_a_signal_names_the_expert) {
  // Values that are not the one waited for: too small, and memory that nobody set, which reads as negative.
  for (const u32 seen : {3u, 0xfffffff0u}) {
    const WorldShape shape = shape_of({0, 1}, 64);
    World world(shape);
    LowLatencyCase c;
    c.num_experts = 4;
    world.run([&](u32 me) {
      LowLatencyRank rank(world, me, c);
      Received got(world, c);
      rank.dispatch_send(me == 1 ? to_both_experts(5, 64) : to_both_experts(0, 64));
      rank.dispatch_recv(&got);
      check_no_fault(world, me, "dispatch");
      if (me == 1) return;
      const Computation work(world, c, 4, 7);
      work.expect(&rank);
      work.give(0), work.give(1);  // all five rows of expert 0
      work.give(work.per_expert);  // the first four of expert 1
      work.signals[work.per_expert + 1] = seen;  // but not the fifth
      const Poisoned<u16> x(u64{c.num_experts} * shape.max_tokens * shape.hidden);
      world.set_timeout(0, 100'000'000);
      rank.combine_send(got, x.data());
    });
    const Fault f = world.fault(0);
    CHECK(f.kind == FaultKind::kTimeout && f.phase == WaitPhase::kComputeSignal);
    CHECK_EQ(f.detail.word, DetailWord(DetailKind::kLocalExpert, 1).word);
    CHECK_EQ(f.expected, 7u);
    CHECK_EQ(f.seen, u64{seen});
    while (!world.rings_idle(0)) {}
    CHECK_EQ(world.word(world.control(1), world.context(0).control_layout.flag(Phase::kCombine, 0)), 0u);
  }
}

TEST(low_latency_combine_send_with_few_staging_rows) {
  u64 seed = 60;
  for (const u32 staging : {1u, 3u, 8u})
    for (const u32 grid : {1u, 3u}) {
      WorldShape shape = shape_of({0, 1, 0, 2}, 72);
      shape.staging_rows = staging;
      shape.num_rings = 1 + staging % 3;
      shape.shuffle_seed = ++seed % 2 ? seed : 0;
      LowLatencyCase c;
      c.seed = seed;
      c.num_experts = 8;
      c.shape = LaunchShape{grid, 2, 1, seed};
      low_latency_rounds(shape, c, 5);
    }
}

TEST(low_latency_combine_send_zero_copy) {
  for (const u32 hidden : {128u, 512u}) {
    WorldShape shape = shape_of({0, 1, 1}, hidden);
    shape.shuffle_seed = hidden;
    LowLatencyCase c;
    c.num_experts = 6;
    c.zero_copy = true;
    shape.zero_copy_bytes = 2 * align_up(6ull * shape.max_tokens * (hidden + hidden / 64 + 8) * 2, 128);
    low_latency_rounds(shape, c, 6);
  }
}

// Rows that the ranks of a node read where they are, beside ranks and rounds that copy theirs; the sums of other nodes too.
TEST(low_latency_combine_send_rows_that_stay) {
  u64 seed = 700;
  for (const auto& node_of : std::vector<std::vector<u32>>{{0, 0}, {0, 0, 0}, {0, 1, 1}, {0, 0, 1, 1, 1}})
    for (const bool reduces : {false, true})
      for (const bool zero_copy : {true, false}) {
        const u32 hidden = 320;
        WorldShape shape = shape_of(node_of, hidden);
        shape.shuffle_seed = ++seed;
        if (!check::plays(seed)) continue;
        shape.reduces = reduces && node_of.back() != 0;
        LowLatencyCase c;
        c.seed = seed;
        c.num_experts = 2 * shape.num_ranks();
        c.zero_copy = zero_copy;
        c.in_place = true;
        c.reduces = shape.reduces;
        c.shape = LaunchShape{1 + static_cast<u32>(seed % 3), 2, 1, seed};
        shape.zero_copy_bytes = 3 * align_up(u64{c.num_experts} * shape.max_tokens * (hidden + 8) * 2, 128);
        low_latency_rounds(shape, c, 12);
      }
}

TEST(low_latency_combine_send_encoded_rows_are_shorter) {
  std::map<RowFormat, u64> written;
  for (const RowFormat back : kCombineFormats) {
    WorldShape shape = shape_of({0, 1, 1}, 1024);
    LowLatencyCase c;
    c.num_experts = 6;
    c.back = back;
    World world(shape);
    world.run([&](u32 me) {
      LowLatencyRank rank(world, me, c);
      for (u64 round = 0; round < 5; ++round) low_latency_round(world, rank, c, round, me);
    });
    written[back] = bytes_written(world);
  }
  const RowFormat shorter[] = {RowFormat::kBf16, RowFormat::kLogfmt, RowFormat::kMxfp8, RowFormat::kNvfp4Row};
  for (u32 i = 1; i < 4; ++i) CHECK(written[shorter[i]] < written[shorter[i - 1]]);
  CHECK(written[RowFormat::kFp8] == written[RowFormat::kMxfp8]);  // a float for 128 channels, a byte for 32
}

TEST(low_latency_combine_send_coded_rows_over_many_rounds) {
  u64 seed = 60;
  const std::pair<RowFormat, u32> lengths[] = {
      {RowFormat::kFp8, 128},   {RowFormat::kFp8, 384},    {RowFormat::kFp8, 1152},    {RowFormat::kMxfp8, 32},
      {RowFormat::kMxfp8, 416}, {RowFormat::kMxfp8, 1120}, {RowFormat::kNvfp4Row, 64}, {RowFormat::kNvfp4Row, 1216}};
  for (const auto& [back, hidden] : lengths)
    for (const auto& nodes : {std::vector<u32>{0, 0, 0}, {0, 1, 2}, {0, 0, 1}, {0, 0, 1, 1, 1}}) {
      WorldShape shape = shape_of(nodes, hidden);
      shape.shuffle_seed = ++seed;
      if (!check::plays(seed)) continue;
      LowLatencyCase c;
      c.seed = seed;
      c.num_experts = 2 * shape.num_ranks();
      c.back = back;
      c.shape.grid = 1 + static_cast<u32>(seed % 3);
      low_latency_rounds(shape, c, 6);
    }
}

TEST(low_latency_combine_send_logfmt_units_of_512) {
  WorldShape shape = shape_of({0, 1}, 1536);
  shape.shuffle_seed = 9;
  LowLatencyCase c;
  c.num_experts = 4;
  c.back = RowFormat::kLogfmt;
  c.shape.grid = 2;
  low_latency_rounds(shape, c, 4);
}

TEST(low_latency_combine_send_after_a_failure_does_nothing) {
  // The dispatch before it has failed, so the layout it would read is nonsense.
  WorldShape shape = shape_of({0, 0, 1}, 64);
  shape.timeout_ns = 100'000'000;
  World world(shape);
  LowLatencyCase c;
  c.num_experts = 6;
  world.run({0}, [&](u32 me) {
    LowLatencyRank rank(world, me, c);
    const TokenInput in = low_latency_input(world, c, 1, me);
    Received got(world, c);
    rank.dispatch_send(in);
    rank.dispatch_recv(&got);
    CHECK(world.fault(0).phase == WaitPhase::kDispatchReceive);
    const Poisoned<u16> x(u64{c.num_experts} * shape.max_tokens * shape.hidden);
    rank.combine_send(got, x.data());
  });
  CHECK(world.fault(0).phase == WaitPhase::kDispatchReceive);
  CHECK_EQ(world.word(world.data(1), world.context(0).signals.flag(Phase::kCombine, 0)), 0u);
}

TEST(low_latency_combine_send_failure_publishes_nothing) {
  // The ranks dispatch once and rank 0 combines it three times; rank 1 never reads what the first two brought.
  for (const bool remote : {false, true}) {
    const WorldShape shape = shape_of({0, remote ? 1u : 0u}, 64);
    World world(shape);
    LowLatencyCase c;
    c.num_experts = 4;
    world.run([&](u32 me) {
      LowLatencyRank rank(world, me, c);
      const TokenInput in = low_latency_input(world, c, 0, me);
      Received got(world, c);
      rank.dispatch_send(in);
      rank.dispatch_recv(&got);
      check_no_fault(world, me, "dispatch");
      const Poisoned<u16> x(u64{c.num_experts} * shape.max_tokens * shape.hidden);
      for (u32 i = 0; me == 0 && i < 3; ++i) {
        if (i == 2) world.set_timeout(0, 100'000'000);
        rank.combine_send(got, x.data());
      }
    });
    const Fault f = world.fault(0);
    CHECK(f.kind == FaultKind::kTimeout && f.phase == WaitPhase::kCombineSend);
    CHECK_EQ(f.peer, 1u);
    while (!world.rings_idle(0)) {}
    const RankContext& c0 = world.context(0);
    CHECK_EQ(remote ? world.word(world.control(1), c0.control_layout.flag(Phase::kCombine, 0))
                    : world.word(world.data(1), c0.signals.flag(Phase::kCombine, 0)),
             2u);
  }
}

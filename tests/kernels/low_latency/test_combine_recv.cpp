// Low-latency combine, receiving half: weighted sums to the bit, repeated and unrouted experts, masked owners, an
// owner that never answers; rows that stay where they are until the last reader has read them.
#include <thread>

#include "kernels/low_latency/calls.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

WorldShape shape_of(std::vector<u32> node_of) {
  WorldShape shape;
  shape.node_of = std::move(node_of);
  shape.max_tokens = 11;
  shape.hidden = 136;
  shape.max_topk = 8;
  return shape;
}

// A round's rows are written over as soon as their set comes round again, which no rank's reading may outlast: here all
// ranks but one read as late as the kernels allow it, for themselves and for other nodes' owners.
void stay_for_late_readers(const std::vector<u32>& node_of) {
  WorldShape shape = shape_of(node_of);
  shape.hidden = 128;
  LowLatencyCase c;
  c.seed = 77;
  c.num_experts = 2 * shape.num_ranks();
  c.zero_copy = c.in_place = true;
  c.reduces = shape.reduces = std::set<u32>(node_of.begin(), node_of.end()).size() != 1;
  shape.zero_copy_bytes = 3 * align_up(u64{c.num_experts} * shape.max_tokens * 136 * 2, 128);
  World world(shape);
  world.run([&](u32 me) {
    LowLatencyRank rank(world, me, c);
    std::vector<std::pair<u64, TokenInput>> open;  // rounds whose receiving half is still to run
    u32 owed = 0;  // sums for other nodes' owners
    const auto catch_up = [&] {
      for (; owed != 0; --owed) rank.combine_reduce();
    };
    const auto receive = [&] {
      catch_up();
      const auto [received, in] = open.front();
      open.erase(open.begin());
      Poisoned<u16> out(u64{shape.max_tokens} * shape.hidden);
      rank.combine_recv(in, &out);
      check_no_fault(world, me, "combine");
      check_combined(world, c, received, me, out);
    };
    for (u64 round = 0; round < 24; ++round) {
      const TokenInput in = low_latency_input(world, c, round, me);
      Received got(world, c);
      catch_up();
      rank.dispatch_send(in);
      rank.dispatch_recv(&got);
      // Rank 2 writes its next rows while the others have yet to read those of two rounds ago.
      if (me != 2) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      if (open.size() == 2) receive();
      fill_combine_rows(world, c, round, got, me, rank.zero_copy_rows(), rank.row_stride());
      rank.combine_send(got, nullptr, &in);
      owed += c.reduces;
      open.push_back({round, in});
      if (me == 2) receive();
    }
    while (!open.empty()) receive();
  });
}

}  // namespace

TEST(low_latency_combine_recv_sums_over_many_rounds) {
  u64 seed = 70;
  for (const auto& node_of : std::vector<std::vector<u32>>{{0}, {0, 0, 0}, {0, 0, 1}, {0, 1, 1, 2, 2}}) {
    WorldShape shape = shape_of(node_of);
    shape.shuffle_seed = ++seed;
    shape.num_workers = shape.num_rings = 1 + static_cast<u32>(seed % 2);
    LowLatencyCase c;
    c.seed = seed;
    c.num_experts = 2 * shape.num_ranks();
    c.shape = LaunchShape{2, 2, 1, seed};
    for (const bool own_stay : {true, false}) {
      c.own_stay = own_stay;
      low_latency_rounds(shape, c, 7);
    }
  }
}

// What a caller may do with its rows between the halves: anything, unless it has said that they stay as they are.
TEST(low_latency_combine_recv_reads_own_rows_where_they_stay) {
  for (const bool own_stay : {true, false}) {
    const WorldShape shape = shape_of({0, 0});
    World world(shape);
    LowLatencyCase c;
    c.num_experts = 4;
    c.own_stay = own_stay;
    world.run([&](u32 me) {
      LowLatencyRank rank(world, me, c);
      TokenInput in = low_latency_input(world, c, 0, me);
      for (i64& e : in.topk_idx) e = 2 * me;  // all to this rank's own first expert
      Received got(world, c);
      rank.dispatch_send(in);
      rank.dispatch_recv(&got);
      Poisoned<u16> x(u64{c.num_experts} * shape.max_tokens * shape.hidden), out(u64{shape.max_tokens} * shape.hidden);
      for (u64 i = 0; i < x.size(); ++i) x[i] = 0x3f80;  // 1
      rank.combine_send(got, x.data());
      for (u64 i = 0; i < x.size(); ++i) x[i] = 0x4000;  // 2
      rank.combine_recv(in, &out);
      check_no_fault(world, me, "combine");
      for (u32 t = 0; t < in.num_tokens; ++t) {
        float sum = 0.0f;
        for (u32 k = 0; k < in.topk; ++k) sum += (own_stay ? 2.0f : 1.0f) * in.weights[t * in.topk + k];
        CHECK_EQ(out[u64{t} * shape.hidden], simt::f_to_bf16(sum));
      }
    });
  }
}

TEST(low_latency_combine_recv_rows_that_stay_outlive_late_readers) {
  for (const auto& node_of : std::vector<std::vector<u32>>{{0, 0, 0}, {0, 0, 1, 1}, {0, 0, 1, 1, 1}})
    stay_for_late_readers(node_of);
}

TEST(low_latency_combine_recv_takes_32_experts_a_token) {
  WorldShape shape = shape_of({0, 1});
  shape.max_topk = kMaxTopk;
  shape.max_tokens = 3;
  LowLatencyCase c;
  c.num_experts = 64;
  c.seed = 3;
  low_latency_rounds(shape, c, 9);
}

TEST(low_latency_combine_recv_leaves_masked_owners_out) {
  for (const auto& node_of : std::vector<std::vector<u32>>{{0, 0, 0}, {0, 0, 1}, {0, 1, 2}}) {
    WorldShape shape = shape_of(node_of);
    World world(shape);
    LowLatencyCase c;
    c.num_experts = 6;
    for (u32 r = 0; r < 2; ++r) world.mask(r)[2] = 1;
    world.run({0, 1}, [&](u32 me) {
      LowLatencyRank rank(world, me, c);
      for (u64 round = 0; round < 6; ++round) {
        const TokenInput in = low_latency_input(world, c, round, me);
        Received got(world, c);
        rank.dispatch_send(in);
        rank.dispatch_recv(&got);
        check_no_fault(world, me, "dispatch");
        check_received(world, c, round, me, got, {2});
        Poisoned<u16> x(u64{c.num_experts} * shape.max_tokens * shape.hidden),
            out(u64{shape.max_tokens} * shape.hidden);
        fill_combine_rows(world, c, round, got, me, x.data(), shape.hidden);
        rank.combine_send(got, x.data());
        rank.combine_recv(in, &out);
        check_no_fault(world, me, "combine");
        check_combined(world, c, round, me, out, {2});
      }
    });
  }
}

TEST(low_latency_combine_recv_names_a_missing_owner) {
  for (const auto& node_of : std::vector<std::vector<u32>>{{0, 0, 0}, {0, 0, 1}})
    for (const u32 grid : {1u, 2u}) {
      const WorldShape shape = shape_of(node_of);
      World world(shape);
      LowLatencyCase c;
      c.num_experts = 6;
      c.shape.grid = grid;
      std::vector<std::unique_ptr<LowLatencyRank>> ranks;
      for (u32 r = 0; r < 3; ++r) ranks.push_back(std::make_unique<LowLatencyRank>(world, r, c));
      world.run([&](u32 me) {
        const TokenInput in = low_latency_input(world, c, 0, me);
        Received got(world, c);
        ranks[me]->dispatch_send(in);
        ranks[me]->dispatch_recv(&got);
        check_no_fault(world, me, "dispatch");
        const Poisoned<u16> x(u64{c.num_experts} * shape.max_tokens * shape.hidden);
        if (me != 2) ranks[me]->combine_send(got, x.data());  // rank 2 has received and is gone
      });
      world.set_timeout(0, 100'000'000);
      world.run({0}, [&](u32 me) {
        Poisoned<u16> out(u64{shape.max_tokens} * shape.hidden);
        ranks[me]->combine_recv(low_latency_input(world, c, 0, me), &out);
        CHECK(out.untouched(0));
      });
      const Fault f = world.fault(0);
      CHECK(f.kind == FaultKind::kTimeout && f.phase == WaitPhase::kCombineReceive);
      CHECK_EQ(f.peer, 2u);
      CHECK_EQ(f.expected, 1u);
      CHECK_EQ(f.seen, 0u);
    }
}

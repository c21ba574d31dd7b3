// What a rank sums for itself: a row that is not among its tokens ends the call.
#include "kernels/throughput/calls.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

// A handle whose source tokens were written to: no sum may lack a row without an error.
TEST(throughput_own_sums_refuses_a_handle_that_was_written_to) {
  WorldShape shape;
  shape.unit_bytes = 4096;
  World world(shape);
  ThroughputCase c;
  c.num_experts = 1;
  world.run([&](u32 me) {
    u64 round = 0;
    while (taken_rows(world, c, round, me).size() < 3) ++round;
    const RoundPlan plan = round_plan(world, c, round);
    const RankInput in = throughput_input(world, c, round, me);
    ThroughputRank rank(world, me, c);
    auto [routing, got] = rank.receive(plan, in);
    check_no_fault(world, me, "dispatch");
    const CombineInput mine(world, c, round, me);
    Poisoned<u16> out(u64{in.num_tokens} * plan.combine_hidden);
    Poisoned<float> weights(u64{in.num_tokens} * plan.combine_topk);
    const i32 last = got.src_idx[got.capacity - 1];
    got.src_idx[got.capacity - 1] = 70000;
    rank.combine(
        plan, in.num_tokens, routing,
        {mine.x.data(), mine.weights.data(), got.src_idx.data(), nullptr, nullptr, out.data(), weights.data()});
    const Fault f = world.fault(0);
    CHECK(f.kind == FaultKind::kBadArrival && f.phase == WaitPhase::kCombineReceive);
    CHECK_EQ(f.peer, 0u);
    CHECK_EQ(f.expected, static_cast<u64>(last));
    CHECK_EQ(f.seen, 70000u);
  });
}

// A tail lies in the host's memory: it is read again only when all that it showed has been taken.
TEST(throughput_own_sums_ask_for_a_tail_once_for_all_that_it_shows) {
  WorldShape shape;
  shape.node_of = {0, 1};
  shape.unit_bytes = 4096;
  World world(shape);
  CombineArgs a{};
  a.rank = world.context(0);
  a.call.layout = world.throughput;
  a.call.shape = RowShape{16, 0, 0, 0, 0};
  a.call.geometry = StreamGeometry::make(shape.unit_bytes, 1, a.call.shape.bytes());
  const std::vector<u8> in_rank(2 * 64, 1);
  const u32 per_chunk = a.call.geometry.rows_per_chunk, node_rows[2] = {64, 64};
  a.call.is_token_in_rank = in_rank.data();
  a.call.node_rows = node_rows;
  a.call.num_tokens = 64;
  PartialState partials[2];
  a.partials = partials;
  u64* const tail = const_cast<u64*>(partial_stream(a.rank, a.call.layout, 1, 0).tail);
  simt::launch({1, 1, 0, 1, 0}, [&] {
    const WaitContext wait = wait_context(a.rank);
    const auto look = [&](u32 token) { return look_at_partials(a, wait, 0, token, false); };
    open_partials(a, 0);
    CHECK(look(0) == Step::kNotYet);
    *tail = 2;
    CHECK(look(0) == Step::kReady);
    *tail = 0;  // who reads it now finds nothing
    for (u32 token = 0; token < 2 * per_chunk; ++token) {
      CHECK(look(token) == Step::kReady);
      PlanEntry e;
      clear_entry(e);
      take_partials(a, 0, token, e);
      CHECK_EQ(e.num_partials, 1u);
    }
    CHECK(look(2 * per_chunk) == Step::kNotYet);
    *tail = a.call.geometry.num_slots + 3;  // more than there is room for
    CHECK(look(2 * per_chunk) == Step::kFailed);
  });
  CHECK(world.fault(0).kind == FaultKind::kBadArrival);
}

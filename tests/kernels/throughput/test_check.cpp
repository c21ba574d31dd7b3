// A layout that disagrees with topk_idx is found by the rank that gives it, and told to every other in the same call.
#include "kernels/throughput/calls.h"
#include "kernels/throughput/check.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

struct Lie {
  LayoutPart part;
  bool with_ids;
  void (*change)(RankInput&, Routing&);
};

// Rank 1's first token goes to rank 0 alone. What is wrong there is told of rank 1, whichever node the others are on.
const Lie kLies[] = {
    {LayoutPart::kLacksRank, true, [](RankInput&, Routing& r) { r.is_token_in_rank.data()[0] = 0; }},
    {LayoutPart::kNamesRank, true, [](RankInput&, Routing& r) { r.is_token_in_rank.data()[2] = 1; }},
    {LayoutPart::kLacksRank, true, [](RankInput& in, Routing&) { in.topk_idx[0] = 4; }},
    {LayoutPart::kTokensPerRank, true, [](RankInput&, Routing& r) { r.tokens_per_rank.data()[2] += 1000; }},
    {LayoutPart::kTokensPerRank, false, [](RankInput&, Routing& r) { r.is_token_in_rank.data()[2] = 1; }},
    {LayoutPart::kTokensPerRank, false, [](RankInput&, Routing& r) { r.tokens_per_rank.data()[0] -= 1; }},
    {LayoutPart::kTokensPerExpert, true, [](RankInput&, Routing& r) { r.tokens_per_expert.data()[5] += 1; }},
    {LayoutPart::kTokensPerExpert, true, [](RankInput& in, Routing&) { in.topk_idx[0] = 1; }},
    {LayoutPart::kTokensPerExpert, false, [](RankInput&, Routing& r) { r.tokens_per_expert.data()[0] = ~34u; }},
    {LayoutPart::kTokensPerExpert, false, [](RankInput&, Routing& r) { r.tokens_per_expert.data()[3] = 1u << 30; }},
};

// Rank 1 of {0, 0, last} lies; everybody's fault must say so.
void check_lie(u32 last, const Lie& lie, bool nodes_too) {
  WorldShape shape;
  shape.node_of = {0, 0, last};
  shape.unit_bytes = 2048;
  World world(shape);
  ThroughputCase c;
  c.num_experts = 6;
  world.run([&](u32 me) {
    RoundPlan plan = round_plan(world, c, 0);
    plan.topk = lie.with_ids ? c.max_topk : 0;
    RankInput in = throughput_input(world, c, 0, me);
    if (me == 1) {
      in.topk_idx[0] = 0;
      for (u32 k = 1; k < in.topk; ++k) in.topk_idx[k] = -1;
    }
    Routing routing(world, c, in, plan.channels);
    ThroughputRank rank(world, me, c);
    rank.layout(in, &routing);
    if (me == 1) lie.change(in, routing);
    rank.counts(plan, in, &routing);
    CHECK(routing.recv_total.untouched(0));
  });
  for (u32 me = 0; me < 3; ++me) {
    const Fault f = world.fault(me);
    CHECK(f.kind == FaultKind::kMismatch && f.phase == WaitPhase::kCounts);
    CHECK_EQ(f.peer, 1u);
    CHECK(f.detail.kind() == DetailKind::kLayoutPart);
    CHECK_EQ(f.detail.number(), static_cast<u32>(nodes_too ? LayoutPart::kTokensPerNode : lie.part));
  }
}

}  // namespace

TEST(throughput_check_every_lie_is_told_to_every_rank) {
  for (const u32 last : {0u, 1u})
    for (const Lie& lie : kLies) check_lie(last, lie, false);
}

TEST(throughput_check_counts_of_nodes) {
  for (const bool with_ids : {false, true})
    check_lie(1,
              {LayoutPart::kTokensPerNode, with_ids, [](RankInput&, Routing& r) { r.tokens_per_node.data()[1] -= 1; }},
              true);
}

// More ranks than the bits that repeats are found by: ranks 1 and 65 share one.
TEST(throughput_check_tells_ranks_apart_beyond_64) {
  WorldShape shape;
  shape.node_of.assign(66, 0);
  for (u32 r = 0; r < 66; ++r) shape.node_of[r] = r / 33;
  shape.unit_bytes = 0;
  RankTablesSettings s;
  s.node_of = shape.node_of;
  std::vector<u64> nothing(33, 0);
  s.data.assign(33, 0);
  s.control.assign(33, 0);
  s.num_rings = 0;
  const RankTables tables(s);
  const std::vector<i64> ids = {65, 1, 65, 1, 66, -1, -7, 0};  // an expert a rank
  std::vector<u8> in_rank(2 * 66);
  std::vector<i32> per_rank(66), per_expert(66);
  std::vector<u32> prefix(66), node_rows(2), words(LayoutFindings::words(66, 66));
  for (const u32 r : {1u, 65u}) in_rank[r] = 1;
  in_rank[66 + 0] = 1;
  for (const u32 r : {0u, 1u, 65u}) per_rank[r] = 1, prefix[r] = 1;
  per_expert[0] = 1;
  per_expert[1] = per_expert[65] = 2;
  LayoutCheck check{&tables.context(),
                    reinterpret_cast<LayoutFindings*>(words.data()),
                    ids.data(),
                    in_rank.data(),
                    per_rank.data(),
                    nullptr,
                    per_expert.data(),
                    prefix.data(),
                    node_rows.data(),
                    2,
                    4,
                    1,
                    1};
  const auto run = [&] {
    LayoutPart part = LayoutPart::kNone;
    simt::LaunchConfig config;
    config.block = 2 * simt::kWarp;
    simt::launch(config, [&] {
      begin_check(check);
      simt::sync_block();
      check_tokens(check);
      const LayoutPart found = finish_check(check);
      if (simt::tid() == 0) part = found;
    });
    return part;
  };
  CHECK(run() == LayoutPart::kNone);
  in_rank[65] = 0;  // not hidden behind rank 1
  CHECK(run() == LayoutPart::kLacksRank);
  CHECK_EQ(check.findings->first.place, 0u);
  CHECK_EQ(check.findings->first.right, 65u);
}

TEST(throughput_check_lets_masks_change_after_the_layout) {
  WorldShape shape;
  shape.node_of = {0, 1, 1};
  shape.unit_bytes = 2048;
  shape.shrink = shape.apart = true;
  for (const bool before : {false, true}) {  // rank 2 is masked on rank 0 before the layout, or after it
    World world(shape);
    ThroughputCase c;
    c.num_experts = 6;
    world.run({0, 1}, [&](u32 me) {
      RoundPlan plan = round_plan(world, c, 0);
      plan.topk = c.max_topk;
      const RankInput in = throughput_input(world, c, 0, me);
      Routing routing(world, c, in, plan.channels);
      ThroughputRank rank(world, me, c);
      if (before) world.mask(me)[2] = 1;
      rank.layout(in, &routing);
      world.mask(me)[2] = 1;
      rank.counts(plan, in, &routing);
      check_no_fault(world, me, "counts");
      CHECK(!routing.recv_total.untouched(0));
    });
  }
}

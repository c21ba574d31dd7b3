// Low-latency combine reduced in the node: sums to the bit over many shapes of nodes and many rounds without anything
// between, beside calls in the direct form, with signals and zero copy; what crosses the network, and whom a failure
// names.
#include <thread>

#include "kernels/low_latency/calls.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

using Nodes = std::vector<u32>;

WorldShape shape_of(Nodes node_of, u64 seed) {
  WorldShape shape;
  shape.node_of = std::move(node_of);
  shape.max_tokens = 13;
  shape.hidden = 136;
  shape.max_topk = 8;
  shape.reduces = true;
  shape.shuffle_seed = seed % 3 ? seed : 0;
  shape.num_workers = shape.num_rings = 1 + static_cast<u32>(seed % 2);
  return shape;
}

LowLatencyCase case_of(const WorldShape& shape, u64 seed) {
  LowLatencyCase c;
  c.seed = seed;
  c.num_experts = 2 * shape.num_ranks();
  c.reduces = true;
  c.shape = LaunchShape{1 + static_cast<u32>(seed % 3), 2, 1, seed};
  return c;
}

const std::vector<Nodes>& all_nodes() {
  static const std::vector<Nodes> nodes{{0, 0, 1, 1},       {0, 1, 2},          {0, 0, 1}, {0, 1, 0, 1, 1},
                                        {0, 0, 1, 1, 2, 2}, {0, 1, 1, 2, 2, 2}, {0, 0, 0}};
  return nodes;
}

// A row for each token and node of other ranks; weights, the ExpectHeader of the sums that come back, and one to every
// rank of another node, which says what call it is.
u64 expected_bytes(const World& world, const LowLatencyCase& c, u64 round) {
  const std::vector<u32>& node_of = world.shape().node_of;
  u64 bytes = 0;
  for (u32 r = 0; r < world.num_ranks(); ++r) {
    const TokenInput in = low_latency_input(world, c, round, r);
    u64 remote = 0;
    for (const u32 node : node_of) remote += node != node_of[r];
    bytes += (world.num_nodes - 1) * (LowLatencyLayout::weights_bytes(in.num_tokens, in.topk) + sizeof(ExpectHeader)) +
             remote * sizeof(ExpectHeader);
    for (u32 t = 0; t < in.num_tokens; ++t) {
      std::set<u32> nodes{node_of[r]};
      for (u32 k = 0; k < in.topk; ++k) {
        const i64 e = in.topk_idx[u64{t} * in.topk + k];
        if (e < 0 || e >= static_cast<i64>(c.num_experts)) continue;
        nodes.insert(node_of[static_cast<u32>(e) / (c.num_experts / world.num_ranks())]);
      }
      bytes += (nodes.size() - 1) * 2 * world.shape().hidden;
    }
  }
  return bytes;
}

bool idle(const World& world) {
  for (u32 r = 0; r < world.num_ranks(); ++r)
    if (!world.rings_idle(r)) return false;
  return true;
}

u64 bytes_written(const World& world) {
  u64 sum = 0;
  for (u32 r = 0; r < world.num_ranks(); ++r)
    for (const WorkerCounters& w : world.worker_counters(r)) sum += __atomic_load_n(&w.write_bytes, __ATOMIC_RELAXED);
  return sum;
}

}  // namespace

TEST(low_latency_combine_reduce_sums_over_many_rounds) {
  u64 seed = 300;
  for (const Nodes& nodes : all_nodes())
    for (const bool zero_copy : {false, true}) {
      WorldShape shape = shape_of(nodes, ++seed);
      if (!check::plays(seed)) continue;
      LowLatencyCase c = case_of(shape, seed);
      c.zero_copy = zero_copy;
      if (zero_copy) shape.zero_copy_bytes = 2 * (u64{c.num_experts} * shape.max_tokens * 144 * 2 + 128);
      low_latency_rounds(shape, c, 14);
    }
}

// In every format, rows of a length that it and no other one of them has.
TEST(low_latency_combine_reduce_encodes_sums) {
  u64 seed = 320;
  for (const auto& [back, hidden] : {std::pair{RowFormat::kLogfmt, 1536u},
                                     {RowFormat::kFp8, 384u},
                                     {RowFormat::kMxfp8, 288u},
                                     {RowFormat::kNvfp4Row, 320u}})
    for (const Nodes& nodes : {Nodes{0, 0, 1, 1}, Nodes{0, 1, 0, 1, 1}, Nodes{0, 1, 2}}) {
      WorldShape shape = shape_of(nodes, ++seed);
      if (!check::plays(seed)) continue;
      shape.hidden = hidden;
      LowLatencyCase c = case_of(shape, seed);
      c.back = back;
      low_latency_rounds(shape, c, 9);
    }
}

// The least that it takes: a token of one expert has its encoded sum beyond the rows of all tokens.
TEST(low_latency_combine_reduce_encodes_sums_where_tokens_have_one_or_two_experts) {
  WorldShape shape = shape_of({0, 0, 1, 1}, 2);
  shape.hidden = 128;
  shape.max_topk = 2;
  LowLatencyCase c = case_of(shape, 11);
  c.back = RowFormat::kFp8;
  low_latency_rounds(shape, c, 14);
}

TEST(low_latency_combine_reduce_takes_32_experts_a_token) {
  WorldShape shape = shape_of({0, 0, 1, 1}, 1);
  shape.max_topk = kMaxTopk;
  shape.max_tokens = 3;
  LowLatencyCase c = case_of(shape, 5);
  c.num_experts = 64;
  low_latency_rounds(shape, c, 9);
}

TEST(low_latency_combine_reduce_and_direct_calls_take_turns) {
  u64 seed = 340;
  for (const Nodes& nodes : {Nodes{0, 0, 1, 1}, Nodes{0, 0, 1}, Nodes{0, 1, 2}}) {
    WorldShape shape = shape_of(nodes, ++seed);
    shape.hidden = 512;
    World world(shape);
    world.run([&](u32 me) {
      LowLatencyCase c = case_of(shape, seed);
      LowLatencyRank rank(world, me, c);
      for (u64 round = 0; round < 20; ++round) {
        c.reduces = mix(seed + round) % 3 != 0;  // some direct calls in a row, and some reduced ones
        c.back = kCombineFormats[mix(seed * 7 + round) % 5];
        rank.which() = c;
        low_latency_round(world, rank, c, round, me);
      }
    });
  }
}

// Two calls on their way; halves of a round are as far apart as they may be.
TEST(low_latency_combine_reduce_with_two_calls_outstanding) {
  u64 seed = 360;
  for (const Nodes& nodes : {Nodes{0, 0, 1, 1}, Nodes{0, 0, 1}, Nodes{0, 1, 2}}) {
    const WorldShape shape = shape_of(nodes, ++seed);
    const LowLatencyCase c = case_of(shape, seed);
    World world(shape);
    world.run([&](u32 me) {
      LowLatencyRank rank(world, me, c);
      for (u64 round = 0; round < 12; round += 2) {
        std::deque<Received> got;
        std::deque<TokenInput> in;
        for (u64 i = 0; i < 2; ++i) {
          in.push_back(low_latency_input(world, c, round + i, me));
          got.emplace_back(world, c);
          rank.dispatch_send(in.back());
        }
        for (u64 i = 0; i < 2; ++i) rank.dispatch_recv(&got[i]);
        check_no_fault(world, me, "dispatch");
        std::deque<Poisoned<u16>> x;
        for (u64 i = 0; i < 2; ++i) {
          x.emplace_back(u64{c.num_experts} * shape.max_tokens * shape.hidden);
          fill_combine_rows(world, c, round + i, got[i], me, x.back().data(), shape.hidden);
          rank.combine_send(got[i], x.back().data(), &in[i]);
        }
        for (u64 i = 0; i < 2; ++i) rank.combine_reduce();
        for (u64 i = 0; i < 2; ++i) {
          Poisoned<u16> out(u64{shape.max_tokens} * shape.hidden);
          rank.combine_recv(in[i], &out);
          check_no_fault(world, me, "combine");
          check_combined(world, c, round + i, me, out);
        }
      }
    });
  }
}

TEST(low_latency_combine_reduce_is_replayed_from_a_recording) {
  const WorldShape shape = shape_of({0, 0, 1, 1}, 4);
  LowLatencyCase c = case_of(shape, 4);
  c.steady = true;
  World world(shape);
  world.run([&](u32 me) {
    LowLatencyRank rank(world, me, c);
    TokenInput in = low_latency_input(world, c, 0, me);
    Received got(world, c);
    Poisoned<u16> x(u64{c.num_experts} * shape.max_tokens * shape.hidden), out(u64{shape.max_tokens} * shape.hidden);
    const auto next = [&](u64 round, bool first) {
      const TokenInput fresh = low_latency_input(world, c, round, me);
      std::copy(fresh.topk_idx.begin(), fresh.topk_idx.end(), in.topk_idx.begin());
      std::copy(fresh.weights.begin(), fresh.weights.end(), in.weights.begin());
      std::copy(fresh.x.begin(), fresh.x.end(), in.x.begin());
      if (first) rank.dispatch_send(in), rank.dispatch_recv(&got);
      if (!first) rank.recording.replay(0, 2);
      fill_combine_rows(world, c, round, got, me, x.data(), shape.hidden);
      if (first) rank.combine_send(got, x.data(), &in), rank.combine_reduce(), rank.combine_recv(in, &out);
      if (!first) rank.recording.replay(2, 5);
      check_no_fault(world, me, "a replay");
      check_combined(world, c, round, me, out);
    };
    rank.recording.record(true);
    next(0, true);
    rank.recording.record(false);
    for (u64 round = 1; round < 8; ++round) next(round, false);
  });
}

TEST(low_latency_combine_reduce_sends_one_row_a_token_and_node) {
  u64 seed = 400;
  for (const Nodes& nodes : all_nodes()) {
    const WorldShape shape = shape_of(nodes, ++seed);
    const LowLatencyCase c = case_of(shape, seed);
    const u64 round = seed % 3;
    // One call: no announcement of what was read is due yet, which a combine would save.
    const auto play = [&](bool combines) {
      World world(shape);
      world.run([&](u32 me) {
        LowLatencyRank rank(world, me, c);
        if (combines) return static_cast<void>(low_latency_round(world, rank, c, round, me));
        Received got(world, c);
        rank.dispatch_send(low_latency_input(world, c, round, me));
        rank.dispatch_recv(&got);
        check_no_fault(world, me, "dispatch");
      });
      while (!idle(world)) std::this_thread::yield();
      return bytes_written(world);
    };
    const u64 sent = play(true) - play(false);
    CHECK_EQ(sent, expected_bytes(World(shape), c, round));
  }
}

namespace {

// Dispatch on all ranks, then what each does of a combine; rank 0's reducing or receiving half must fail.
Fault failed(const Nodes& nodes,
             const std::function<void(LowLatencyRank&, u32, const Received&, const TokenInput&)>& then,
             const std::function<void(World&, LowLatencyRank&, const TokenInput&)>& fails) {
  const WorldShape shape = shape_of(nodes, 6);
  World world(shape);
  LowLatencyCase c = case_of(shape, 6);
  std::vector<std::unique_ptr<LowLatencyRank>> ranks;
  for (u32 r = 0; r < shape.num_ranks(); ++r) ranks.push_back(std::make_unique<LowLatencyRank>(world, r, c));
  world.run([&](u32 me) {
    const TokenInput in = low_latency_input(world, c, 0, me);
    Received got(world, c);
    ranks[me]->dispatch_send(in);
    ranks[me]->dispatch_recv(&got);
    check_no_fault(world, me, "dispatch");
    then(*ranks[me], me, got, in);
  });
  world.set_timeout(0, 100'000'000);
  world.run({0}, [&](u32 me) { fails(world, *ranks[me], low_latency_input(world, c, 0, me)); });
  CHECK(world.aborted(0));
  return world.fault(0);
}

void sends(LowLatencyRank& rank, const Received& got, const TokenInput& in) {
  const Poisoned<u16> x(got.src_info.size() / 3 * 136);
  rank.combine_send(got, x.data(), &in);
}

// The first call of `peer` was waited for in vain.
void check_late(const Fault& f, WaitPhase phase, u32 peer) {
  CHECK(f.kind == FaultKind::kTimeout && f.phase == phase);
  CHECK_EQ(f.peer, peer);
  CHECK_EQ(f.expected, 1u);
  CHECK_EQ(f.seen, 0u);
}

}  // namespace

TEST(low_latency_combine_reduce_names_a_missing_contributor) {
  const Fault f = failed(
      {0, 0, 1, 1},
      [](LowLatencyRank& rank, u32 me, const Received& got, const TokenInput& in) {
        if (me != 1) sends(rank, got, in);  // rank 1 has received and is gone
      },
      [](World&, LowLatencyRank& rank, const TokenInput&) { rank.combine_reduce(); });
  check_late(f, WaitPhase::kCombineReduce, 1u);
}

TEST(low_latency_combine_reduce_names_an_owner_whose_weights_do_not_come) {
  const Fault f = failed(
      {0, 0, 1, 1},
      [](LowLatencyRank& rank, u32 me, const Received& got, const TokenInput& in) {
        if (me != 2) sends(rank, got, in);
      },
      [](World&, LowLatencyRank& rank, const TokenInput&) { rank.combine_reduce(); });
  check_late(f, WaitPhase::kCombineWeights, 2u);
}

TEST(low_latency_combine_reduce_names_a_host_whose_sums_do_not_come) {
  const Fault f = failed(
      {0, 0, 1, 1},
      [](LowLatencyRank& rank, u32 me, const Received& got, const TokenInput& in) {
        sends(rank, got, in);
        if (me != 2) rank.combine_reduce();
      },
      [](World&, LowLatencyRank& rank, const TokenInput& in) {
        Poisoned<u16> out(13ull * 136);
        rank.combine_recv(in, &out);
        CHECK(out.untouched(0));
      });
  check_late(f, WaitPhase::kCombineSums, 2u);
}

TEST(low_latency_combine_reduce_refuses_weights_that_do_not_fit) {
  for (const bool tokens : {false, true}) {
    const Fault f = failed(
        {0, 0, 1, 1},
        [](LowLatencyRank& rank, u32, const Received& got, const TokenInput& in) { sends(rank, got, in); },
        [tokens](World& world, LowLatencyRank& rank, const TokenInput&) {
          const RankContext& c = world.context(0);
          while (world.word(world.control(0), c.control_layout.flag(Phase::kWeights, 2)) == 0)
            std::this_thread::yield();
          const u32 slot = c.topology.landing_slot(2, c.topology.cell);
          auto* header = reinterpret_cast<WeightsHeader*>(world.data(0) + rank.layout.landing_weights(1, slot));
          (tokens ? header->num_tokens : header->topk) = tokens ? 14 : 9;
          rank.combine_reduce();
        });
    CHECK(f.kind == FaultKind::kMismatch && f.phase == WaitPhase::kCombineWeights);
    CHECK_EQ(f.peer, 2u);
    CHECK_EQ(f.detail.word, DetailWord(tokens ? MismatchField::kMaxTokens : MismatchField::kTopk).word);
    CHECK_EQ(f.expected, tokens ? 13u : 8u);
    CHECK_EQ(f.seen, tokens ? 14u : 9u);
  }
}

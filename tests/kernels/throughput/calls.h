// Drives the throughput kernels for one rank of a World, and says what they must have produced. Inputs are a function
// of (seed, round, rank), so every rank checks its own output alone.
#pragma once
#include <optional>

#include "kernels/launch/throughput.h"
#include "kernels/world.h"

namespace uccl::testing {

struct ThroughputCase {
  u64 seed = 1;
  u32 num_experts = 8, max_tokens = 12, max_topk = 4;
  u32 max_channels = 2;
  u32 max_hidden = 64;        // bf16 channels of a row, at most
  bool same_geometry = false;  // rows of one size in every round: nothing is drained
  bool steady = false;  // everything but the contents is the same in every round; outputs of worst-case size
  bool arenas = false;  // combine's rows lie in an arena, on one rank in four elsewhere, and are gone when it returns
  u32 warps = 2, threads = 1;
  bool gpu = false;  // launch shapes as a GPU's
};

// What all ranks agree on for one round.
struct RoundPlan {
  u32 channels, hidden, scale_words, topk, alignment;  // topk 0: no ids
  u32 combine_hidden, combine_topk;  // combine_topk 0: no weights
  bool worst;  // outputs of worst-case size, padded
  bool cached;  // the rows go out a second time with the same routing
  u32 biases;  // 0, 1 or 2
};
RoundPlan round_plan(const World& world, const ThroughputCase& c, u64 round);

struct RankInput {
  u32 num_tokens = 0, topk = 0;
  std::vector<i64> topk_idx;
  std::vector<float> topk_weights;
  std::vector<u16> x;  // [num_tokens, hidden]
  std::vector<u32> scales;  // [num_tokens, words] or [words, num_tokens]
  i64 scale_token_stride = 0, scale_stride = 0;
  bool goes_to(u32 token, u32 rank, u32 num_local_experts, u32 num_experts) const;
};
RankInput throughput_input(const World& world, const ThroughputCase& c, u64 round, u32 rank);

// The tables between the kernels of one round (uccl_ep/throughput/launch.py, Routing).
struct Routing {
  Routing(const World& world, const ThroughputCase& c, const RankInput& in, u32 num_channels);
  u32 channels;
  Poisoned<u32> tokens_per_rank, tokens_per_node, tokens_per_expert;
  Poisoned<u8> is_token_in_rank;
  Poisoned<u32> channel_prefix, node_rows, recv_tokens, recv_begin, stream_rows, reducer_tokens, rank_prefix,
      expert_counts, recv_total, findings, number;
  RoutingTables tables(const World& world, const ThroughputCase& c, u32 num_tokens) const;
};

struct Dispatched {
  Dispatched(u32 row_capacity, u32 hidden, u32 scale_words, u32 topk);
  u32 capacity;
  Poisoned<u16> x;
  Poisoned<u32> scales;
  Poisoned<i64> topk_idx;
  Poisoned<float> topk_weights;
  Poisoned<i32> src_idx;
};

class ThroughputRank {
 public:
  ThroughputRank(World& world, u32 rank, const ThroughputCase& c);

  // Each runs one kernel, and throughput_settle before it when the geometry changes. They check nothing.
  void layout(const RankInput& in, Routing* routing);
  void counts(const RoundPlan& plan, const RankInput& in, Routing* routing);
  // `topk`: of this call; 0 in a cached one. `pad`: rows beyond the count get index -1.
  void dispatch(const RoundPlan& plan, const RankInput& in, u32 topk, const Routing& routing, Dispatched* out,
                bool pad);
  // A whole dispatch: layout, counts and rows.
  struct Received {
    Routing routing;
    Dispatched rows;
  };
  Received receive(const RoundPlan& plan, const RankInput& in);
  struct Combining {
    const u16* x;
    const float* weights;
    const i32* src_idx;
    const u16* bias0;
    const u16* bias1;
    u16* out;
    float* out_weights;
    bool in_arena = false;
  };
  void combine(const RoundPlan& plan, u32 num_tokens, const Routing& routing, const Combining& rows);
  void settle(Direction direction, u32 num_channels, u32 row_bytes);

  u64 drains() const { return drains_; }  // launches of throughput_settle between two calls
  SettledGeometry& settled(Direction d) { return calls().settled(d); }
  u64& epoch() { return calls().epoch(); }  // count exchanges so far
  Recording recording;

 private:
  ThroughputCalls calls() const;
  StreamGeometry cut(const RowShape& shape, u32 channels, Direction direction);  // drained where it is another
  LaunchShape blocks(u32 grid) const;

  World& world_;
  u32 rank_;
  ThroughputCase case_;
  u64 drains_ = 0;
  Poisoned<u64> workspace_;
  std::optional<StreamGeometry> last_[kNumDirections];
};

RowShape dispatch_shape(const RoundPlan& plan, u32 topk);

// One row that rank `me` takes in a round: (source, token), in the order of the contract.
struct Taken {
  u32 source, token;
};
std::vector<Taken> taken_rows(const World& world, const ThroughputCase& c, u64 round, u32 me);

// Throw check::Failure that names what differs.
void check_layout(const World& world, const ThroughputCase& c, u64 round, u32 me, const Routing& got);
void check_counts(const World& world, const ThroughputCase& c, u64 round, u32 me, const Routing& got);
void check_dispatched(const World& world, const ThroughputCase& c, u64 round, u32 me, const Dispatched& got, u32 topk);

// A rank's combine rows for a round, and what its own tokens add up to.
struct CombineInput {
  CombineInput(const World& world, const ThroughputCase& c, u64 round, u32 me);
  std::vector<u16> x;
  std::vector<float> weights;
  std::vector<u16> bias[2];
};
void check_combined(const World& world, const ThroughputCase& c, u64 round, u32 me, const Poisoned<u16>& got,
                    const Poisoned<float>& weights);

// One whole round of one rank, which returns how many rows were compared, and `rounds` of them on every rank without
// anything between, which returns how many drains rank 0 had.
u64 throughput_round(World& world, ThroughputRank& rank, const ThroughputCase& c, u64 round, u32 me);
u64 throughput_rounds(const WorldShape& shape, const ThroughputCase& c, u64 rounds, u64 few = 4);

}  // namespace uccl::testing

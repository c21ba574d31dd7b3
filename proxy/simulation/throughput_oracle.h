// What throughput dispatch and combine must produce, in plain loops: no channel, no chunk, no ring, no network. Inputs
// and what all ranks agree on for a round are drawn here too.
#pragma once
#include <memory>

#include "kernels/layout/throughput.h"
#include "simulation/attendance.h"
#include "simulation/case.h"
#include "simulation/values.h"

namespace uccl::simulation {

// What all ranks agree on for one round.
struct RoundPlan {
  u32 channels, hidden, scale_words, topk, alignment;  // topk 0: no ids
  u32 combine_hidden, combine_topk;                    // combine_topk 0: no weights
  bool worst;   // outputs of worst-case size, padded
  bool cached;  // the rows go out a second time with the same routing
  u32 biases;   // 0, 1 or 2
};
RowShape dispatch_shape(const RoundPlan& plan, u32 topk);
RowShape combine_shape(const RoundPlan& plan);

struct ThroughputInput {
  u32 num_tokens = 0, topk = 0;
  std::vector<i64> topk_idx;
  std::vector<float> topk_weights;
  std::vector<u16> x;       // [num_tokens, hidden]
  std::vector<u32> scales;  // [num_tokens, words] or [words, num_tokens]
  i64 scale_token_stride = 0, scale_stride = 0;
  std::vector<u8> goes_to;  // [num_tokens, ranks]
};

// Where the kernels of one round left their tables and rows; C = channels.
struct CountsGot {
  const u32 *recv_tokens, *recv_begin, *channel_prefix, *rank_prefix, *expert_counts;
  u32 recv_total, channels;
};
struct DispatchGot {
  const Buffer<u16>& x;
  const Buffer<u32>& scales;
  const Buffer<i64>& topk_idx;
  const Buffer<float>& topk_weights;
  const Buffer<i32>& src_idx;
  u32 topk;  // of this call
};
struct Taken {
  u32 source, token;
};

class ThroughputOracle {
 public:
  explicit ThroughputOracle(const Case& c) : case_(c) {}

  const RoundPlan& plan(u64 round);
  const ThroughputInput& input(u64 round, u32 rank);
  // Rows that `rank` takes: by source, then token.
  const std::vector<Taken>& taken(u64 round, u32 rank);
  struct CombineInput {
    std::vector<u16> x;          // [rows, combine_hidden]
    std::vector<float> weights;  // [rows, combine_topk]
    std::vector<u16> bias[2];    // [num_tokens, combine_hidden]
  };
  CombineInput combine_input(u64 round, u32 rank);
  struct Combined {
    std::vector<u16> x;          // [num_tokens, combine_hidden]
    std::vector<float> weights;  // [num_tokens, combine_topk]
  };
  Combined combined(u64 round, u32 rank);
  // Of one token, without the rows of ranks that are gone.
  Combined combined_token(u64 round, u32 rank, u32 token, const Presences& from = {});

  // Throw Violation (driver.h) that names the first that differs; return how many rows were compared. `left_out` (by
  // rank, or empty): whom the rank had left out when the call began; `from`: of whom it must have heard.
  struct LayoutGot {
    const u8* is_token_in_rank;
    const u32 *per_rank, *per_node, *per_expert;
  };
  void check_layout(u64 round, u32 rank, const LayoutGot& got, const std::vector<u8>& left_out = {});
  // From here on, `taken` is without the rows of ranks whose counts did not come.
  void check_counts(u64 round, u32 rank, const CountsGot& got, const std::vector<u8>& left_out = {},
                    Presences from = {});
  u64 check_dispatched(u64 round, u32 rank, const DispatchGot& got, const Presences& from = {});
  u64 check_combined(u64 round, u32 rank, const Buffer<u16>& got, const Buffer<float>& weights,
                     const Presences& from = {});

 private:
  struct Round {
    RoundPlan plan;
    std::vector<std::unique_ptr<ThroughputInput>> inputs;
    std::vector<std::unique_ptr<std::vector<Taken>>> taken;
  };
  Round& at(u64 round);
  RoundPlan draw_plan(u64 round) const;
  void draw(u64 round, u32 rank, ThroughputInput* in);
  void check_row(u64 round, u32 rank, const DispatchGot& got, u64 at);
  bool is_owed(u64 round, const DispatchGot& got, u64 at);
  u64 combine_key(u64 round, u32 holder, u32 source, u32 token) const;
  u32 local_experts() const { return case_.num_experts / case_.world.num_ranks(); }

  const Case& case_;
  std::vector<std::unique_ptr<Round>> rounds_;
};

}  // namespace uccl::simulation

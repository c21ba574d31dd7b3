// What low-latency dispatch and combine must produce, in plain loops: no lane, no layout, no epoch, no network. Inputs
// are drawn here too, a function of (seed, round, rank).
#pragma once
#include <memory>

#include "simulation/attendance.h"
#include "simulation/case.h"
#include "simulation/values.h"

namespace uccl::simulation {

// What one rank dispatches in one round.
struct LowLatencyInput {
  u32 num_tokens = 0, topk = 0;
  std::vector<i64> topk_idx;   // [num_tokens, topk]; -1 or out of range: not routed
  std::vector<float> weights;  // [num_tokens, topk]
  std::vector<u16> x;          // bf16 [num_tokens, hidden]
};

// One dispatch as its kernel left it (kernels/low_latency/dispatch_recv.h).
struct Received {
  const u8* x;
  const u32* scales;
  const i32 *count, *src_info;
  const i64* layout_range;
  u64 x_bytes;
};

class LowLatencyOracle {
 public:
  explicit LowLatencyOracle(const Case& c) : case_(c) {}

  // Uneven token counts (none and the most among them), repeats, nothing routed, one expert for all, ids out of range.
  const LowLatencyInput& input(u64 round, u32 rank);
  // The rows that the experts of `rank` send back, at the places of `from`; `x` is [L, P, row_stride].
  void fill_combine_rows(u64 round, u32 rank, const Received& from, u16* x, u32 row_stride) const;

  // Return how many rows were compared; throw Violation (driver.h) that names the first that differs. `from`: whose rows
  // must be there; `owners`: whose experts must have sent theirs back.
  u64 check_received(u64 round, u32 rank, const Received& got, Presences from = {});
  u64 check_combined(u64 round, u32 rank, const Buffer<u16>& got, const Presences& owners = {});

  // ---- what must come out, also for a test against uccl_ep.reference.calls ------------------------------------------------
  struct Row {
    u32 source, token, k;
  };
  // Of one expert: by source, then token; a token that repeats an expert counts once.
  std::vector<Row> rows_of(u64 round, u32 expert, const Presences& from = {});
  std::vector<u16> combine_row(u64 round, u32 expert, u32 source, u32 token) const;
  std::vector<u16> combined(u64 round, u32 rank);  // bf16 [num_tokens, hidden]
  // Of one token, without what the experts of ranks that are gone would have sent.
  std::vector<u16> combined_token(u64 round, u32 rank, u32 token, const Presences& owners = {});

 private:
  u64 combine_key(u64 round, u32 expert, u32 source, u32 token) const;
  void draw(u64 round, u32 rank, LowLatencyInput* in) const;

  const Case& case_;
  std::vector<std::vector<std::unique_ptr<LowLatencyInput>>> inputs_;  // [round][rank]
};

}  // namespace uccl::simulation

// Drives the low-latency kernels for one rank of a World, and says what they must have produced. Inputs are a
// function of (seed, round, rank), so every rank checks its own output alone.
#pragma once
#include <deque>
#include <set>
#include <string>

#include "kernels/launch/low_latency.h"
#include "kernels/world.h"

namespace uccl::testing {

// How rows of combine may travel.
inline constexpr RowFormat kCombineFormats[] = {RowFormat::kBf16, RowFormat::kLogfmt, RowFormat::kFp8,
                                                RowFormat::kMxfp8, RowFormat::kNvfp4Row};

struct LowLatencyCase {
  u64 seed = 1;
  u32 num_experts = 8;
  RowFormat format = RowFormat::kBf16;
  bool round_scale = false, zero_copy = false;
  RowFormat back = RowFormat::kBf16;  // how rows of combine travel
  bool reduces = false;  // in the node; the world's shape has room for it
  bool in_place = false;  // zero-copy rows are read where they are by their node; the world has room for three sets
  bool own_stay = true;  // rows of a rank's own tokens are read where they are, unless encoded
  u32 batch = 4;  // tokens that a warp stages before it sends
  float global_scale = 16.0f;  // of kNvfp4
  bool steady = false;  // as many tokens and as large a top-k in every round
  bool gpu = false;  // launch shapes as a GPU's: many warps, several a row where rows are few
  LaunchShape shape{};
};

// What one rank dispatches in one round.
struct TokenInput {
  u32 num_tokens = 0, topk = 0;
  std::vector<i64> topk_idx;   // [num_tokens, topk]
  std::vector<float> weights;  // [num_tokens, topk]
  std::vector<u16> x;          // bf16 [num_tokens, hidden]
};
// Uneven token counts (0 and the maximum among them), top-k from 1 to the maximum, and by round: ordinary routing,
// repeated experts, nothing routed, one expert for all, ids out of range.
TokenInput low_latency_input(const World& world, const LowLatencyCase& c, u64 round, u32 rank);

// Outputs of one dispatch, as DispatchReceiveArgs has them.
struct Received {
  Received(const World& world, const LowLatencyCase& c);
  Poisoned<u8> x;
  Poisoned<u32> scales;
  Poisoned<i32> count, src_info;
  Poisoned<i64> layout_range;
};

class LowLatencyRank {
 public:
  LowLatencyRank(World& world, u32 rank, const LowLatencyCase& c);

  // Each does the next call of its kind; a receiving half belongs to the oldest call that has none yet, or to the
  // youngest. They check nothing: a failure is in World::fault.
  void dispatch_send(const TokenInput& input);
  void dispatch_recv(Received* out, bool youngest = false);
  // `x`: bf16 [L, P, row stride]; ignored with zero copy, whose rows are written to `zero_copy_rows()` before.
  // `input`: whose weights hosts are told, where rows are reduced in the node.
  void combine_send(const Received& from, const u16* x, const TokenInput* input = nullptr);
  void combine_reduce();  // of the oldest call that has none yet
  void combine_recv(const TokenInput& input, Poisoned<u16>* out);
  // What the next combine_send waits for, set before it: see CombineSendArgs. Null: nothing.
  const u32* signals = nullptr;
  u32 signals_per_expert = 1, signal_rows = 1, signal_value = 0;
  // Where the next combine_send reads its rows with zero copy.
  u16* zero_copy_rows() const;
  const u8* const* registered() const;  // registered memory of the node's ranks, where their rows may stay
  const LowLatencyState& state() const;
  Recording recording;

  u32 row_stride() const;  // elements between combine rows
  LowLatencyCase& which() { return case_; }  // of the calls from now on
  LowLatencyLayout layout;  // the world's; a test of disagreeing ranks changes it
  // Outputs that are added to over all calls.
  Poisoned<i32> cumulative_stats;
  Poisoned<i64> wait_stats;

 private:
  using Words = std::shared_ptr<Poisoned<u64>>;  // of a call, until its receiving half has run
  struct Sent {
    CombineSendArgs args;
    Words words;
  };
  LowLatencyCalls calls() const;

  World& world_;
  u32 rank_;
  LowLatencyCase case_;
  // Those that have no receiving half yet.
  std::deque<Words> dispatches_open_;
  std::deque<Sent> combines_open_, reductions_open_;
  u64 num_combines_ = 0;
  Poisoned<u64> workspace_;
};

// Throws check::Failure that names what differs. `masked`: ranks that count as absent.
void check_received(const World& world, const LowLatencyCase& c, u64 round, u32 me, const Received& got,
                    const std::set<u32>& masked = {});
void check_combined(const World& world, const LowLatencyCase& c, u64 round, u32 me, const Poisoned<u16>& got,
                    const std::set<u32>& masked = {});
// The rows that expert owner `me` sends back in a round, at the places of `from`.
void fill_combine_rows(const World& world, const LowLatencyCase& c, u64 round, const Received& from, u32 me, u16* x,
                       u32 row_stride);

// One whole round of one rank: dispatch, checks, combine, checks. Returns how many rows were compared.
u64 low_latency_round(World& world, LowLatencyRank& rank, const LowLatencyCase& c, u64 round, u32 me);
// `rounds` of them on every rank, without anything between.
void low_latency_rounds(const WorldShape& shape, const LowLatencyCase& c, u64 rounds);

}  // namespace uccl::testing

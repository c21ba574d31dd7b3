// Low-latency combine, receiving half: waits for every rank, then sums each token's rows in ascending k with one
// rounding at the end: acc = fma(row, weight, acc) in fp32 (facts B.1). What another node has summed (combine_reduce.h)
// is one row with weight 1, at its lowest k.
#pragma once
#include "kernels/low_latency/combine_rows.h"
#include "kernels/low_latency/common.h"

namespace uccl {

struct CombineReceiveArgs {
  RankContext rank;
  LowLatencyCall call;
  u16* out;  // bf16 [num_tokens, hidden]
  const i64* topk_idx;  // [num_tokens, topk], as dispatched
  const float* weights;  // [num_tokens, topk]
  i64* wait_stats;  // [N] ns, added to, or null
  u32 num_tokens, topk;
  u32 format;  // RowFormat
  u32 zero_copy;  // the sending half's rows were read where they lay: they may be overwritten when this one has run
  const u16* own_rows;  // the sending half's x where own_stay; else null
  u64 own_stride;  // elements between its rows
  const u8* const* registered;  // as row_in_memory's, registered memory of the node's ranks; null: no rows stay there
};
struct CombineReceiveShared {
  const u16* rows[kMaxBlockWarps][kMaxTopk];
  float weights[kMaxBlockWarps][kMaxTopk];
  u32 last;
};

// What says that everything of a rank is here: its flag, null where nothing is waited for, and what to wait for; of
// another node's rank also its ExpectHeader.
struct Awaited {
  const u64* flag;
  WaitSite site;
  const ExpectHeader* announced;
};
DEV Awaited awaited(const CombineReceiveArgs& a, const Turn& turn, u32 r) {
  const TopologyView& topology = a.rank.topology;
  WaitSite site{WaitPhase::kCombineReceive, r, {}, turn.epoch};
  if (is_sent(a.rank, a.call, r)) return Awaited{nullptr, site, nullptr};
  if (topology.is_local(r)) return Awaited{rows_flag(a.rank, turn.epoch, r), site, nullptr};
  // Of a node that sums its rows only this rank's landing rank there sends.
  if (a.call.reduces && (topology.is_absent(r) || topology.landing_rank(topology.rank, topology.cell_of[r]) != r))
    return Awaited{nullptr, site, nullptr};
  if (a.call.reduces) site.phase = WaitPhase::kCombineSums;
  site.expected = turn.number;
  const Phase phase = a.call.reduces ? Phase::kReduced : Phase::kCombine;
  u8* const control = own_control(a.rank);
  return Awaited{flag_beside(a.rank, control, phase, turn.number, r), site,
                 announced_by(a.rank, control, phase, turn.number, r)};
}

// A thread a rank, where sums of a node come from its landing ranks only: what the other ranks of other nodes are
// called with comes by itself. Before sums are waited for, which a landing rank in another call does not send. Ranks
// that this one stands for are left out: their weights say it, and have been compared by the sum.
DEV bool compare_calls(const CombineReceiveArgs& a, const Turn& turn) {
  const TopologyView& topology = a.rank.topology;
  u8* const control = own_control(a.rank);
  for (u32 r = simt::tid(); r < topology.num_ranks; r += simt::ntid()) {
    if (topology.is_local(r) || topology.is_absent(r) || topology.landing_rank(r, topology.cell) == topology.rank)
      continue;
    const u64* const flag = flag_beside(a.rank, control, Phase::kWeights, turn.number, r);
    const WaitSite site{WaitPhase::kCombineWeights, r, {}, turn.number};
    bool absent;
    if (!wait_for_flag(a.rank, turn.wait, site, flag, turn.number, &absent)) return false;
    const ExpectHeader* const announced = announced_by(a.rank, control, Phase::kWeights, turn.number, r);
    if (!absent && !in_same_call(a.rank, turn, Phase::kCombine, site, announced)) return false;
  }
  return true;
}

// Whole block, in ask_once: everything that any rank sent for this epoch is here, or that rank is masked; a thread a
// rank.
DEV bool await_combine(const CombineReceiveArgs& a, const Turn& turn) {
  const bool network_reads = a.zero_copy && a.rank.topology.num_nodes > 1 && !a.call.reduces;
  bool good = !network_reads || await_rings(a.rank, turn.wait, WaitPhase::kStagingReuse);
  if (a.call.reduces) good = compare_calls(a, turn) && good;
  for (u32 r = simt::tid(); r < a.rank.topology.num_ranks; r += simt::ntid()) {
    const Awaited from = awaited(a, turn, r);
    if (from.flag == nullptr) continue;
    good = wait_and_count(a.rank, turn.wait, from.site, from.flag, a.wait_stats) &&
           (masked(a.rank, r) || in_same_call(a.rank, turn, Phase::kCombine, from.site, from.announced)) && good;
  }
  return good;
}

// One lane: expert `e` takes part, and its rows are there.
DEV bool takes_part(const CombineReceiveArgs& a, i64 e) {
  return e >= 0 && e < static_cast<i64>(a.call.num_experts) &&
         !masked(a.rank, static_cast<u32>(e) / a.call.num_local_experts);
}
// One lane: the rows of ids[k]'s node came as one sum, in the slot of the lowest k of that node.
DEV bool is_summed(const CombineReceiveArgs& a, const i64* ids, u32 k, bool* lowest) {
  const TopologyView& topology = a.rank.topology;
  const u32 node = topology.node_of[static_cast<u32>(ids[k]) / a.call.num_local_experts];
  if (!a.call.reduces || node == topology.node) return false;
  *lowest = true;
  for (u32 i = 0; i < k; ++i)
    if (takes_part(a, ids[i]) && topology.node_of[static_cast<u32>(ids[i]) / a.call.num_local_experts] == node)
      *lowest = false;
  return true;
}

// One lane: a row of `rank`'s: in the slot, or where the slot says that it stays. Null: the slot says what cannot be.
DEV const u16* find_row(const CombineReceiveArgs& a, u32 rank, const u8* slot) {
  const TopologyView& topology = a.rank.topology;
  const RowFormat format = static_cast<RowFormat>(a.format);
  if (rank == topology.rank && a.own_rows != nullptr) {
    const u64 at = *reinterpret_cast<const u64*>(slot);
    const u64 most = static_cast<u64>(a.call.num_local_experts) * topology.num_ranks * a.call.layout.max_tokens;
    return at < most ? a.own_rows + at * a.own_stride : nullptr;
  }
  if (a.registered != nullptr && format == RowFormat::kBf16 && topology.is_local(rank) && rank != topology.rank)
    return row_of_mark(topology, a.registered, rank, slot, a.call.layout.hidden);
  if (format == RowFormat::kLogfmt && !logfmt_is_whole(slot, a.call.layout.hidden)) return nullptr;
  return reinterpret_cast<const u16*>(slot + LowLatencyLayout::row_in_slot(format));
}

// One warp: the rows of a token that take part, compacted in ascending k. A repeated expert was sent once. kNoRows: a
// slot says what no rank writes there, and the call has failed. `skipped`: bytes of each row before what is wanted of it.
inline constexpr u32 kNoRows = ~0u;
DEV u32 gather_rows(const CombineReceiveArgs& a, const Turn& turn, u32 token, u32 skipped, const u16** rows,
                    float* weights) {
  const u64 first = static_cast<u64>(token) * a.topk;
  const i64* const ids = a.topk_idx + first;
  u32 count = 0;
  bool found = true;
  for (u32 base = 0; base < a.topk; base += simt::kWarp) {
    const u32 k = base + simt::lane();
    bool use = k < a.topk && takes_part(a, ids[k]);
    u32 sent = 0;
    float weight = 0;
    if (use) {
      weight = a.weights[first + k];
      if (is_summed(a, ids, k, &use)) weight = 1;  // its weights are in the sum
      while (sent < k && ids[sent] != ids[k]) ++sent;
    }
    const simt::mask_t taking = simt::ballot(use);
    if (use) {
      const u32 at = count + simt::popcount(taking & simt::lane_mask_lt());
      const u8* const slot = own_data(a.rank) + a.call.layout.combine_slot(turn.epoch, first + sent);
      const u32 rank = static_cast<u32>(ids[k]) / a.call.num_local_experts;
      const u16* const row = find_row(a, rank, slot);
      rows[at] = reinterpret_cast<const u16*>(reinterpret_cast<const u8*>(row) + skipped);
      weights[at] = weight;
      if (row == nullptr)
        found = bad_arrival(turn.wait, WaitSite{WaitPhase::kCombineReceive, rank, {}, 0},
                            *reinterpret_cast<const u64*>(slot));
    }
    count += simt::popcount(taking);
  }
  simt::sync_warp();
  return simt::ballot(!found) == 0 ? count : kNoRows;
}

KERNEL KERNEL_BOUNDS(kMaxBlockLanes) low_latency_combine_recv(CombineReceiveArgs a) {
  CombineReceiveShared& shared = simt::smem<CombineReceiveShared>();
  const Turn turn = begin_receive(a.rank, a.call, Phase::kCombine);
  if (!ask_once(a.call, turn, [&] { return await_combine(a, turn); })) return;
  const u32 hidden = a.call.layout.hidden;
  const u16** rows = shared.rows[simt::warp()];
  float* weights = shared.weights[simt::warp()];
  // A lane has as many loads side by side as there are rows.
  const RowFormat format = static_cast<RowFormat>(a.format);
  const RowCut cut = cut_row(a.call, a.num_tokens, grid_warps(), row_grain(format, hidden));
  for (u32 u = grid_warp(); u < a.num_tokens * cut.pieces; u += grid_warps()) {
    const u32 token = u / cut.pieces, piece = u % cut.pieces;
    const RowPart part{format, hidden, cut.begin(piece), cut.size(piece, hidden)};
    const u32 count = gather_rows(a, turn, token, part.codes_at(), rows, weights);
    if (count == kNoRows) {
      if (simt::lane() == 0) fail_launch(a.call.ticket);
      break;
    }
    sum_rows(part, a.out + static_cast<u64>(token) * hidden, GatheredRows{rows, weights, count});
    simt::sync_warp();
  }
  if (last_block(a.call.ticket, &shared.last)) end_receive(a.rank, a.call, Phase::kCombine, turn);
}

}  // namespace uccl

// Low-latency combine reduced in the node, between the two halves: the landing rank of a source of another node sums
// what its node's ranks have stored for each of that source's tokens, in ascending k in fp32 with the source's weights,
// and sends one row a token to the slot of the lowest k that the node has of it. The sum, in bf16, replaces the row in
// that slot here. A slot may say where the row stays in place of holding it (combine_send.h).
//
// Where rows travel in another format the sum does: a slot of the same token has room for it, since its rows have been
// read by then. Rows are summed as the expert's rank has them, in bf16.
//
// It waits for the sending halves of its node and of the sources it stands for, and for no receiving half; so no rank
// waits in a circle as long as a rank runs it for every call that it has sent before it waits for anything else.
#pragma once
#include "kernels/low_latency/combine_rows.h"
#include "kernels/low_latency/common.h"

namespace uccl {

struct CombineReduceArgs {
  RankContext rank;
  LowLatencyCall call;
  u32* num_writes;  // [num_ranks], zero between launches
  u32* sizes;  // [num_ranks] tokens << 8 | top-k of a source's block, which may lie in the host's memory
  i64* wait_stats;  // [N] ns, added to, or null
  const u8* const* registered;  // as row_in_memory's, registered memory of the node's ranks; null: no rows stay there
  u32 format;  // RowFormat of the sums
  u32 unused;
};
struct CombineReduceShared {
  const u16* rows[kMaxBlockWarps][kMaxTopk];
  float weights[kMaxBlockWarps][kMaxTopk];
  u32 last;
};

DEV bool stands_for(const TopologyView& topology, u32 source) {
  return !topology.is_absent(source) && !topology.is_local(source) &&
         topology.landing_rank(source, topology.cell) == topology.rank;
}

// One thread: rank `r` of the node has stored its rows. Pairs with the release at the end of a sending half.
DEV bool await_contributor(const CombineReduceArgs& a, const Turn& turn, u32 r) {
  if (is_sent(a.rank, a.call, r)) return true;
  const u64* flag = rows_flag(a.rank, turn.epoch, r);
  const WaitSite site{WaitPhase::kCombineReduce, r, {}, turn.epoch};
  return wait_and_count(a.rank, turn.wait, site, flag, a.wait_stats) &&
         (masked(a.rank, r) || in_same_call(a.rank, turn, Phase::kCombine, site, nullptr));
}

// What a source says of its tokens, as check_weights has found it.
struct WeightedIds {
  u32 num_tokens, topk;
  const float* weights;
  const short* ids;
};
DEV const WeightsHeader* weights_header(const CombineReduceArgs& a, u64 epoch, u32 slot) {
  return reinterpret_cast<const WeightsHeader*>(own_data(a.rank) + a.call.layout.landing_weights(epoch, slot));
}
DEV WeightedIds weights_of(const CombineReduceArgs& a, u64 epoch, u32 source, u32 slot) {
  const float* const weights = reinterpret_cast<const float*>(weights_header(a, epoch, slot) + 1);
  const u32 size = simt::ld_relaxed_gpu(&a.sizes[source]), tokens = size >> 8, topk = size & 0xff;
  return WeightedIds{tokens, topk, weights, reinterpret_cast<const short*>(weights + static_cast<u64>(tokens) * topk)};
}

// One lane: a source is in the same call, and its block holds no more than there is room for. What its header says is
// read here only.
DEV bool check_weights(const CombineReduceArgs& a, const Turn& turn, u32 source) {
  WaitSite site{WaitPhase::kCombineWeights, source, {}, turn.number};
  const ExpectHeader* announced = announced_by(a.rank, own_control(a.rank), Phase::kWeights, turn.number, source);
  if (!in_same_call(a.rank, turn, Phase::kCombine, site, announced)) return false;
  const u32 slot = a.rank.topology.landing_slot(source, a.rank.topology.cell);
  const WeightsHeader& header = *weights_header(a, turn.epoch, slot);
  const u32 topk = simt::ld_relaxed_sys(&header.topk), tokens = simt::ld_relaxed_sys(&header.num_tokens);
  const auto fits = [&](MismatchField what, u32 most, u32 theirs) {
    if (theirs <= most) return true;
    site.detail = what;
    site.expected = most;
    record_fault(turn.wait, site, FaultKind::kMismatch, theirs);
    return false;
  };
  a.sizes[source] = tokens << 8 | topk;
  return fits(MismatchField::kTopk, a.call.layout.max_topk, topk) &&
         fits(MismatchField::kMaxTokens, a.call.layout.max_tokens, tokens);
}

// One thread: what the source says of its tokens is here.
DEV bool await_weights(const CombineReduceArgs& a, const Turn& turn, u32 source) {
  const u64* flag = flag_beside(a.rank, own_control(a.rank), Phase::kWeights, turn.number, source);
  const WaitSite site{WaitPhase::kCombineWeights, source, {}, turn.number};
  return wait_and_count(a.rank, turn.wait, site, flag, a.wait_stats) && check_weights(a, turn, source);
}

// Whole block, in ask_once: all that is to be summed is here; a thread a rank.
DEV bool await_all(const CombineReduceArgs& a, const Turn& turn) {
  const TopologyView& topology = a.rank.topology;
  bool good = true;
  for (u32 r = simt::tid(); r < topology.num_ranks; r += simt::ntid()) {
    if (topology.is_absent(r)) continue;
    if (topology.is_local(r))
      good = await_contributor(a, turn, r) && good;
    else if (stands_for(topology, r))
      good = await_weights(a, turn, r) && good;
  }
  return good;
}

// One lane: a row of local rank `rank`'s, in the slot or where the slot says that it stays; null: it says neither.
DEV const u16* row_of_slot(const CombineReduceArgs& a, u32 rank, const u8* slot) {
  if (a.registered != nullptr) return row_of_mark(a.rank.topology, a.registered, rank, slot, a.call.layout.hidden);
  return reinterpret_cast<const u16*>(slot + sizeof(LogfmtHeader));
}

// Rows of a token that this node has, compacted in ascending k, and the lowest k. A repeated expert has one row.
struct TokenRows {
  u32 count, lowest;
  bool found;  // false: a slot says what no rank writes there, and the call has failed
};
DEV TokenRows rows_of_token(const CombineReduceArgs& a, const Turn& turn, const WeightedIds& of, const u8* slots,
                            u32 token, CombineReduceShared& shared) {
  const u64 first = static_cast<u64>(token) * of.topk;
  const short* const ids = of.ids + first;
  TokenRows found{0, 0, true};
  bool good = true;
  for (u32 base = 0; base < of.topk; base += simt::kWarp) {
    const u32 k = base + simt::lane();
    const bool use = k < of.topk && ids[k] >= 0 && static_cast<u32>(ids[k]) < a.call.num_experts &&
                     a.rank.topology.is_local(static_cast<u32>(ids[k]) / a.call.num_local_experts);
    const simt::mask_t taking = simt::ballot(use);
    if (use) {
      u32 sent = 0;
      while (sent < k && ids[sent] != ids[k]) ++sent;
      const u32 at = found.count + simt::popcount(taking & simt::lane_mask_lt());
      const u8* const slot = slots + (first + sent) * a.call.layout.combine_row_bytes();
      const u32 rank = static_cast<u32>(ids[k]) / a.call.num_local_experts;
      const u16* const row = row_of_slot(a, rank, slot);
      shared.rows[simt::warp()][at] = row;
      if (row == nullptr)
        good = bad_arrival(turn.wait, WaitSite{WaitPhase::kCombineReduce, rank, {}, 0},
                           *reinterpret_cast<const u64*>(slot));
      shared.weights[simt::warp()][at] = of.weights[first + k];
    }
    if (found.count == 0 && taking != 0) found.lowest = base + simt::first_lane(taking);
    found.count += simt::popcount(taking);
  }
  simt::sync_warp();
  found.found = simt::ballot(!good) == 0;
  return found;
}

// Landing slots of a token: where its bf16 sum is made, and another in which the encoded sum goes on its way. With one
// expert a token no row lies beyond those of all tokens; there is room for two a token at least
// (LowLatencyLayout::sums_encoded).
struct SumSlots {
  u64 sum, encoded;
};
DEV SumSlots slots_of_sum(const LowLatencyLayout& layout, const WeightedIds& of, u32 token, u32 lowest) {
  const u64 first = static_cast<u64>(token) * of.topk;
  return SumSlots{first + lowest,
                  of.topk == 1 ? static_cast<u64>(layout.max_tokens) + token : first + (lowest + 1) % of.topk};
}

// One warp: sums a token's rows and sends the sum. False: the ring had no room in time.
DEV bool send_sum(const CombineReduceArgs& a, const Turn& turn, u32 source, const SumSlots& slots,
                  const TokenRows& rows, CombineReduceShared& shared) {
  const LowLatencyLayout& layout = a.call.layout;
  const RowFormat format = static_cast<RowFormat>(a.format);
  const u32 hosted = a.rank.topology.landing_slot(source, a.rank.topology.cell);
  Command m;
  m.op = Op::kWrite;
  m.peer = source;
  m.key = epoch_key(Phase::kReduced, turn.number);
  m.local_offset = layout.landing_combine_slot(turn.epoch, hosted, slots.sum) + sizeof(LogfmtHeader);
  m.remote_offset = layout.combine_slot(turn.epoch, slots.sum) + LowLatencyLayout::row_in_slot(format);
  m.bytes = 2ull * layout.hidden;
  u16* const sum = reinterpret_cast<u16*>(own_data(a.rank) + m.local_offset);
  reduce_rows(sum, shared.rows[simt::warp()], shared.weights[simt::warp()], rows.count, layout.hidden);
  simt::sync_warp();
  if (format != RowFormat::kBf16) {
    m.local_offset = layout.landing_combine_slot(turn.epoch, hosted, slots.encoded);
    u8* const out = own_data(a.rank) + m.local_offset;
    m.bytes = write_row(RowPart{format, layout.hidden, 0, layout.hidden}, sum, out, 0);
    simt::sync_warp();
  }
  bool ok = true;
  if (simt::lane() == 0) {
    ok = push(ring_to(a.rank, source), m, turn.wait) != kNoTicket;
    add_stat(a.rank, source, PeerStat::kRowsOut, 1);
    add_stat(a.rank, source, PeerStat::kBytesOut, m.bytes);
  }
  return warp_agree(ok);
}

// Sums of all sources that this rank stands for, tokens dealt round all warps of the grid.
DEV bool send_sums(const CombineReduceArgs& a, const Turn& turn, CombineReduceShared& shared) {
  const u32 warp = grid_warp(), warps = grid_warps();
  u32 dealt = 0;
  for (u32 s = 0; s < a.rank.topology.num_ranks; ++s) {
    if (!stands_for(a.rank.topology, s)) continue;
    const u32 hosted = a.rank.topology.landing_slot(s, a.rank.topology.cell);
    const WeightedIds of = weights_of(a, turn.epoch, s, hosted);
    const u8* slots = own_data(a.rank) + a.call.layout.landing_combine_slot(turn.epoch, hosted, 0);
    u32 writes = 0;
    for (u32 t = (warp + warps - dealt % warps) % warps; t < of.num_tokens; t += warps) {
      const TokenRows rows = rows_of_token(a, turn, of, slots, t, shared);
      if (!rows.found) return false;
      if (rows.count == 0) continue;
      if (!send_sum(a, turn, s, slots_of_sum(a.call.layout, of, t, rows.lowest), rows, shared)) return false;
      ++writes;
    }
    if (simt::lane() == 0 && writes != 0) simt::add_gpu(&a.num_writes[s], writes);
    dealt += of.num_tokens;
  }
  return true;
}

KERNEL KERNEL_BOUNDS(kMaxBlockLanes) low_latency_combine_reduce(CombineReduceArgs a) {
  CombineReduceShared& shared = simt::smem<CombineReduceShared>();
  const TopologyView& topology = a.rank.topology;
  const Turn turn = begin_receive(a.rank, a.call, Phase::kCombine);
  if (!ask_once(a.call, turn, [&] { return await_all(a, turn); })) return;
  if (!send_sums(a, turn, shared) && simt::lane() == 0) fail_launch(a.call.ticket);
  if (!last_block(a.call.ticket, &shared.last)) return;
  for (u32 s = simt::warp(); simt::lane() == 0 && s < topology.num_ranks; s += simt::num_warps()) {
    if (!stands_for(topology, s)) continue;
    const u32 writes = a.num_writes[s];
    a.num_writes[s] = 0;
    send_expect(
        a.rank, turn, a.call,
        Announcement{Phase::kReduced, s, turn.number, writes, 4, *own_identity(a.rank, Phase::kCombine, turn.epoch)});
  }
}

}  // namespace uccl

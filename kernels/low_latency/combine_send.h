// Low-latency combine, sending half: every expert row goes back to the token's owner, into the slot (token, k) that the
// dispatch recorded. On the node it is stored there directly; else it is staged (or, with zero copy, already lies in
// registered memory) and written. Each (token, k) travels alone: the owner's sum in ascending k fixes the rounding.
//
// Reduced in the node (LowLatencyCall::reduces), rows for other nodes' owners are stored at the owner's landing rank in
// this node instead, and this rank tells its own landing ranks on other nodes what they need to sum its tokens' rows
// (combine_reduce.h).
//
// With signals it runs beside what computes the rows (single-batch overlap): experts go in ascending order, as grouped
// matrix products compute them, and a row leaves as soon as its signal says that it is there.
//
// Rows of this rank's own tokens need not move where they stay as they are until the receiving half has run: their slot
// then holds the row's index in place of the row. Nor need rows that a rank of this node reads, as owner or as landing
// rank, where all ranks of the node map the registered memory that zero-copy rows lie in: their slot then says where.
#pragma once
#include "kernels/low_latency/combine_rows.h"
#include "kernels/low_latency/common.h"

namespace uccl {

struct CombineSendArgs {
  RankContext rank;
  LowLatencyCall call;
  const u16* x;  // bf16 [L, P, row_stride]
  const i32* src_info;  // [3, L, P] of the dispatch, and its number behind them
  const i64* layout_range;  // [L, N] of the dispatch
  u64* staging_ticket;  // [staging_rows] last use of a staging row: (ring << 56) | (ticket + 1), 0 = never
  u64 zero_copy_offset;  // flat offset of x when it lies in registered memory, else 0
  u32 row_stride;  // elements between rows of x
  u32 format;  // RowFormat
  // Rows that are still being computed: those of local expert e from row i * signal_rows on may be read once signal
  // [e, i] has reached signal_value. Null: all rows are there.
  const u32* signals;  // [L, signals_per_expert]
  u32 signals_per_expert;
  u32 signal_rows;  // rows that a signal stands for
  u32 signal_value;
  // What landing ranks on other nodes are told when they sum; else not looked at.
  u32 num_tokens;
  const i64* topk_idx;  // [num_tokens, topk], as dispatched
  const float* weights;  // [num_tokens, topk]
  u32 topk;
  u32 own_stay;  // 1: x is not written before the receiving half has run, so rows of own tokens stay there; bf16 only
  u32 node_rows;  // NodeRows: those that other ranks of this node read; bf16 only. Where they stay, own_stay is 1
  u32 unused;
  u64 x_at;  // where they stay: bytes from the beginning of this rank's registered memory to x
};
// How rows for other ranks of this node travel.
enum class NodeRows : u32 {
  kCopied = 0,
  kCopiedAndMarked,  // their slots say that they hold the row: ranks of this node look
  kStay,  // their slots say where in registered memory the row is: x is not written before its set is used again
};
struct CombineSendShared {
  u32 last;
};

// One warp: a staging row that the network has finished with, among this warp's own.
DEV bool take_staging(const CombineSendArgs& a, const Turn& turn, u32 row, u32 peer) {
  bool ok = true;
  if (simt::lane() == 0 && a.staging_ticket[row] != 0) {
    const RingView& ring = a.rank.rings[a.staging_ticket[row] >> 56];
    const u64 ticket = (a.staging_ticket[row] & low_bits(56)) - 1;
    ok = wait_done_once(ring, ticket, turn.wait, WaitSite{WaitPhase::kStagingReuse, peer, {}, ticket});
  }
  return warp_agree(ok);
}

// What a warp sends with.
struct CombineSender {
  u32 staging, next;  // its staging rows: how many it has, and which of them is next
  RowCut cut;  // of rows that are stored by several warps; the warp of piece 0 does whatever else there is to do
  u64 total_bytes;  // of the rows that all warps send
  bool takes_remote, takes_local;  // rows by whether their owners are of this node
};

DEV RowFormat format_of(const CombineSendArgs& a) { return static_cast<RowFormat>(a.format); }
DEV bool is_encoded(const CombineSendArgs& a) { return format_of(a) != RowFormat::kBf16; }

// One warp: what the slot of a row for a rank of this node says of it, at `holder`. True: the row stays.
DEV bool mark_row(const CombineSendArgs& a, u32 holder, u64 at, u64 slot, u32 piece) {
  const NodeRows way = static_cast<NodeRows>(a.node_rows);
  if (way == NodeRows::kCopied) return false;
  const bool stays = way == NodeRows::kStay;
  if (piece == 0 && simt::lane() == 0)
    *reinterpret_cast<u64*>(data_of(a.rank, holder) + slot) = stays ? kRowStays | (a.x_at + at * a.row_stride * 2) : 0;
  return stays;
}

// A piece of row `at` (of expert-major [L, P]), as cut by CombineSender::cut.
struct RowPiece {
  u64 at;
  u32 piece;
};
// One warp leaves a row where it stays, or stores a piece of it, where the owner's landing rank in this node sums it.
DEV void give_to_host(const CombineSendArgs& a, const Turn& turn, const RowPiece& row, u32 owner, u64 number,
                      const CombineSender& sender) {
  const LowLatencyLayout& layout = a.call.layout;
  const TopologyView& topology = a.rank.topology;
  const u32 landing = topology.landing_rank(owner, topology.cell);
  const u64 bytes = 2ull * layout.hidden;
  const u64 slot = layout.landing_combine_slot(turn.epoch, topology.landing_slot(owner, topology.cell), number);
  if (mark_row(a, landing, row.at, slot, row.piece)) return;
  const u64 first = 2ull * sender.cut.begin(row.piece);
  copy_row_shared(data_of(a.rank, landing) + slot + sizeof(LogfmtHeader) + first,
                  reinterpret_cast<const u8*>(a.x + row.at * a.row_stride) + first,
                  2ull * sender.cut.size(row.piece, layout.hidden), sender.total_bytes);
  simt::sync_warp();
  if (row.piece != 0 || simt::lane() != 0) return;
  add_stat(a.rank, landing, PeerStat::kRowsOut, 1);
  add_stat(a.rank, landing, PeerStat::kBytesOut, bytes);
}

// int32 words of one plane of src_info.
DEV u64 plane_of(const CombineSendArgs& a) {
  return a.call.num_local_experts * static_cast<u64>(a.rank.topology.num_ranks) * a.call.layout.max_tokens;
}

// The caller's handle says what no dispatch has left in it.
DEV WaitSite own_site(const CombineSendArgs& a, u64 most) {
  return WaitSite{WaitPhase::kCombineSend, a.rank.topology.rank, {}, most};
}
// One warp.
DEV bool bad_handle(const CombineSendArgs& a, const Turn& turn, u64 most, u64 seen) {
  if (simt::lane() == 0) bad_arrival(turn.wait, own_site(a, most), seen);
  return false;
}

// One warp leaves row `at` of a token of this rank where it is.
DEV void leave_row(const CombineSendArgs& a, const Turn& turn, u64 at, u64 slot) {
  if (simt::lane() == 0) *reinterpret_cast<u64*>(own_data(a.rank) + a.call.layout.combine_slot(turn.epoch, slot)) = at;
}

// One warp sends row `at` (of expert-major [L, P]) to its owner, or a piece of it.
DEV bool send_row(const CombineSendArgs& a, const Turn& turn, u64 at, u32 piece, CombineSender* sender) {
  const u64 plane = plane_of(a);
  const u32 owner = static_cast<u32>(a.src_info[2 * plane + at]);
  const LowLatencyLayout& layout = a.call.layout;
  const u64 number = static_cast<u32>(a.src_info[plane + at]);
  if (owner >= a.rank.topology.num_ranks || number >= static_cast<u64>(layout.max_tokens) * layout.max_topk)
    return bad_handle(a, turn, layout.max_tokens * layout.max_topk, number);
  if (masked(a.rank, owner)) return true;
  const bool local = a.rank.topology.is_local(owner);
  if (!(local ? sender->takes_local : sender->takes_remote)) return true;
  if (owner == a.rank.topology.rank && a.own_stay) {
    if (piece == 0) leave_row(a, turn, at, number);
    return true;
  }
  if (a.call.reduces && !local) {
    give_to_host(a, turn, RowPiece{at, piece}, owner, number, *sender);
    return true;
  }
  const u64 slot = layout.combine_slot(turn.epoch, number);
  const u64 target = slot + LowLatencyLayout::row_in_slot(format_of(a));
  const u16* row = a.x + at * a.row_stride;
  if (local && !is_encoded(a) && mark_row(a, owner, at, slot, piece)) return true;
  if (!local && piece != 0) return true;  // what one command sends one warp writes
  const bool in_place = !local && a.zero_copy_offset != 0 && !is_encoded(a);
  const u32 mine = grid_warp() * sender->staging + sender->next;
  if (!local && !in_place && !take_staging(a, turn, mine, owner)) return false;
  u64 bytes = 2ull * layout.hidden;
  if (!in_place) {  // in one place, for the sake of registers; the network reads what is staged soon
    u8* const out = local ? data_of(a.rank, owner) + target : own_data(a.rank) + layout.staging(mine);
    const u32 first = local ? sender->cut.begin(piece) : 0;
    const u32 count = local ? sender->cut.size(piece, layout.hidden) : layout.hidden;
    bytes = write_row(RowPart{format_of(a), layout.hidden, first, count}, row, out, local ? sender->total_bytes : 0);
    simt::sync_warp();
  }
  if (!local) {
    Command m;
    m.op = Op::kWrite;
    m.peer = owner;
    m.key = epoch_key(Phase::kCombine, turn.number);
    m.local_offset = in_place ? a.zero_copy_offset + at * a.row_stride * 2 : layout.staging(mine);
    m.remote_offset = target;
    m.bytes = bytes;
    u64 ticket = 0;
    if (simt::lane() == 0) {
      ticket = push(ring_to(a.rank, owner), m, turn.wait);
      if (!in_place)
        a.staging_ticket[mine] = static_cast<u64>(owner % a.rank.num_rings) << 56 | ((ticket + 1) & low_bits(56));
    }
    if (!warp_agree(ticket != kNoTicket)) return false;
    if (!in_place) sender->next = (sender->next + 1) % sender->staging;
  }
  if (piece == 0 && simt::lane() == 0) {
    add_stat(a.rank, owner, PeerStat::kRowsOut, 1);
    add_stat(a.rank, owner, PeerStat::kBytesOut, bytes);
  }
  return true;
}

// One warp: how many rows are an owner's.
DEV u32 rows_of_owner(const CombineSendArgs& a, u32 owner) {
  u32 rows = 0;
  for (u32 e = static_cast<u32>(simt::lane()); e < a.call.num_local_experts; e += simt::kWarp)
    rows += static_cast<u32>(a.layout_range[static_cast<u64>(e) * a.rank.topology.num_ranks + owner]);
  return simt::warp_sum(rows);
}

DEV CallIdentity combine_identity(const CombineSendArgs& a) {
  return identity_of(a.rank, a.call, CallKind::kLowLatencyCombine, a.format,
                     static_cast<u32>(a.src_info[3 * plane_of(a)]));
}

// One warp tells a remote owner how many rows it was sent.
DEV void send_combine_count(const CombineSendArgs& a, const Turn& turn, u32 owner) {
  const u32 rows = rows_of_owner(a, owner);
  if (simt::lane() == 0)
    send_expect(a.rank, turn, a.call, Announcement{Phase::kCombine, owner, turn.number, rows, 1, combine_identity(a)});
}

// One warp counts the rows of an owner that stay where they are, if they do: as sent to who reads them there. Each row
// by itself would cost more than to say where it is: an atomic waits for all stores before it, and those miss the
// caches.
DEV void count_rows_that_stay(const CombineSendArgs& a, u32 owner) {
  const TopologyView& topology = a.rank.topology;
  const bool local = topology.is_local(owner);
  if (masked(a.rank, owner) || (!local && !a.call.reduces)) return;
  const bool shared = !is_encoded(a) && static_cast<NodeRows>(a.node_rows) == NodeRows::kStay;
  if (!(owner == topology.rank ? a.own_stay != 0 : shared)) return;
  const u32 rows = rows_of_owner(a, owner);
  const u32 reader = local ? owner : topology.landing_rank(owner, topology.cell);
  if (simt::lane() == 0) add_stat(a.rank, reader, PeerStat::kRowsOut, rows);
}

// The whole block 0: weights and ids of this rank's tokens, to its landing rank on each other node. What it overwrites
// was read there before this rank had the sums of two calls ago.
DEV void send_weights(const CombineSendArgs& a, const Turn& turn) {
  const LowLatencyLayout& layout = a.call.layout;
  const TopologyView& topology = a.rank.topology;
  u8* block = own_data(a.rank) + layout.staged_weights(turn.epoch);
  const u64 count = static_cast<u64>(a.num_tokens) * a.topk;
  float* weights = reinterpret_cast<float*>(block + sizeof(WeightsHeader));
  short* ids = reinterpret_cast<short*>(weights + count);
  if (simt::tid() == 0) *reinterpret_cast<WeightsHeader*>(block) = WeightsHeader{a.num_tokens, a.topk, 0};
  for (u64 i = simt::tid(); i < count; i += simt::ntid()) {
    const i64 e = a.topk_idx[i];
    weights[i] = a.weights[i];
    ids[i] = static_cast<short>(e >= 0 && e < static_cast<i64>(a.call.num_experts) ? e : -1);
  }
  simt::sync_block();
  for (u32 n = simt::warp(); simt::lane() == 0 && n < topology.num_cells; n += simt::num_warps()) {
    if (!topology.is_remote(n)) continue;
    Command m;
    m.op = Op::kWrite;
    m.peer = topology.landing_rank(topology.rank, n);
    m.key = epoch_key(Phase::kWeights, turn.number);
    m.local_offset = layout.staged_weights(turn.epoch);
    m.remote_offset = layout.landing_weights(turn.epoch, topology.landing_slot(topology.rank, n));
    m.bytes = LowLatencyLayout::weights_bytes(a.num_tokens, a.topk);
    if (push(ring_to(a.rank, m.peer), m, turn.wait) == kNoTicket ||
        send_expect(a.rank, turn, a.call,
                    Announcement{Phase::kWeights, m.peer, turn.number, 1, 3, combine_identity(a)}) == kNoTicket)
      fail_launch(a.call.ticket);
  }
}

// One warp tells a rank of another node, in place of rows, which call this is. This rank's landing ranks hear it with
// its weights.
DEV void send_identity(const CombineSendArgs& a, const Turn& turn, u32 r) {
  const TopologyView& topology = a.rank.topology;
  if (simt::lane() != 0 || topology.landing_rank(topology.rank, topology.cell_of[r]) == r) return;
  send_expect(a.rank, turn, a.call, Announcement{Phase::kWeights, r, turn.number, 0, 3, combine_identity(a)});
}

// One warp: row `i` of expert `e` has been computed. `*known` is the last signal that this warp has seen to be there.
DEV bool await_computed(const CombineSendArgs& a, const Turn& turn, u32 e, u32 i, u64* known) {
  if (a.signals == nullptr) return true;
  const u64 at = static_cast<u64>(e) * a.signals_per_expert + i / a.signal_rows;
  if (at == *known) return true;
  *known = at;
  bool ok = true;
  if (simt::lane() == 0) {
    // Pairs with the release of whoever computes, which may be the host. Signed: memory never set is not "reached".
    ok = wait_until(turn.wait,
                    WaitSite{WaitPhase::kComputeSignal, kNoPeer, {DetailKind::kLocalExpert, e}, a.signal_value},
                    SystemWord{&a.signals[at]},
                    [&](u64 seen) { return static_cast<i32>(seen) >= static_cast<i32>(a.signal_value); });
  }
  return warp_agree(ok);
}

DEV u32 rows_of_expert(const CombineSendArgs& a, u32 e) {
  const u64 last = static_cast<u64>(a.layout_range[static_cast<u64>(e + 1) * a.rank.topology.num_ranks - 1]);
  return static_cast<u32>(last >> 32) + static_cast<u32>(last);
}

DEV RowCut whole_row(const CombineSendArgs& a) { return RowCut{1, a.call.layout.hidden}; }
// How the rows that this rank stores at others of its node are cut. A logfmt row is encoded from its beginning on.
DEV RowCut cut_stored_row(const CombineSendArgs& a, u64 rows, u32 warps) {
  if (format_of(a) == RowFormat::kLogfmt) return whole_row(a);
  return cut_row(a.call, rows, warps, kPieceBytes / sizeof(u16));
}

DEV bool stages_rows(const CombineSendArgs& a) {
  return a.call.layout.staging_rows != 0 && a.call.reduces == 0 && (a.zero_copy_offset == 0 || is_encoded(a));
}

// False: the call has failed.
DEV bool send_all_rows(const CombineSendArgs& a, const Turn& turn) {
  const TopologyView& topology = a.rank.topology;
  const u32 experts = a.call.num_local_experts;
  const u64 stride = static_cast<u64>(topology.num_ranks) * a.call.layout.max_tokens;
  // A staging row has one user: with fewer of them than warps some warps take no row that is staged; with far fewer the
  // others take those that are not.
  const bool stages = stages_rows(a);
  const u32 staging = stages ? a.call.layout.staging_rows : 0;
  const bool apart = stages && grid_warps() >= 2 * staging, keeps = apart && grid_warp() >= staging;
  const u32 warp = keeps ? grid_warp() - staging : grid_warp();
  const u32 warps = keeps ? grid_warps() - staging : stages && grid_warps() > staging ? staging : grid_warps();
  if (warp >= warps) return true;
  bool good = true;
  const auto count = [&](u32 e) {
    const u32 n = rows_of_expert(a, e);
    if (n > stride) good = bad_arrival(turn.wait, own_site(a, stride), n);
    return n;
  };
  const u64 rows = rows_of_experts(experts, count);
  if (simt::ballot(!good) != 0) return false;
  CombineSender sender{
      keeps ? 0 : staging / warps,        0,      apart && !keeps ? whole_row(a) : cut_stored_row(a, rows, warps),
      2ull * a.call.layout.hidden * rows, !keeps, keeps || !apart};
  u64 known = ~0ull;
  return simt::deal_rows(experts, sender.cut.pieces, warp, warps, count, [&](u32 e, u32 i, u32 piece) {
    return await_computed(a, turn, e, i, &known) && send_row(a, turn, e * stride + i, piece, &sender);
  });
}

KERNEL KERNEL_BOUNDS(kMaxBlockLanes) low_latency_combine_send(CombineSendArgs a) {
  CombineSendShared& shared = simt::smem<CombineSendShared>();
  const TopologyView& topology = a.rank.topology;
  const Turn turn = begin_send(a.rank, a.call, Phase::kCombine);
  const bool starts = ask_once(a.call, turn, [&] {
    if (!may_start(turn.wait)) return false;
    announce_consumed(a.rank, turn, a.call);
    if (a.call.reduces) send_weights(a, turn);
    for (u32 i = simt::tid(); stages_rows(a) && i < a.rank.num_rings; i += simt::ntid()) learn_done(a.rank.rings[i]);
    return wait_for_reuse(a.rank, turn, Phase::kCombine);
  });
  if (!starts) return;
  for (u32 r = grid_warp(); r < topology.num_ranks; r += grid_warps())
    if (!topology.is_local(r) && !masked(a.rank, r))
      a.call.reduces ? send_identity(a, turn, r) : send_combine_count(a, turn, r);
  if (!send_all_rows(a, turn) && simt::lane() == 0) fail_launch(a.call.ticket);
  for (u32 r = grid_warp(); r < topology.num_ranks; r += grid_warps()) count_rows_that_stay(a, r);
  if (!last_block(a.call.ticket, &shared.last)) return;
  if (simt::tid() == 0) {
    *own_identity(a.rank, Phase::kCombine, turn.epoch) = combine_identity(a);
    simt::st_release_sys(node_flag(a.rank, Phase::kCombine, turn.epoch, topology.rank), turn.epoch);
  }
  if (a.rank.shrink) simt::sync_block();  // the words below then release the identity too
  for (u32 i = simt::tid(); i < topology.local_size; i += simt::ntid()) {
    u64* const flag = word(a.rank.data[i], a.rank.signals.flag(Phase::kCombine, topology.rank));
    if (!a.rank.shrink)
      simt::st_relaxed_sys(flag, turn.epoch);
    else if (!masked(a.rank, topology.mates[i]))  // which got no rows, and must not take old ones for them
      simt::st_release_sys(flag, turn.epoch);
  }
  if (simt::tid() == 0) end_send(a.call, Phase::kCombine, turn);
}

}  // namespace uccl

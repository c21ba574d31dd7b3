// Low-latency dispatch, sending half: stages every token's row once (quantised if asked), then one write per run of
// consecutive rows and remote node, then the routing block and the count of writes. Ranks of the node read the staged
// rows where they are.
#pragma once
#include "kernels/device/copy.h"
#include "kernels/device/fp4_row.h"
#include "kernels/device/fp8.h"
#include "kernels/low_latency/common.h"

namespace uccl {

struct DispatchSendArgs {
  RankContext rank;
  LowLatencyCall call;
  const u16* x;           // bf16 [num_tokens, hidden]
  const i64* topk_idx;    // [num_tokens, topk]; outside [0, num_experts) = not routed
  u32* num_writes;        // [num_cells], zero between launches
  const float* global_scale;  // of NVFP4 rows: read where it lies, so that a recorded launch sees its next value
  u32 num_tokens, topk;
  u32 format;             // RowFormat
  u32 round_scale;        // scales rounded up to powers of two
  u32 batch;              // tokens whose runs are looked for together; at most one per lane
  u32 unused;
  // With share_rows [batches], zero between launches: pieces of a batch's rows that are staged. Else a warp stages a
  // batch alone.
  u32* arrivals;
};
struct DispatchSendShared {
  u32 last;
};

DEV bool goes_to_cell(const DispatchSendArgs& a, u32 token, u32 cell) {
  for (u32 k = 0; k < a.topk; ++k) {
    const i64 e = a.topk_idx[static_cast<u64>(token) * a.topk + k];
    if (e < 0 || e >= static_cast<i64>(a.call.num_experts)) continue;
    const u32 owner = static_cast<u32>(e) / a.call.num_local_experts;
    if (a.rank.topology.cell_of[owner] == cell && !masked(a.rank, owner)) return true;
  }
  return false;
}

// Pieces that a row is staged in: whole words of scales in each format.
inline constexpr u32 kStagedChannels = kPieceBytes / sizeof(u16);
static_assert(kStagedChannels % (4 * kScaleChannels) == 0);

// One warp: channels [first, first + count) of a bf16 row, into its staged row, which has the wanted format.
DEV void stage_channels(const DispatchSendArgs& a, u32 token, u32 first, u32 count, u8* staged) {
  const u32 hidden = a.call.layout.hidden;
  const u16* x = a.x + static_cast<u64>(token) * hidden + first;
  const RowFormat format = static_cast<RowFormat>(a.format);
  u8* const out = staged + LowLatencyLayout::payload_bytes(first, format);
  if (format == RowFormat::kBf16) {
    copy_row_shared(out, reinterpret_cast<const u8*>(x), 2ull * count);
    return;
  }
  u8* scales = staged + LowLatencyLayout::payload_bytes(hidden, format) + LowLatencyLayout::scale_bytes(first, format);
  if (format == RowFormat::kNvfp4)
    quantize_row_nvfp4(Nvfp4RowArgs{x, out, scales, count, *a.global_scale});
  else if (format == RowFormat::kFp8)
    quantize_row(x, out, reinterpret_cast<float*>(scales), count, a.round_scale != 0);
  else
    quantize_row_ue8m0(x, out, reinterpret_cast<u32*>(scales), count);
}

// One warp: sends the staged rows [first, first + count) that a cell of another node needs, one write per run.
DEV void send_runs(const DispatchSendArgs& a, const Turn& turn, u32 first, u32 count, u32 cell) {
  const LowLatencyLayout& layout = a.call.layout;
  const TopologyView& topology = a.rank.topology;
  const u64 row = LowLatencyLayout::row_bytes(layout.hidden, static_cast<RowFormat>(a.format));
  const u32 lane = static_cast<u32>(simt::lane());
  const simt::mask_t wanted = simt::ballot(lane < count && goes_to_cell(a, first + lane, cell));
  if (wanted == 0) return;
  const u32 landing = topology.landing_rank(topology.rank, cell);
  // The first lane of each run pushes for it, all of them together.
  const simt::mask_t starts = wanted & static_cast<simt::mask_t>(~(wanted << 1));
  const bool mine = starts >> lane & 1;
  const simt::mask_t beyond = static_cast<simt::mask_t>(~(wanted >> lane));  // 0: the run fills a whole warp
  const u32 rows = !mine ? 0 : beyond == 0 ? simt::kWarp : simt::first_lane(beyond);
  Command m;
  m.op = Op::kWrite;
  m.peer = landing;
  m.key = epoch_key(Phase::kDispatch, turn.epoch);
  m.local_offset = layout.staged_rows(turn.epoch) + (first + lane) * row;
  m.remote_offset = layout.landing_rows(turn.epoch, topology.landing_slot(topology.rank, cell)) + (first + lane) * row;
  m.bytes = rows * row;
  const u64 ticket = push_group(ring_to(a.rank, landing), m, mine, turn.wait);
  if (mine && ticket == kNoTicket) fail_launch(a.call.ticket);
  if (lane != 0) return;
  add_stat(a.rank, landing, PeerStat::kRowsOut, simt::popcount(wanted));
  add_stat(a.rank, landing, PeerStat::kBytesOut, simt::popcount(wanted) * row);
  simt::add_gpu(&a.num_writes[cell], simt::popcount(starts));
}

// One warp: sends the staged rows [first, first + count) to every cell of other nodes that needs some.
DEV void send_batch(const DispatchSendArgs& a, const Turn& turn, u32 first, u32 count) {
  const TopologyView& topology = a.rank.topology;
  for (u32 n = 0; n < topology.num_cells; ++n)
    if (topology.is_remote(n) && !masked(a.rank, topology.landing_rank(topology.rank, n)))
      send_runs(a, turn, first, count, n);
}

// A warp a batch: few warps, each with much to do.
DEV void stage_batches(const DispatchSendArgs& a, const Turn& turn, u8* rows, u64 row) {
  for (u32 first = grid_warp() * a.batch; first < a.num_tokens; first += grid_warps() * a.batch) {
    const u32 count = a.num_tokens - first < a.batch ? a.num_tokens - first : a.batch;
    for (u32 i = 0; i < count; ++i) stage_channels(a, first + i, 0, a.call.layout.hidden, rows + (first + i) * row);
    simt::sync_warp();
    send_batch(a, turn, first, count);
  }
}

// One warp: the piece of a batch that it has just staged is the last of `pieces`; all of them are then visible to it.
DEV bool is_last_piece(u32* arrivals, u32 pieces) {
  bool last = false;
  if (simt::lane() == 0) {
    last = simt::add_acq_rel_gpu(arrivals, 1u) + 1 == pieces;  // pairs with that of the batch's other warps
    if (last) *arrivals = 0;
  }
  return warp_agree(last);
}

// A warp a row, or a piece of it: many warps. Runs of rows are as long as if a warp had staged the batch, since whoever
// comes last sends them: with a run a row, a token more would be a write more.
DEV void stage_pieces(const DispatchSendArgs& a, const Turn& turn, u8* rows, u64 row) {
  const u32 hidden = a.call.layout.hidden;
  const RowCut cut = cut_row(a.call, a.num_tokens, grid_warps(), kStagedChannels);
  for (u32 u = grid_warp(); u < a.num_tokens * cut.pieces; u += grid_warps()) {
    const u32 token = u / cut.pieces, piece = u % cut.pieces;
    stage_channels(a, token, cut.begin(piece), cut.size(piece, hidden), rows + token * row);
    simt::sync_warp();
    if (a.rank.topology.num_nodes == 1) continue;
    const u32 first = token - token % a.batch;
    const u32 count = a.num_tokens - first < a.batch ? a.num_tokens - first : a.batch;
    if (is_last_piece(&a.arrivals[token / a.batch], count * cut.pieces)) send_batch(a, turn, first, count);
  }
}

// The whole of the last block, which has the least else to do, writes the routing block, 2 bytes an id. An expert that a
// token names again is left out, so that receivers find each of its rows once.
DEV void stage_routing(const DispatchSendArgs& a, u64 epoch) {
  u8* block = own_data(a.rank) + a.call.layout.staged_routing(epoch);
  if (simt::tid() == 0) *reinterpret_cast<RoutingHeader*>(block) = RoutingHeader{a.num_tokens, a.topk, 0};
  short* ids = reinterpret_cast<short*>(block + sizeof(RoutingHeader));
  for (u64 i = simt::tid(); i < static_cast<u64>(a.num_tokens) * a.topk; i += simt::ntid()) {
    const i64 e = a.topk_idx[i];
    bool valid = e >= 0 && e < static_cast<i64>(a.call.num_experts);
    for (u64 before = i - i % a.topk; before < i; ++before) valid = valid && a.topk_idx[before] != e;
    ids[i] = static_cast<short>(valid ? e : -1);
  }
}

// The last block: routing block and count to every cell of other nodes, then the flag for this node.
DEV void finish_dispatch(const DispatchSendArgs& a, const Turn& turn) {
  const TopologyView& topology = a.rank.topology;
  const LowLatencyLayout& layout = a.call.layout;
  const CallIdentity identity = identity_of(a.rank, a.call, CallKind::kLowLatencyDispatch, a.format, 0);
  // One lane of each warp: pushing lanes of one warp could wait for each other where lanes run in lockstep.
  for (u32 n = simt::warp(); simt::lane() == 0 && n < topology.num_cells; n += simt::num_warps()) {
    if (!topology.is_remote(n)) continue;
    const u32 landing = topology.landing_rank(topology.rank, n);
    const u32 runs = a.num_writes[n];
    a.num_writes[n] = 0;
    if (masked(a.rank, landing)) continue;
    Command m;
    m.op = Op::kWrite;
    m.peer = landing;
    m.key = epoch_key(Phase::kDispatch, turn.epoch);
    m.local_offset = layout.staged_routing(turn.epoch);
    m.remote_offset = layout.landing_routing(turn.epoch, topology.landing_slot(topology.rank, n));
    m.bytes = LowLatencyLayout::routing_bytes(a.num_tokens, a.topk);
    if (push(ring_to(a.rank, landing), m, turn.wait) == kNoTicket) continue;
    send_expect(a.rank, turn, a.call, Announcement{Phase::kDispatch, landing, turn.epoch, runs + 1ull, 0, identity});
  }
  if (simt::tid() != 0) return;
  *own_identity(a.rank, Phase::kDispatch, turn.epoch) = identity;
  simt::st_release_sys(node_flag(a.rank, Phase::kDispatch, turn.epoch, topology.rank), turn.epoch);
  simt::st_relaxed_sys(word(own_data(a.rank), a.rank.signals.flag(Phase::kDispatch, topology.rank)), turn.epoch);
  end_send(a.call, Phase::kDispatch, turn);
}

KERNEL KERNEL_BOUNDS(kMaxBlockLanes) low_latency_dispatch_send(DispatchSendArgs a) {
  DispatchSendShared& shared = simt::smem<DispatchSendShared>();
  const Turn turn = begin_send(a.rank, a.call, Phase::kDispatch);
  const bool starts = ask_once(a.call, turn, [&] {
    if (!may_start(turn.wait)) return false;
    announce_consumed(a.rank, turn, a.call);
    return wait_for_reuse(a.rank, turn, Phase::kDispatch);
  });
  if (!starts) return;
  if (simt::bid() == simt::nbid() - 1) stage_routing(a, turn.epoch);
  const u64 row = LowLatencyLayout::row_bytes(a.call.layout.hidden, static_cast<RowFormat>(a.format));
  u8* rows = own_data(a.rank) + a.call.layout.staged_rows(turn.epoch);
  if (a.call.share_rows != 0)
    stage_pieces(a, turn, rows, row);
  else
    stage_batches(a, turn, rows, row);
  if (last_block(a.call.ticket, &shared.last)) finish_dispatch(a, turn);
}

}  // namespace uccl

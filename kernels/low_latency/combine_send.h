// Low-latency combine, sending half: every expert row goes back to the token's owner, into the slot (token, k) that the
// dispatch recorded. On the node it is stored there directly; else it is staged (or, with zero copy, already lies in
// registered memory) and written. Each (token, k) travels alone: the owner's sum in ascending k fixes the rounding.
#pragma once
#include "kernels/device/copy.h"
#include "kernels/low_latency/common.h"
#include "kernels/low_latency/logfmt.h"

namespace uccl {

struct CombineSendArgs {
  RankContext rank;
  LowLatencyCall call;
  const u16* x;  // bf16 [L, P, row_stride]
  const i32* src_info;  // [3, L, P] of the dispatch
  const i64* layout_range;  // [L, N] of the dispatch
  u64* staging_ticket;  // [staging_rows] last use of a staging row: (ring << 56) | (ticket + 1), 0 = never
  u64 zero_copy_offset;  // flat offset of x when it lies in registered memory, else 0
  u32 row_stride;  // elements between rows of x
  u32 logfmt;
};
struct CombineSendShared {
  u32 ok, last;
};

// One warp: a staging row that the network has finished with, among this warp's own.
DEV bool take_staging(const CombineSendArgs& a, const WaitContext& wait, u32 row, u32 peer) {
  bool ok = true;
  if (simt::lane() == 0 && a.staging_ticket[row] != 0) {
    const RingView& ring = a.rank.rings[a.staging_ticket[row] >> 56];
    const u64 ticket = (a.staging_ticket[row] & low_bits(56)) - 1;
    ok = wait_done(ring, ticket, wait, WaitSite{WaitPhase::kStagingReuse, peer, ~0u, ticket});
  }
  return warp_agree(ok);
}

// One warp: where the row's bytes are when sent by a write. Fills bytes and local offset; false when it failed.
DEV bool stage_combine_row(const CombineSendArgs& a, const WaitContext& wait, u64 at, u32 staging, Command* m) {
  const LowLatencyLayout& layout = a.call.layout;
  const u16* row = a.x + at * a.row_stride;
  if (a.zero_copy_offset != 0 && !a.logfmt) {
    m->local_offset = a.zero_copy_offset + at * a.row_stride * 2;
    m->bytes = 2ull * layout.hidden;
    return true;
  }
  if (!take_staging(a, wait, staging, m->peer)) return false;
  u8* out = own_data(a.rank) + layout.staging(staging);
  m->local_offset = layout.staging(staging);
  if (a.logfmt) {
    m->bytes = align_up(logfmt_encode(row, out, layout.hidden), 16);
  } else {
    copy_row(out, reinterpret_cast<const u8*>(row), 2ull * layout.hidden);
    m->bytes = 2ull * layout.hidden;
  }
  simt::sync_warp();
  return true;
}

struct StagingRows {
  u32 first, count, next;
};

// One warp sends row `at` (of expert-major [L, P]) to its owner.
DEV bool send_row(const CombineSendArgs& a, const WaitContext& wait, u64 at, u64 plane, StagingRows* staging) {
  const u32 owner = static_cast<u32>(a.src_info[2 * plane + at]);
  if (masked(a.rank, owner)) return true;
  const LowLatencyLayout& layout = a.call.layout;
  // A bf16 row lies behind the (unused) logfmt header's place, so a slot has one size.
  const u64 slot = layout.combine_slot(a.call.epoch, static_cast<u64>(a.src_info[plane + at]));
  const u64 target = slot + (a.logfmt ? 0 : sizeof(LogfmtHeader));
  const u16* row = a.x + at * a.row_stride;
  u64 bytes = 2ull * layout.hidden;
  if (a.rank.topology.is_local(owner)) {
    u8* out = data_of(a.rank, owner) + target;
    if (a.logfmt)
      bytes = logfmt_encode(row, out, layout.hidden);
    else
      copy_row(out, reinterpret_cast<const u8*>(row), bytes);
  } else {
    Command m;
    m.op = Op::kWrite;
    m.peer = owner;
    m.key = epoch_key(Phase::kCombine, a.call.epoch);
    m.remote_offset = target;
    const u32 mine = staging->first + staging->next;
    if (!stage_combine_row(a, wait, at, mine, &m)) return false;
    bytes = m.bytes;
    u64 ticket = 0;
    if (simt::lane() == 0) {
      ticket = push(ring_to(a.rank, owner), m, wait);
      if (a.zero_copy_offset == 0 || a.logfmt)
        a.staging_ticket[mine] = static_cast<u64>(owner % a.rank.num_rings) << 56 | ((ticket + 1) & low_bits(56));
    }
    if (!warp_agree(ticket != ~0ull)) return false;
    staging->next = (staging->next + 1) % staging->count;
  }
  if (simt::lane() == 0) {
    add_stat(a.rank, owner, PeerStat::kRowsOut, 1);
    add_stat(a.rank, owner, PeerStat::kBytesOut, bytes);
  }
  return true;
}

// One warp tells a remote owner how many rows it was sent.
DEV void send_combine_count(const CombineSendArgs& a, const WaitContext& wait, u32 owner) {
  u32 rows = 0;
  for (u32 e = static_cast<u32>(simt::lane()); e < a.call.num_local_experts; e += simt::kWarp)
    rows += static_cast<u32>(a.layout_range[static_cast<u64>(e) * a.rank.topology.num_ranks + owner]);
  rows = simt::warp_sum(rows);
  if (simt::lane() == 0) send_expect(a.rank, wait, a.call, Announcement{Phase::kCombine, owner, a.call.epoch, rows, 1});
}

DEV void send_all_rows(const CombineSendArgs& a, const WaitContext& wait, u32 warp, u32 warps) {
  const TopologyView& topology = a.rank.topology;
  const u64 stride = static_cast<u64>(topology.num_ranks) * a.call.layout.max_tokens;
  const u64 plane = a.call.num_local_experts * stride;
  // With fewer staging rows than warps some warps send nothing: a staging row has one user.
  const u32 rows = a.call.layout.staging_rows;
  if (rows != 0 && warps > rows) warps = rows;
  if (warp >= warps) return;
  const u32 share = rows / warps;
  StagingRows staging{warp * share, share, 0};
  u32 dealt = 0;
  for (u32 e = 0; e < a.call.num_local_experts; ++e) {
    const u64 last = static_cast<u64>(a.layout_range[static_cast<u64>(e + 1) * topology.num_ranks - 1]);
    const u32 n = static_cast<u32>(last >> 32) + static_cast<u32>(last);
    for (u32 i = (warp + warps - dealt % warps) % warps; i < n; i += warps)
      if (!send_row(a, wait, e * stride + i, plane, &staging)) {
        if (simt::lane() == 0) fail_launch(a.call.ticket);
        return;
      }
    dealt += n;
  }
}

KERNEL low_latency_combine_send(CombineSendArgs a) {
  CombineSendShared& shared = simt::smem<CombineSendShared>();
  const TopologyView& topology = a.rank.topology;
  const WaitContext wait = wait_context(a.rank);
  if (!may_start(wait)) return;
  announce_consumed(a.rank, wait, a.call);
  if (wait_for_reuse(a.rank, wait, a.call, Phase::kCombine, &shared.ok)) {
    const u32 warps = static_cast<u32>(simt::nbid() * simt::num_warps());
    const u32 warp = static_cast<u32>(simt::bid() * simt::num_warps() + simt::warp());
    for (u32 r = warp; r < topology.num_ranks; r += warps)
      if (!topology.is_local(r) && !masked(a.rank, r)) send_combine_count(a, wait, r);
    send_all_rows(a, wait, warp, warps);
  }
  if (!last_block(a.call.ticket, &shared.last)) return;
  for (u32 i = simt::tid(); i < topology.local_size; i += simt::ntid())
    simt::st_release_sys(word(a.rank.data[i], a.rank.signals.flag(Phase::kCombine, topology.rank)), a.call.epoch);
}

}  // namespace uccl

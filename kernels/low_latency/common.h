// What the four low-latency kernels share: their workspace, and the rule for reusing a buffer set.
//
// Epochs. Dispatch and combine calls are numbered from 1, separately; epoch e uses set e & 1. A set may be overwritten
// by epoch e only when every reader has finished epoch e - 2. Readers of the node store their progress into the
// writer's region. Remote readers announce theirs inside the ExpectHeader of whatever they send next, which in the
// usual dispatch-combine alternation has always arrived long before it is needed, so nothing is waited for and no
// message is added. Only when a rank has read something and sent nothing since does it announce on its own (`announce`).
#pragma once
#include "kernels/device/barrier.h"
#include "kernels/device/ring_push.h"
#include "kernels/layout/access.h"
#include "kernels/layout/low_latency.h"

namespace uccl {

struct LowLatencyCall {
  LowLatencyLayout layout;
  u64 epoch;  // of this phase
  u64 consumed_dispatch;  // epochs that this rank has finished reading, none left out; to be told to peers. In a
  // receiving half this call's own is among them
  u64 consumed_combine;
  u64 announce_epoch;  // non-zero: tell it on its own first, under Phase::kSpare
  u32 num_experts;
  u32 num_local_experts;
  u32* ticket;  // zero between launches
  u32* grid_barrier;  // kGridBarrierWords, zero between launches
};

// Finished epoch of `phase` that `reader` has made known here.
DEV u64 known_consumed(const RankContext& c, Phase phase, u32 reader) {
  if (c.topology.is_local(reader)) return simt::ld_acquire_sys(word(own_data(c), c.signals.consumed(phase, reader)));
  const u64 direct = simt::ld_acquire_sys(word(own_control(c), c.control_layout.consumed(phase, reader)));
  const u32 host = c.topology.host_of(reader, c.topology.node);
  const u64 hosted = simt::ld_acquire_sys(word(control_of(c, host), c.control_layout.consumed(phase, reader)));
  return direct > hosted ? direct : hosted;
}

// The whole grid: false in every thread of a block that gave up, or when any warp of any block had `ok` false. It has
// a timeout of its own behind the kernel's: blocks that are here already outwait those that still wait for peers, so a
// fault names the missing peer, and with `shrink` a missing peer is none.
DEV bool sync_launch(const RankContext& c, const WaitContext& wait, const LowLatencyCall& call, bool ok) {
  if (!ok && simt::lane() == 0) fail_launch(call.ticket);
  WaitContext patient = wait;
  patient.deadline_ns = c.timeout_ns > ~0ull - wait.deadline_ns ? ~0ull : wait.deadline_ns + c.timeout_ns;
  if (!sync_grid(call.grid_barrier, patient) && simt::tid() == 0) fail_launch(call.ticket);
  return simt::sync_block_and(!launch_failed(call.ticket));
}

// Waits until every rank has finished epoch - 2 of `phase`. Whole block; false when it failed, and so has the launch.
DEV bool wait_for_reuse(const RankContext& c, const WaitContext& wait, const LowLatencyCall& call, Phase phase,
                        u32* shared_ok) {
  const u64 epoch = call.epoch;
  if (epoch <= 2) return true;
  if (simt::tid() == 0) simt::st_release_gpu(shared_ok, 1u);
  simt::sync_block();
  if (simt::lane() == 0)
    for (u32 r = simt::warp(); r < c.topology.num_ranks; r += simt::num_warps()) {
      if (r == c.topology.rank || masked(c, r)) continue;
      const WaitPhase name = phase == Phase::kDispatch ? WaitPhase::kDispatchSend : WaitPhase::kCombineSend;
      const bool ok = wait_until(
          wait, WaitSite{name, r, ~0u, epoch - 2}, [&] { return known_consumed(c, phase, r); },
          [&](u64 seen) { return seen >= epoch - 2 || masked(c, r); });
      if (!ok) simt::st_release_gpu(shared_ok, 0u);
    }
  simt::sync_block();
  const bool ok = simt::ld_acquire_gpu(shared_ok) != 0;
  if (!ok && simt::tid() == 0) fail_launch(call.ticket);
  return ok;
}

// Tells the ranks of this node that this rank has finished every epoch up to `epoch`.
DEV void publish_consumed(const RankContext& c, Phase phase, u64 epoch) {
  for (u32 i = simt::tid(); i < c.topology.local_size; i += simt::ntid())
    if (i != c.topology.local) simt::st_release_sys(word(c.data[i], c.signals.consumed(phase, c.topology.rank)), epoch);
}

// "So many writes of (phase, epoch) are on their way to you."
struct Announcement {
  Phase phase;
  u32 peer;
  u64 epoch, num_writes;
  u32 header;  // LowLatencyLayout::header's kind: where the outgoing ExpectHeader is kept
};
// Writes the ExpectHeader into the outgoing area and sends it. One lane.
DEV void send_expect(const RankContext& c, const WaitContext& wait, const LowLatencyCall& call, const Announcement& a) {
  const u64 from = call.layout.header(a.epoch, a.header, a.peer);
  *reinterpret_cast<ExpectHeader*>(own_data(c) + from) =
      ExpectHeader{a.epoch, a.num_writes, call.consumed_dispatch, call.consumed_combine};
  Command m;
  m.op = Op::kCount;
  m.peer = a.peer;
  m.key = epoch_key(a.phase, a.epoch);
  m.local_offset = from;
  m.remote_offset = c.control_offset + c.control_layout.expect(a.phase, a.epoch, c.topology.rank);
  m.bytes = sizeof(ExpectHeader);
  push(ring_to(c, a.peer), m, wait);
}

// The rare announcement (see above): an ExpectHeader of Phase::kSpare that expects nothing, to every remote rank.
DEV void announce_consumed(const RankContext& c, const WaitContext& wait, const LowLatencyCall& call) {
  if (call.announce_epoch == 0 || simt::bid() != 0) return;
  if (simt::lane() != 0) return;  // lanes of one warp do not push side by side (ring_push.h)
  for (u32 r = simt::warp(); r < c.topology.num_ranks; r += simt::num_warps())
    if (!c.topology.is_local(r) && !masked(c, r))
      send_expect(c, wait, call, Announcement{Phase::kSpare, r, call.announce_epoch, 0, 2});
}

// Waits for an arrival flag. One lane. Returns false when the call failed. With `shrink`, a peer that does not come in
// time is masked instead, as DeepEP's enable_shrink does; `*absent` then says to treat it as having sent nothing.
DEV bool wait_for_flag(const RankContext& c, const WaitContext& wait, const WaitSite& site, const u64* flag, u64 epoch,
                       bool* absent) {
  *absent = masked(c, site.peer);
  if (*absent) return true;
  const u64 begin = simt::now_ns();
  WaitContext bounded = wait;
  if (c.shrink) bounded.fault = nullptr;  // expiry is not a fault then
  const bool ok = wait_until(
      bounded, site, [&] { return simt::ld_acquire_sys(flag); },
      [&](u64 seen) { return seen >= epoch || masked(c, site.peer); });
  add_stat(c, site.peer, PeerStat::kWaitNs, simt::now_ns() - begin);
  if (ok) {
    *absent = masked(c, site.peer);
    return true;
  }
  if (!c.shrink || simt::ld_acquire_sys(wait.abort) != 0) return false;
  simt::st_release_sys(&c.mask[site.peer], 1u);
  *absent = true;
  return true;
}

}  // namespace uccl

// Device-side shorthands over RankContext: where a word or a row of some rank is, as this rank sees it.
#pragma once
#include "kernels/device/ring_push.h"
#include "kernels/device/simt.h"
#include "kernels/device/wait.h"
#include "kernels/layout/rank_context.h"

namespace uccl {

// Of a launch; a CPU gives a block few warps of one lane.
inline constexpr u32 kMaxBlockWarps = kMaxBlockLanes / (simt::kWarp == 1 ? 32 : simt::kWarp);

DEV u64* word(u8* base, u64 offset) { return reinterpret_cast<u64*>(base + offset); }

DEV u8* own_data(const RankContext& c) { return c.data[c.topology.local]; }
DEV u8* own_control(const RankContext& c) { return c.control[c.topology.local]; }
DEV u8* data_of(const RankContext& c, u32 local_rank) { return c.data[c.topology.local_of[local_rank]]; }
DEV u8* control_of(const RankContext& c, u32 local_rank) { return c.control[c.topology.local_of[local_rank]]; }

// ---- identities (wire/identity.h) --------------------------------------------------------------------------------

DEV CallIdentity* own_identity(const RankContext& c, Phase phase, u64 epoch) {
  return reinterpret_cast<CallIdentity*>(own_data(c) + c.signals.identity(phase, epoch));
}

// One lane: what another rank of the group wrote of its call, which an acquired flag has made readable, is this rank's
// call too. Else the fault that is recorded says in what they differ.
DEV bool same_call(const WaitContext& wait, WaitPhase phase, u32 peer, const CallIdentity& mine,
                   const CallIdentity* theirs) {
  const CallIdentity seen{simt::ld_relaxed_sys(&theirs->shape), simt::ld_relaxed_sys(&theirs->origin)};
  IdentityDifference difference;
  if (!first_difference(mine, seen, &difference)) return true;
  record_fault(wait, WaitSite{phase, peer, difference.what, difference.mine}, FaultKind::kMismatch, difference.theirs);
  return false;
}

DEV WaitContext wait_context(const RankContext& c) {
  u8* control = own_control(c);
  return begin_wait(
      WaitContext{word(control, ControlLayout::kAbort), reinterpret_cast<FaultRecord*>(control + ControlLayout::kFault),
                  0, c.topology.rank, 0, word(control, c.control_layout.departed(0)), c.shrink ? c.timeout_ns : 0},
      c.timeout_ns);
}

// For a wait that only ends when others do that have the kernel's deadline: a timeout longer than theirs.
DEV u64 later_deadline(const RankContext& c, const WaitContext& wait) {
  return c.timeout_ns > ~0ull - wait.deadline_ns ? ~0ull : wait.deadline_ns + c.timeout_ns;
}

// The flag that says "everything of `source` for this phase and epoch is readable on my node": raised by the source's
// kernel when it is on my node, else by the proxy of its landing rank here.
DEV const u64* arrival_flag(const RankContext& c, Phase phase, u32 source) {
  if (c.topology.is_local(source)) return word(data_of(c, source), c.signals.flag(phase, source));
  const u32 landing = c.topology.landing_rank(source, c.topology.cell);
  return word(control_of(c, landing), c.control_layout.flag(phase, source));
}

// Ring that carries commands to `peer` for one phase; every key keeps to one ring (engine.h).
DEV const RingView& ring_to(const RankContext& c, u32 peer) { return c.rings[peer % c.num_rings]; }
// Ring of a channel's stream commands.
DEV const RingView& ring_of_channel(const RankContext& c, u32 channel) { return c.rings[channel % c.num_rings]; }

// A thread a ring: everything that this rank has put into its rings is complete at its receivers. False: the call failed.
// With `shrink` an expired wait fails nothing: what a peer that is gone was sent, nobody will read.
DEV bool await_rings(const RankContext& c, WaitContext wait, WaitPhase phase) {
  if (c.shrink) wait.fault = nullptr;
  for (u32 i = simt::tid(); i < c.num_rings; i += simt::ntid()) {
    const RingView& ring = c.rings[i];
    const u64 head = simt::ld_relaxed_gpu(ring.head);
    if (head == 0 || wait_done(ring, head - 1, wait, WaitSite{phase, kNoPeer, {}, 0})) continue;
    if (!c.shrink || aborted(wait)) return false;
  }
  return true;
}

DEV bool masked(const RankContext& c, u32 rank) {
  return c.mask != nullptr && simt::ld_relaxed_sys(&c.mask[rank]) != 0;
}

// Leaves a rank out from now on, in both modes; its proxy stops sending to it, which it may never read.
DEV void mask_peer(const RankContext& c, u32 rank) {
  u8* control = own_control(c);
  simt::st_relaxed_sys(word(control, c.control_layout.excluded(rank)), 1ull);
  simt::add_release_sys(word(control, ControlLayout::kExclusions), 1ull);  // pairs with the proxy's acquire
  simt::st_relaxed_sys(&c.mask[rank], 1u);
}

// One lane, after a wait that had no fault record to leave, since ranks may be left out: masks the peer that did not come.
// False: the call has failed, and must end.
template <class Load>
DEV bool mask_late(const RankContext& c, const WaitContext& wait, const WaitSite& site, Load load) {
  if (!c.shrink || aborted(wait)) return false;
  if (site.peer == c.topology.rank) {  // blocks of one rank wait for each other too: that is no peer's doing
    record_fault(wait, site, FaultKind::kTimeout, load());
    return false;
  }
  mask_peer(c, site.peer);
  return true;
}

// wait_until for `site.peer`, which `load` may change. With `shrink` (DeepEP's enable_shrink) a peer that does not come
// in time is masked instead of failing the call. One lane. False: the call failed. `*absent`: the peer is masked, and
// what was waited for will not be.
template <bool kHearsSilence = false, class Load, class Done>
DEV bool wait_or_mask(const RankContext& c, const WaitContext& wait, const WaitSite& site, Load load, Done done,
                      bool* absent) {
  *absent = masked(c, site.peer);
  if (*absent) return true;
  WaitContext bounded = wait;
  if (c.shrink) bounded.fault = nullptr;  // expiry is not a fault then
  // Every rank should have sent a flag by the call's deadline, so a wait for a flag that begins after it has no more
  // time. The next chunk of a stream may only have become possible then, so that wait has the whole timeout.
  if (site.detail.kind() == DetailKind::kNone) bounded.renewed_ns = 0;
  const bool ok =
      wait_until<kHearsSilence>(bounded, site, load, [&](u64 seen) { return done(seen) || masked(c, site.peer); });
  *absent = ok ? masked(c, site.peer) : mask_late(c, wait, site, load);
  return ok || *absent;
}

DEV void add_stat(const RankContext& c, u32 peer, PeerStat stat, u64 value) {
  simt::add_gpu(&c.peer_stats[peer * kPeerStats + static_cast<u32>(stat)], value);
}

// One lane: a word that another rank wrote is what no correct one writes. Ends the call; false, to be handed on.
DEV bool bad_arrival(const WaitContext& wait, const WaitSite& site, u64 seen) {
  record_fault(wait, site, FaultKind::kBadArrival, seen);
  return false;
}

// One lane: a peer's count of calls or rounds is at most `most`, beyond which it needs this rank to go on; unless it may
// have left this rank out.
DEV bool keeps_step(const RankContext& c, const WaitContext& wait, WaitSite site, u64 seen, u64 most) {
  if (seen <= most || c.shrink) return true;
  site.expected = most;
  return bad_arrival(wait, site, seen);
}

// Where in the memory of a rank of this node a row lies, as another rank says; null: there is no such place.
// `memories`: [2, local_size] of each rank's, where it is mapped here and how many bytes it has.
DEV const u16* row_in_memory(const u8* const* memories, u32 local_size, u32 local, u64 offset, u64 bytes) {
  if (local >= local_size || offset % sizeof(u16) != 0) return nullptr;
  const u64 size = reinterpret_cast<u64>(memories[local_size + local]);
  return offset <= size && bytes <= size - offset ? reinterpret_cast<const u16*>(memories[local] + offset) : nullptr;
}

// Same value in every lane of the warp, as lane 0 has it; what lane 0 acquired before is then visible to all of them.
DEV bool warp_agree(bool v) {
  const bool agreed = simt::shfl(static_cast<u32>(v), 0) != 0;
  simt::sync_warp();  // a shuffle alone orders no memory
  return agreed;
}

// A launch that cannot finish, told to its other blocks through its ticket: from now on no block is the last one, so
// nothing half-done is published. A rank that failed runs no kernel after it, so nobody resets the ticket.
inline constexpr u32 kLaunchFailed = 1u << 16;  // above every count of blocks; at most one a warp is added
DEV void fail_launch(u32* ticket) { simt::add_acq_rel_gpu(ticket, kLaunchFailed); }  // pairs with launch_failed
DEV bool launch_failed(const u32* ticket) { return simt::ld_acquire_gpu(ticket) >= kLaunchFailed; }
DEV bool launch_fails(const u32* ticket) { return simt::ld_relaxed_gpu(ticket) >= kLaunchFailed; }  // as a poll asks

// The whole block: false when this rank has failed before, so that what earlier kernels should have left is not read.
// One thread asks: the word is the host's.
DEV bool may_start(const WaitContext& wait) { return simt::sync_block_and(simt::tid() != 0 || !aborted(wait)); }

// True in every thread of the block that is the last of the grid to come here; everything that any block wrote before
// is then visible to it. `ticket` returns to 0 for the next launch. Never true in a launch that failed.
DEV bool last_block(u32* ticket, u32* shared_word) {
  simt::sync_block();
  if (simt::tid() == 0) {
    const u32 n = simt::add_acq_rel_gpu(ticket, 1u);
    const bool last = n == static_cast<u32>(simt::nbid()) - 1;
    if (last) *ticket = 0;  // the next launch comes behind this one
    *shared_word = last;
  }
  simt::sync_block();
  return *shared_word != 0;
}

}  // namespace uccl

// At the start of a call that exchanges no counts (a combine, a cached dispatch): every rank tells every other one which
// call this is, and compares what the others say (wire/identity.h). Without it a handle of another dispatch on one rank
// would be wrong rows on all. 16 bytes to each rank of other nodes; ranks of the node read them where they lie.
#pragma once
#include "kernels/throughput/common.h"

namespace uccl {

DEV CallIdentity identity_of(const RankContext& c, const ThroughputCall& call, CallKind kind) {
  using S = ThroughputShape;
  const RowShape& shape = call.shape;
  return CallIdentity{S::call().put(static_cast<u64>(kind)) | S::row_bytes().put(shape.payload_bytes) |
                          S::scale_bytes().put(shape.scale_bytes) | S::topk().put(shape.topk) |
                          S::has_ids().put(shape.has_ids) | S::has_weights().put(shape.has_weights) |
                          S::channels().put(call.geometry.num_channels) | S::dtype().put(shape.dtype),
                      CallIdentity::origin_of(*call.number, c.tag)};
}

// Lane 0 of one warp. A place that is written again is that of two calls ago: whoever has this rank's identity of the
// call before has read it.
DEV bool tell_identity(const RankContext& c, const WaitContext& wait, const CallIdentity& identity, u64 epoch) {
  const TopologyView& t = c.topology;
  *own_identity(c, Phase::kIdentity, epoch) = identity;
  simt::st_release_sys(word(own_data(c), c.signals.flag(Phase::kIdentity, t.rank)), epoch);
  for (u32 r = 0; r < t.num_ranks; ++r) {
    if (t.is_absent(r) || t.is_local(r) || (c.shrink && masked(c, r))) continue;
    Command m;
    m.op = Op::kWrite;
    m.peer = r;
    m.key = epoch_key(Phase::kIdentity, epoch);
    m.local_offset = c.signals.identity(Phase::kIdentity, epoch);
    m.remote_offset = c.control_offset + c.control_layout.identity(epoch, t.rank);
    m.bytes = sizeof(CallIdentity);
    if (push(ring_to(c, r), m, wait) == kNoTicket) return false;
  }
  return true;
}

// Lane 0 of one warp: every rank of this node (`local`), or of the others, that is not left out is in the same call.
DEV bool compare_identities(const RankContext& c, const WaitContext& wait, WaitPhase phase,
                            const CallIdentity& identity, u64 epoch, bool local) {
  const TopologyView& t = c.topology;
  for (u32 r = 0; r < t.num_ranks; ++r) {
    if (t.is_absent(r) || r == t.rank || t.is_local(r) != local) continue;
    const u64* const flag = local ? word(data_of(c, r), c.signals.flag(Phase::kIdentity, r))
                                  : word(own_control(c), c.control_layout.flag(Phase::kIdentity, r));
    bool absent;
    if (!wait_or_mask(
            c, wait, WaitSite{phase, r, 0, epoch}, SystemWord{flag}, [&](u64 seen) { return seen >= epoch; }, &absent))
      return false;
    if (absent) continue;
    const u8* const theirs = local ? data_of(c, r) + c.signals.identity(Phase::kIdentity, epoch)
                                   : own_control(c) + c.control_layout.identity(epoch, r);
    if (!same_call(wait, phase, r, identity, reinterpret_cast<const CallIdentity*>(theirs))) return false;
  }
  return true;
}

// The whole block, and only one of a launch, before it does anything else. False: the call has failed. Its last warp,
// which has the least to send, waits for the others to come to this call, as what sums their rows must too.
DEV bool identify(const RankContext& c, const ThroughputCall& call, CallKind kind, const WaitContext& wait) {
  if (simt::warp() != simt::num_warps() - 1) return true;
  bool ok = true;
  if (simt::lane() == 0) {
    const u64 epoch = call.identities->calls + 1;
    const CallIdentity identity = identity_of(c, call, kind);
    const WaitPhase phase = kind == CallKind::kCombine ? WaitPhase::kCombineReceive : WaitPhase::kDispatchReceive;
    ok = tell_identity(c, wait, identity, epoch) && compare_identities(c, wait, phase, identity, epoch, true);
    if (ok) simt::st_release_gpu(&call.identities->node, epoch);  // pairs with await_identified
    ok = ok && compare_identities(c, wait, phase, identity, epoch, false);
    if (ok) simt::st_release_gpu(&call.identities->compared, epoch);  // pairs with await_identified
  }
  return warp_agree(ok);
}

// One warp, before it reads what other ranks have written: those of `compared` (one of IdentityState's two) are
// in the same call, so it has the shape that this rank expects. False: the call has failed. The block that compares has
// the deadline, names whom it waits for, and ends this wait too: with its word, or with the rank's fault.
DEV bool await_identified(const RankContext& c, const ThroughputCall& call, const u64* compared,
                          const WaitContext& wait) {
  bool ok = true;
  if (simt::lane() == 0) {
    const u64 epoch = call.identities->calls + 1;
    WaitContext patient = wait;
    patient.deadline_ns = ~0ull;
    ok = wait_until(patient, WaitSite{WaitPhase::kCombineReceive, c.topology.rank, {}, epoch}, DeviceWord{compared},
                    [&](u64 seen) { return seen >= epoch; });
  }
  return warp_agree(ok);
}

// Of a wait for ranks that may read nothing before all ranks have come to this call: until they have, it ends after
// identify(), which names the one that is missing.
DEV u64 reader_deadline(const RankContext& c, const ThroughputCall& call, const WaitContext& wait) {
  const IdentityState& seen = *call.identities;
  const bool all_here = simt::ld_relaxed_gpu(&seen.compared) > seen.calls;
  return all_here ? wait.deadline_ns : later_deadline(c, wait);
}

// The whole block, last of all: the launch's last block counts it.
DEV void end_identified(const ThroughputCall& call) {
  simt::sync_block();
  if (simt::tid() != 0) return;
  if (simt::add_acq_rel_gpu(&call.identities->ticket, 1u) != static_cast<u32>(simt::nbid()) - 1) return;
  call.identities->ticket = 0;
  ++call.identities->calls;  // all blocks have read it
}

}  // namespace uccl

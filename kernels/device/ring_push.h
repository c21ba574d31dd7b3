// The kernels' end of a command ring; proxy/ring/layout.h has its protocol and order.
//
// A lane that gives up (full ring past the deadline) leaves its ticket unwritten, so the ring is dead after it: the
// fault that it records ends this use of the buffer.
#pragma once
#include "kernels/device/simt.h"
#include "kernels/device/wait.h"
#include "ring/layout.h"

namespace uccl::simt {

inline constexpr u64 kNoTicket = ~0ull;

// True when `ticket` may be written. Reads the consumer's tail (PCIe) only when the cached one says "full".
DEV bool ring_room(const RingView& ring, u64 ticket) {
  if (ticket - ld_relaxed_gpu(ring.cached_tail) < ring.capacity) return true;
  const u64 tail = ld_acquire_sys(ring.tail);  // pairs with RingConsumer::publish_tail
  st_relaxed_gpu(ring.cached_tail, tail);
  return ticket - tail < ring.capacity;
}

// The commit; pairs with the acquires of RingConsumer::peek.
DEV void ring_store(const RingView& ring, u64 ticket, const Command& command) {
  const u128 words = pack(command, lap_parity(ticket, ring.capacity));
  st_release_sys(&ring.slots[ticket & (ring.capacity - 1)], words.lo, words.hi);
}

// Records and refuses a command with a value beyond its field.
DEV bool ring_accepts(const Command& command, const WaitContext& context) {
  const CommandError error = check(command);
  if (error == CommandError::kOk) return true;
  record_fault(context, WaitSite{WaitPhase::kRing, command.peer, {}, 0}, FaultKind::kBadCommand,
               static_cast<u64>(error));
  return false;
}

// One lane of a warp pushes one command. Returns its ticket, or kNoTicket. (Two lanes of a warp at once could hang where
// lanes run in lockstep: the one without room waits for the one that has it, which waits for the loop to end.)
DEV u64 push(const RingView& ring, const Command& command, const WaitContext& context) {
  if (!ring_accepts(command, context)) return kNoTicket;
  const u64 ticket = add_gpu(ring.head, 1ull);
  if (!ring_room(ring, ticket)) {
    const u64 needed = ticket - ring.capacity + 1;
    u64 seen = 0;
    const bool room = wait_until(
        context, WaitSite{WaitPhase::kRing, command.peer, {}, needed},
        SystemWord{ring.tail},  // pairs with RingConsumer::publish_tail
        [&](u64 tail) { return ticket - (seen = tail) < ring.capacity; }, FaultKind::kRingFull);
    if (!room) return kNoTicket;
    st_relaxed_gpu(ring.cached_tail, seen);
  }
  ring_store(ring, ticket, command);
  return ticket;
}

// Warp-collective: the active lanes reserve with one add and store together, in lane order. Returns each lane's own
// ticket; kNoTicket for inactive lanes and failures. May be called with more active lanes than the ring has slots: the
// loop is the same for the whole warp, so no lane waits in it for one that has left it (AMD lanes run in lockstep). One
// lane reads the consumer's tail for all.
DEV u64 push_group(const RingView& ring, const Command& command, bool active, const WaitContext& context) {
  const bool mine = active && ring_accepts(command, context);
  const mask_t pushing = ballot(mine);
  if (pushing == 0) return kNoTicket;
  const u32 leader = first_lane(pushing);
  u64 first = 0;
  if (lane() == leader) first = add_gpu(ring.head, static_cast<u64>(popcount(pushing)));
  const u64 ticket = shfl(first, leader) + popcount(pushing & lane_mask_lt());

  const WaitSite site{WaitPhase::kRing, command.peer, {}, ticket - ring.capacity + 1};
  SpinClock clock;
  bool pending = mine, failed = false;
  u64 tail = ld_relaxed_gpu(ring.cached_tail);
  for (u32 turn = 0;; ++turn) {
    if (pending && ticket - tail < ring.capacity) {
      ring_store(ring, ticket, command);
      pending = false;
      if (turn > 1) end_spin();
    }
    const mask_t waiting = ballot(pending);
    if (waiting == 0) break;
    // The lowest waiting lane's slot frees first, so it looks at the tail, and its clock speaks for all.
    const u32 first_waiting = first_lane(waiting);
    if (turn != 0) pause();
    if (lane() == first_waiting) {
      if (turn != 0) failed = !clock.keep_waiting(context, site, FaultKind::kRingFull, tail);
      tail = ld_acquire_sys(ring.tail);  // pairs with RingConsumer::publish_tail
      st_relaxed_gpu(ring.cached_tail, tail);
    }
    tail = shfl(tail, first_waiting);
    if (shfl(static_cast<u32>(failed), first_waiting) != 0) break;
    sync_warp();  // what that lane acquired is then visible to all
  }
  return mine && !pending ? ticket : kNoTicket;
}

// Waits until the command with this ticket, and every earlier one of the ring, is complete at its receiver. One lane.
DEV bool wait_done(const RingView& ring, u64 ticket, const WaitContext& context, WaitSite site) {
  site.expected = ticket + 1;
  return wait_until(context, site, SystemWord{ring.done},  // pairs with RingConsumer::publish_done
                    [&](u64 done) { return done > ticket; });
}

// As wait_done, where a lane of this device may already have seen it (PCIe). One lane.
DEV bool wait_done_once(const RingView& ring, u64 ticket, const WaitContext& context, const WaitSite& site) {
  if (ld_acquire_gpu(ring.cached_done) > ticket) return true;  // pairs with the releases here and in learn_done
  if (!wait_done(ring, ticket, context, site)) return false;
  st_release_gpu(ring.cached_done, ticket + 1);
  return true;
}

// Before many lanes call wait_done_once for commands of long ago. One lane.
DEV void learn_done(const RingView& ring) {
  st_release_gpu(ring.cached_done, ld_acquire_sys(ring.done));  // pairs with RingConsumer::publish_done
}

}  // namespace uccl::simt

namespace uccl {
using simt::kNoTicket;
using simt::learn_done;
using simt::push;
using simt::push_group;
using simt::ring_room;
using simt::ring_store;
using simt::wait_done;
using simt::wait_done_once;
}  // namespace uccl

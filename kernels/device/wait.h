// Waiting with an end: a wait returns what it waited for, or leaves a fault record that says who waited for what.
//
// Every wait of a kernel shares one deadline, taken once at the kernel's start (`begin_wait`: one clock read a lane),
// so a kernel that cannot finish ends within its timeout however many waits it holds. The first that fails claims the
// fault record, releases `ready`, then releases `abort`, which ends every other wait of this rank.
#pragma once
#include "kernels/device/simt.h"
#include "wire/control.h"

namespace uccl::simt {

inline constexpr u32 kNoPeer = ~0u;
// A wait for a peer that has left ends this long after it was seen to have: what it sent last is with this rank's proxy
// by then, and needs a few of its turns, which on a crowded machine come late. When the proxy knows that nothing is on its
// way any more (Departed::kSilent), the wait looks once more and ends.
inline constexpr u64 kGoodbyeGraceNs = 1'000'000'000;

struct WaitContext {
  u64* abort;          // ControlLayout::kAbort, which is the first word; kSomeDeparted is beside it
  FaultRecord* fault;  // ControlLayout::kFault; null when expiry is no fault of the rank
  u64 deadline_ns;     // on now_ns()'s clock; set by begin_wait
  u32 rank;            // this one
  u32 unused;
  const u64* departed = nullptr;  // [num_ranks] ControlLayout::departed (Departed). May be null
  // For a wait that begins when the deadline has passed: a call that leaves out a peer at its deadline goes on, and what
  // it waits for next is not late yet. 0: such a wait ends at once.
  u64 renewed_ns = 0;
};

struct WaitSite {
  WaitPhase phase;
  u32 peer;  // or kNoPeer
  DetailWord detail;  // {}: none
  u64 expected;  // the value waited for, as the report shows it
};

DEV WaitContext begin_wait(WaitContext context, u64 timeout_ns) {
  const u64 now = now_ns();
  context.deadline_ns = timeout_ns > ~0ull - now ? ~0ull : now + timeout_ns;
  return context;
}

DEV bool aborted(const WaitContext& context) {
  return ld_acquire_sys(context.abort) != 0;  // pairs with the release in record_fault, or with the proxy's
}

struct FaultDetail {
  FaultKind kind;
  u64 seen;
  u64 waited_ns;
};

// Leaves the rank's first fault and ends its other waits. When another was first, it is the one that sets `abort`,
// after its record is complete: nobody sees abort without a record to read.
DEV void record_fault(const WaitContext& context, const WaitSite& site, const FaultDetail& detail) {
  FaultRecord* const fault = context.fault;
  if (fault == nullptr) return;
  // Atomic among this device's blocks; the proxy's claim races with it only where PCIe has atomics, and then both are
  // true faults of the rank.
  if (cas_sys(&fault->claimed, 0u, 1u) != 0) return;
  st_relaxed_sys(&fault->kind, static_cast<u32>(detail.kind));
  st_relaxed_sys(&fault->phase, static_cast<u32>(site.phase));
  st_relaxed_sys(&fault->peer, site.peer);
  st_relaxed_sys(&fault->detail, site.detail.word);
  st_relaxed_sys(&fault->expected, site.expected);
  st_relaxed_sys(&fault->seen, detail.seen);
  st_relaxed_sys(&fault->last_seen_ns, 0ull);  // the proxy knows
  st_relaxed_sys(&fault->waited_ns, detail.waited_ns);
  st_release_sys(&fault->ready, 1u);  // pairs with the acquire of whoever reports the fault
  st_release_sys(context.abort, 1ull);  // pairs with aborted()
}
DEV void record_fault(const WaitContext& context, const WaitSite& site, FaultKind kind, u64 seen) {
  record_fault(context, site, FaultDetail{kind, seen, 0});
}

// A wait that another's fault ended: when that was the loss of the very peer it waited for, the record gets to know what
// was waited for, which the proxy that filled it could not. First wait only.
DEV void explain_loss(const WaitContext& context, const WaitSite& site, u64 seen) {
  FaultRecord* const fault = context.fault;
  if (fault == nullptr || ld_acquire_sys(&fault->ready) == 0) return;  // pairs with the release after the record
  if (ld_relaxed_sys(&fault->kind) != static_cast<u32>(FaultKind::kPeerLost)) return;
  if (ld_relaxed_sys(&fault->peer) != site.peer) return;
  if (cas_sys(&fault->phase, static_cast<u32>(WaitPhase::kNone), static_cast<u32>(site.phase)) != 0) return;
  st_relaxed_sys(&fault->detail, site.detail.word);
  st_relaxed_sys(&fault->expected, site.expected);
  st_relaxed_sys(&fault->seen, seen);
}

// The slow part of a spin: look at abort and the clock every kSpinsPerCheck turns. For loops that wait_until does not
// fit (warp-wide ones); `seen` is what the report says.
// kHearsSilence: of low-latency calls; throughput's kernels have no register left for it.
template <bool kHearsSilence>
struct SpinClockOf {
  u32 spins = 0;
  u64 started_ns = 0;
  u64 left_ns = 0;  // when the peer was first seen to have left

  // False when the wait is over without what it waited for; the fault is then recorded.
  DEV_MEMBER bool keep_waiting(const WaitContext& context, const WaitSite& site, FaultKind kind, u64 seen) {
    if (++spins % kSpinsPerCheck != 0) return true;
    if (aborted(context)) {
      explain_loss(context, site, seen);
      return false;
    }
    const u64 now = now_ns();
    if (started_ns == 0) started_ns = now;
    const bool left = waits_in_vain(context, site, now);
    const u64 deadline_ns = started_ns < context.deadline_ns ? context.deadline_ns : started_ns + context.renewed_ns;
    if (now < deadline_ns && !left) return true;
    record_fault(context, site, FaultDetail{left ? FaultKind::kPeerLost : kind, seen, now - started_ns});
    return false;
  }

 private:
  DEV_MEMBER bool waits_in_vain(const WaitContext& context, const WaitSite& site, u64 now) {
    if (context.departed == nullptr || site.peer == kNoPeer) return false;
    if (ld_relaxed_sys(context.abort + ControlLayout::kSomeDeparted / sizeof(u64)) == 0) return false;
    // Pairs with the release of whoever heard the goodbye.
    const u64 departed = ld_acquire_sys(&context.departed[site.peer]);
    if (departed < Departed::kLeft) return false;
    if (left_ns == 0) left_ns = now;
    if constexpr (!kHearsSilence) return now - left_ns >= kGoodbyeGraceNs;
    return now - left_ns >= (departed >= Departed::kSilent ? 1 : kGoodbyeGraceNs);  // 1: when it has looked once more
  }
};
using SpinClock = SpinClockOf<false>;

// A word that is waited for. Calling it acquires what was written before the word; `peek` orders nothing, and costs a
// GPU less: each of its acquires empties the L1 of the lane's processor.
template <class T>
struct SystemWord {
  const T* at;
  DEV_MEMBER u64 operator()() const { return ld_acquire_sys(at); }
  DEV_MEMBER u64 peek() const { return ld_relaxed_sys(at); }
};
template <class T>
SystemWord(const T*) -> SystemWord<T>;
// The same for a word that only this device's blocks write.
template <class T>
struct DeviceWord {
  const T* at;
  DEV_MEMBER u64 operator()() const { return ld_acquire_gpu(at); }
  DEV_MEMBER u64 peek() const { return ld_relaxed_gpu(at); }
};
template <class T>
DeviceWord(const T*) -> DeviceWord<T>;

// The same for a word in shared memory.
struct BlockWord {
  const u32* at;
  DEV_MEMBER u64 operator()() const { return ld_acquire_cta(at); }
};

// load.peek(), and the acquire after it; a load without peek() is called each time, and has then acquired.
template <class Load>
DEV auto peek_at(const Load& load, int) -> decltype(load.peek()) {
  return load.peek();
}
template <class Load>
DEV u64 peek_at(const Load& load, long) {
  return load();
}
template <class Load>
DEV auto acquire_after_peek(const Load& load, int) -> decltype(static_cast<void>(load.peek())) {
  load();
}
template <class Load>
DEV void acquire_after_peek(const Load&, long) {}

// Spins until done(load()). For one lane, which then tells the others. False: deadline passed or the rank aborted.
// `load` does the acquiring; what it pairs with is the caller's to say. One that has peek() (SystemWord) acquires when it
// first looks, and again when the wait is over.
template <bool kHearsSilence = false, class Load, class Done>
DEV bool wait_until(const WaitContext& context, const WaitSite& site, Load load, Done done,
                    FaultKind kind = FaultKind::kTimeout) {
  u64 seen = load();
  if (done(seen)) return true;
  SpinClockOf<kHearsSilence> clock;
  for (;;) {
    pause();
    seen = peek_at(load, 0);
    if (done(seen)) {
      acquire_after_peek(load, 0);
      end_spin();
      return true;
    }
    if (!clock.keep_waiting(context, site, kind, seen)) return false;
  }
}

// Spins until done(load()), however long that takes, and looks at no word of the host: for what another block of the launch
// always says, since it has the deadline. One lane.
template <class Load, class Done>
DEV void wait_for_block(Load load, Done done) {
  if (done(load())) return;
  do pause();
  while (!done(peek_at(load, 0)));
  acquire_after_peek(load, 0);
  end_spin();
}

}  // namespace uccl::simt

namespace uccl {
using simt::aborted;
using simt::begin_wait;
using simt::BlockWord;
using simt::DeviceWord;
using simt::FaultDetail;
using simt::kNoPeer;
using simt::record_fault;
using simt::SpinClock;
using simt::SystemWord;
using simt::wait_for_block;
using simt::wait_until;
using simt::WaitContext;
using simt::WaitSite;
}  // namespace uccl

// The ring benchmark's kernels: warps that push commands, and a clock that answers the host. Compiled at run time like
// every kernel, with -DUCCL_BENCH_CLOCK=clock64 where a processor has a clock finer than now_ns().
#pragma once
#include "bench/device/ring_args.h"
#include "kernels/device/ring_push.h"
#include "kernels/device/simt.h"
#include "kernels/device/wait.h"

#ifndef UCCL_BENCH_CLOCK
#define UCCL_BENCH_CLOCK uccl::simt::now_ns
#endif

namespace uccl {

DEV u64 bench_clock() { return static_cast<u64>(UCCL_BENCH_CLOCK()); }

// One lane waits until a time on bench_clock. Times may wrap, hence the difference.
DEV void bench_wait_until(u64 due) {
  while (static_cast<i64>(due - bench_clock()) > 0) simt::pause();
  simt::end_spin();
}

// Any grid; ring of a warp = its number modulo num_rings.
KERNEL bench_ring_producer(RingBenchArgs a) {
  using namespace simt;
  const WaitContext wait = begin_wait(WaitContext{a.abort, nullptr, 0, 0, 0}, a.timeout_ns);
  const u32 warps = nbid() * num_warps(), number = bid() * num_warps() + warp();
  const RingView ring = a.rings[number % a.num_rings];
  Command c;
  c.op = Op::kWrite;
  c.peer = number % a.num_rings;
  c.key = static_cast<u32>(number & low_bits(kKeyBits));
  c.bytes = 7168;
  u64 refused = 0;
  // Warps start one after the other within the first interval, so that pushes are spread evenly and not in bursts.
  u64 due = bench_clock() + a.interval * (number + 1) / warps;
  for (u32 i = 0; i < a.pushes; ++i) {
    if (a.interval != 0) {
      if (lane() == 0) bench_wait_until(due);
      sync_warp();
      due += a.interval;
    }
    const u64 before = bench_clock();
    c.local_offset = (static_cast<u64>(i) * a.width + lane()) * kWireUnitBytes;
    if (a.stamped != 0) c.remote_offset = ring_stamp(now_ns());
    u64 ticket = kNoTicket;
    if (a.width > 1)
      ticket = push_group(ring, c, lane() < a.width, wait);
    else if (lane() == 0)
      ticket = push(ring, c, wait);
    if (lane() < a.width && ticket == kNoTicket) ++refused;
    if (a.round_trips == nullptr || lane() != 0 || ticket == kNoTicket) continue;
    wait_done(ring, ticket, wait, WaitSite{WaitPhase::kRing, c.peer, {}, 0});
    a.round_trips[static_cast<u64>(number) * a.pushes + i] = bench_clock() - before;
  }
  if (refused != 0) add_sys(a.refused, refused);
}

// One lane: answers `rounds` questions with the time at which it saw each.
KERNEL bench_clock_answers(ClockBenchArgs a) {
  using namespace simt;
  if (bid() != 0 || tid() != 0) return;
  const WaitContext wait = begin_wait(WaitContext{a.abort, nullptr, 0, 0, 0}, a.timeout_ns);
  u64 step = ~0ull;
  for (u32 i = 0; i < 64; ++i) {
    const u64 ns = now_ns();
    u64 next = ns;
    for (u32 spins = 0; next == ns && spins < 1000000; ++spins) next = now_ns();
    if (next != ns && next - ns < step) step = next - ns;
  }
  a.result[0] = bench_clock();
  a.result[1] = now_ns();
  for (u64 round = 1; round <= a.rounds; ++round) {
    // Pairs with the release in RingHost's ask().
    const bool asked = wait_until(
        wait, WaitSite{WaitPhase::kRing, kNoPeer, {}, round}, [&] { return ld_acquire_sys(a.question); },
        [&](u64 seen) { return seen >= round; });
    if (!asked) break;
    st_release_sys(a.answer, round, now_ns());  // pairs with the acquire in ask()
  }
  a.result[2] = bench_clock();
  a.result[3] = now_ns();
  a.result[4] = step;
}

}  // namespace uccl

// A barrier of all ranks that also orders data: a rank enters it when everything in its rings has arrived; it then meets
// the ranks of its node by words that peers read, the others through the proxies. One warp.
#pragma once
#include "kernels/device/ring_push.h"
#include "kernels/layout/access.h"

namespace uccl {

struct BarrierArgs {
  RankContext rank;
  u64 round;  // 1, 2, 3, ... the same on every rank
};

// All lanes: what this rank has sent has arrived. With `shrink` what does not arrive is given half the timeout, since others
// leave out a rank that enters late.
DEV bool await_sent(const BarrierArgs& a, WaitContext wait) {
  if (a.rank.shrink) {
    wait = begin_wait(wait, a.rank.timeout_ns / 2);
    wait.renewed_ns = 0;
  }
  return simt::sync_block_and(await_rings(a.rank, wait, WaitPhase::kBarrierSend));
}

// One lane: the proxies of all ranks on other nodes have met. Who has not come in time is masked (with `shrink`), and
// the proxy then no longer waits for it.
DEV void await_remote(const BarrierArgs& a, WaitContext wait) {
  const RankContext& c = a.rank;
  const WaitSite site{WaitPhase::kBarrier, kNoPeer, {}, a.round};
  const u64* const came = word(own_control(c), ControlLayout::kBarrier);
  for (;;) {
    WaitContext bounded = wait;
    if (c.shrink) bounded.fault = nullptr;
    const bool ok = wait_until(bounded, site, SystemWord{came}, [&](u64 seen) { return seen >= a.round; });
    if (ok || !c.shrink || aborted(wait)) return;
    bool news = false;
    for (u32 r = 0; r < c.topology.num_ranks; ++r) {  // the proxy notes for reports: 1 due, 0 here
      const u64 noted = simt::ld_relaxed_sys(word(own_control(c), c.control_layout.progress(Phase::kSpare, r)));
      if (c.topology.is_local(r) || masked(c, r) || noted != 1ull << 32) continue;
      mask_peer(c, r);
      news = true;
    }
    wait = begin_wait(wait, c.timeout_ns);
    if (!news) {
      wait_until(wait, site, SystemWord{came}, [&](u64 seen) { return seen >= a.round; });
      return;
    }
  }
}

KERNEL rank_barrier(BarrierArgs a) {
  const TopologyView& t = a.rank.topology;
  const WaitContext wait = wait_context(a.rank);
  if (simt::bid() != 0) return;
  if (t.num_nodes > 1 && !await_sent(a, wait)) return;
  if (simt::tid() == 0) {
    // Node peers may read what this rank stored before (release); remote peers are told by the proxy.
    simt::st_release_sys(word(own_data(a.rank), a.rank.signals.barrier()), a.round);
    if (t.num_nodes > 1) {
      Command m;
      m.op = Op::kBarrier;
      m.peer = t.rank;
      m.key = static_cast<u32>(a.round & low_bits(kKeyBits));
      push(a.rank.rings[0], m, wait);
    }
  }
  for (u32 g = simt::tid(); g < t.local_size; g += simt::ntid()) {
    const u64* entered = word(a.rank.data[g], a.rank.signals.barrier());
    const WaitSite site{WaitPhase::kBarrier, t.mates[g], {}, a.round};
    bool absent;
    const bool ok =
        wait_or_mask(a.rank, wait, site, SystemWord{entered}, [&](u64 seen) { return seen >= a.round; }, &absent);
    if (ok && !absent) keeps_step(a.rank, wait, site, simt::ld_relaxed_sys(entered), a.round + 1);
  }
  if (simt::tid() == 0 && t.num_nodes > 1) await_remote(a, wait);
}

}  // namespace uccl

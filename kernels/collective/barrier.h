// A barrier of all ranks that also orders data: on the node by words that peers read, between nodes by the proxies
// (Op::kBarrier drains the ring first). One warp.
#pragma once
#include "kernels/device/ring_push.h"
#include "kernels/layout/access.h"

namespace uccl {

struct BarrierArgs {
  RankContext rank;
  u64 round;  // 1, 2, 3, ... the same on every rank
};

KERNEL rank_barrier(BarrierArgs a) {
  const TopologyView& t = a.rank.topology;
  const WaitContext wait = wait_context(a.rank);
  if (simt::bid() != 0) return;
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
    wait_until(
        wait, WaitSite{WaitPhase::kBarrier, t.member(t.node, g), kNoChannel, a.round},
        [&] { return simt::ld_acquire_sys(entered); }, [&](u64 seen) { return seen >= a.round; });
  }
  if (simt::tid() == 0 && t.num_nodes > 1)
    wait_until(
        wait, WaitSite{WaitPhase::kBarrier, kNoPeer, kNoChannel, a.round},
        [&] { return simt::ld_acquire_sys(word(own_control(a.rank), ControlLayout::kBarrier)); },
        [&](u64 seen) { return seen >= a.round; });
}

}  // namespace uccl

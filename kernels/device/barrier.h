// A barrier over all blocks of one launch (which must all be resident: runtime.h on a CPU, a cooperative or small
// launch on a GPU).
//
// One u32, zeroed once. A barrier adds exactly 2^31 to it in total, so its top bit flips when the last block arrives
// and nothing is ever reset: grids of different sizes may use it one after the other. A barrier that failed leaves it
// in between; zero it before the next use.
#pragma once
#include "kernels/device/simt.h"
#include "kernels/device/wait.h"

namespace uccl::simt {

inline constexpr u32 kGridBarrierWords = 1;  // u32, zeroed before the first use

// All lanes of all blocks. What any lane wrote before is visible to every lane after. False in every lane of a block
// when that block gave up. Block 0 has the deadline and looks at abort; the others wait for as long as gave_up() is false,
// which looks at this device's memory alone and becomes true when block 0 has given up.
template <class GaveUp>
DEV bool sync_grid(u32* counter, const WaitContext& context, GaveUp gave_up) {
  constexpr u32 kTop = 0x80000000u;
  sync_block();  // this block's writes are before its arrival
  bool arrived = true;
  if (tid() == 0) {
    const u32 share = bid() == 0 ? kTop - (nbid() - 1) : 1;
    const u32 before = add_acq_rel_gpu(counter, share);  // release: pairs with the acquire below, in other blocks
    const DeviceWord all{static_cast<const u32*>(counter)};
    const auto complete = [&](u64 now) { return ((now ^ before) & kTop) != 0; };
    if (bid() == 0) {
      arrived = wait_until(context, WaitSite{WaitPhase::kBarrier, context.rank, {}, nbid()}, all, complete);
    } else {
      wait_for_block(all, [&](u64 now) { return (arrived = complete(now)) || gave_up(); });
    }
  }
  return sync_block_and(arrived);
}

}  // namespace uccl::simt

namespace uccl {
using simt::kGridBarrierWords;
using simt::sync_grid;
}  // namespace uccl

// Runs a kernel on the CPU: a lane is a fiber, a block belongs to one worker thread, and a launch returns when its last
// lane has. All blocks of a launch are resident at once, because kernels wait for each other.
#pragma once
#include <functional>

#include "kernels/host/backend_host.h"

namespace uccl::simt {
inline namespace UCCL_SIMT_WIDTH {
// Lanes of one launch (grid * block rounded up to warps). Each has a 64 KiB stack of which it touches 4 to 8 KiB, so a
// launch at the limit takes about 0.25 GB; a larger one is refused, since running its blocks in turn could hang.
inline constexpr u32 kMaxLanes = 1u << 15;
inline constexpr u32 kMaxBlock = 1024;
inline constexpr u32 kMaxSharedBytes = 227u << 10;  // of one block; what the largest GPU has
inline constexpr u32 kStackBytes = 64u << 10;

struct LaunchConfig {
  u32 grid = 1;  // blocks
  u32 block = kWarp;  // lanes a block
  u32 smem_bytes = 0;  // shared memory a block; starts as 0xCD bytes, so that kernels do not count on zeros
  u32 threads = 1;  // worker threads, the caller's included
  u64 seed = 0;  // not 0: warps run in an order drawn from it, the same one for the same seed and one thread
};

// With host_hooks set (one thread a launch then), `after_pass` is called in the place of every rest, so that several
// launches can take turns on one thread, each on a fiber of its own (fiber.h), in a time that a simulator makes.
//
// Throws std::invalid_argument for a shape that cannot run, std::logic_error when lanes wait at a barrier or a shuffle
// that the rest of their warp or block can no longer reach, and whatever a lane threw (first one; the other lanes are
// then dropped where they stand, without unwinding).
void launch(const LaunchConfig& config, const std::function<void()>& lane_body);

// Bytes of fiber stacks that are kept for the next launch.
u64 pooled_stack_bytes();

}  // namespace UCCL_SIMT_WIDTH
}  // namespace uccl::simt

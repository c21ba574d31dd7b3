// Launches of kernels on a CPU at a width of its own.
#pragma once
#include "kernels/host/runtime.h"

namespace uccl::cpu {

struct Launch {
  u32 blocks, warps, threads;
  u32 shared_bytes;  // of a block
};

// Runs a kernel at the width of the including file. Returns when its last block has ended; throws what simt::launch does.
template <class Args>
void run(void (*kernel)(Args), const Args& args, const Launch& launch) {
  simt::LaunchConfig config;
  config.grid = launch.blocks;
  config.block = launch.warps * simt::kWarp;
  config.smem_bytes = launch.shared_bytes;
  config.threads = launch.threads;
  simt::launch(config, [&] { kernel(args); });
}

}  // namespace uccl::cpu

// Launches of kernels on a CPU at a width of its own.
#pragma once
#include "kernels/host/runtime.h"

namespace uccl::cpu {

struct Shape {
  u32 blocks, warps, threads;
};

// Runs a kernel at the width of the including file. Returns when its last block has ended; throws what simt::launch does.
template <class Args>
void run(void (*kernel)(Args), const Args& args, const Shape& shape) {
  simt::LaunchConfig config;
  config.grid = shape.blocks;
  config.block = shape.warps * simt::kWarp;
  config.smem_bytes = static_cast<u32>(shared_bytes(args, shape.warps));
  config.threads = shape.threads;
  simt::launch(config, [&] { kernel(args); });
}

}  // namespace uccl::cpu

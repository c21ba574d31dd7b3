// The kernels of the CPU build, found by name or by the type of their arguments.
#pragma once
#include "kernels/cpu/launch.h"
#include "kernels/host/stream.h"
#include "kernels/launch/launch.h"

namespace uccl {

struct KernelEntry {
  const char* name;
  u64 argument_bytes;
  u64 (*shared_bytes)(const void* args, u32 warps);  // of a block
  // Queues the kernel with a copy of its arguments.
  void (*queue)(simt::Stream& stream, const void* args, const cpu::Shape& shape);
};

// Set by register_kernels. Each kernel has an argument struct of its own.
template <class Args>
inline const KernelEntry* kernel_of = nullptr;

}  // namespace uccl

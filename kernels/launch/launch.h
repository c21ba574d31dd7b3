// What a call of the library becomes: a kernel's arguments, and what it asks of the device that runs it.
#pragma once
#include "wire/types.h"

namespace uccl {

// The warps of a block, where a call asks for no other number.
inline constexpr u32 kBlockWarps = 4;

// The device that runs a launch, as far as shapes follow it: this rank's share. A CPU has few blocks of few warps, however
// many threads run them; its shapes do not follow the size of a call.
struct DeviceShape {
  u32 num_sms = 1;
  u32 block_warps = kBlockWarps;
  bool host = true;
};

// `exact`: the kernel needs so many blocks, all at once. Otherwise `blocks` are units of work, which go round as many
// blocks as the device grants.
struct Grid {
  u32 blocks, warps;
  bool exact;
};
constexpr Grid exactly(u32 blocks, u32 warps = kBlockWarps) { return Grid{blocks, warps, true}; }
constexpr Grid up_to(u32 units, u32 warps = kBlockWarps) { return Grid{units == 0 ? 1 : units, warps, false}; }

template <class Args>
struct Launch {
  Args args;
  Grid grid;
};

}  // namespace uccl

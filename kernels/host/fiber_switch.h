// The stack switch of the fiber runtime: 20 instructions of assembly for x86-64 and for aarch64.
#pragma once
#include "wire/types.h"

// Saves the callee-saved registers on the current stack, stores its pointer to *save, and goes on where `load` was
// saved. The floating-point control words are not switched: no kernel changes them.
extern "C" void uccl_fiber_switch(void** save, void* load);

namespace uccl::simt {

// Writes the first frame of a fiber below `top` (16-byte aligned); a switch to the result calls `entry` on that stack.
// `entry` never returns.
void* make_fiber(void* top, void (*entry)());

}  // namespace uccl::simt

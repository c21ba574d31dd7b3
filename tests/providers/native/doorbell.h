// Registers that are told something by every store, where a later value does not include an earlier one: pages of them
// cannot be written, a store stops in a signal handler, which reads the instruction, keeps the value and goes on behind it.
#pragma once
#include <cstddef>

#include "providers/native/device.h"

namespace box {

// A mapping of such a page; `forget` when it is unmapped.
void watch(void* at, std::size_t bytes, Device& device);
void forget(void* at);
// Hands stores since the last call to their devices, in order; whether there were any. With the mutex held, as the next.
bool hand_out_stores();
// All that have begun: another thread's may be half done in front of ours.
void hand_out_all_stores();

}  // namespace box

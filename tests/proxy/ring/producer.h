// A host thread's end of a ring, for tests and benchmarks: groups of commands of any length. Room and commit are the
// kernels' own (kernels/device/ring_push.h), on a CPU's back end.
#pragma once
#include <span>

#include "kernels/device/ring_push.h"
#include "ring/consumer.h"

namespace uccl {

// Reserves tickets for all of `commands` at once, then stores each as its slot frees. `wait()` is called while the ring
// is full and returns false to give up; a false result leaves the reserved tickets unwritten, so the ring is dead.
template <class Wait>
bool ring_push(RingView r, std::span<const Command> commands, u64* first_ticket, Wait&& wait) {
  const u64 first = simt::add_gpu(r.head, commands.size());
  if (first_ticket) *first_ticket = first;
  for (u64 i = 0; i < commands.size(); ++i) {
    while (!ring_room(r, first + i))
      if (!wait()) return false;
    ring_store(r, first + i, commands[i]);
  }
  return true;
}

}  // namespace uccl

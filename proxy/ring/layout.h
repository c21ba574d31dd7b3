// The memory of one command ring, shared by its producers (kernel lanes) and its one consumer (a proxy worker).
//
// Protocol. A producer takes a ticket from `head`; ticket t may be written once t - tail < capacity. The store of the
// 16-byte command is the commit: its lap parity (command.h) tells the consumer that slot t % capacity now holds ticket
// t. The consumer reads slots in ticket order, hands commands on, and releases `tail`; producers keep a cached tail and
// read the real one only when the cached one says "full". `done` follows `tail`: commands up to it are complete at
// their receiver (so their source bytes may be overwritten, and a kQuiet with that ticket has returned).
//
//   word         writer     readers    pairs with
//   slot         producer   consumer   release store / acquire load of both words
//   head         producers  producers  relaxed add: it orders nothing, it hands out tickets
//   tail         consumer   producers  release / acquire: the slot was read before it is overwritten
//   done         consumer   producers  release / acquire
//   cached tail  producers  producers  relaxed, racy, monotone enough: a stale value only costs a real read
//   cached done  producers  producers  release / acquire, racy and stale likewise
//
// On a GPU `head` and what is cached live in device memory and the rest in pinned host memory, so a push costs one
// posted 16-byte store over PCIe.
#pragma once
#include "wire/command.h"
#include "wire/types.h"

namespace uccl {

struct alignas(64) RingHeader {
  u64 tail;
  alignas(64) u64 done;
  alignas(64) u64 head;  // on a CPU the producers' words live here too
  alignas(64) u64 cached_tail;
  u64 cached_done;
};
static_assert(sizeof(RingHeader) == 256);

constexpr u64 ring_bytes(u32 capacity) { return sizeof(RingHeader) + static_cast<u64>(capacity) * sizeof(u128); }
constexpr bool valid_capacity(u32 capacity) { return capacity >= 2 && (capacity & (capacity - 1)) == 0; }

// What a producer holds: pointers that may lie in different memories.
struct RingView {
  u128* slots;
  u64* head;
  u64* cached_tail;
  u64* cached_done;
  const u64* tail;
  const u64* done;
  u32 capacity;  // power of two
  u32 unused;
};

}  // namespace uccl

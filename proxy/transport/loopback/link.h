// One direction between two ranks of one process, on one lane: requests go one way, completions come back.
//
// The receiver copies straight out of the sender's source memory. `copying` and `sender_closed` make that safe against
// a sender that leaves (Dekker's handshake, sequentially consistent on both sides): a receiver raises `copying`, then
// looks at `sender_closed`; a leaving sender raises `sender_closed`, then waits until `copying` is down.
#pragma once
#include <sched.h>

#include <atomic>
#include <chrono>

#include "transport/spsc_queue.h"
#include "wire/types.h"

namespace uccl {

struct LoopbackRequest {
  const u8* source;
  u64 remote_offset;
  u64 bytes;
  u64 wr_id;
  u32 immediate;
};

struct LoopbackLink {
  explicit LoopbackLink(u32 capacity) : requests(capacity), completions(capacity) {}

  SpscQueue<LoopbackRequest> requests;  // sender -> receiver
  SpscQueue<u64> completions;           // receiver -> sender: wr_ids
  // 0 = open, otherwise 1 + the code that the other side reports with kLost.
  alignas(64) std::atomic<u32> sender_closed{0};
  alignas(64) std::atomic<u32> receiver_closed{0};
  alignas(64) std::atomic<u32> copying{0};

  // Receiver: true when the source memory of a popped request may be read until `end_copy`.
  bool begin_copy() {
    copying.store(1, std::memory_order_seq_cst);
    if (sender_closed.load(std::memory_order_seq_cst) == 0) return true;
    end_copy();
    return false;
  }
  void end_copy() { copying.store(0, std::memory_order_release); }  // pairs with close_sender's load

  // Sender: after this its source memory is not read any more. Waits for one copy (16 MiB at most) that has begun; the
  // deadline only matters when the receiving thread is stopped in a debugger.
  void close_sender(u32 code) {
    sender_closed.store(1 + code, std::memory_order_seq_cst);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (copying.load(std::memory_order_seq_cst) != 0 && std::chrono::steady_clock::now() < deadline) sched_yield();
  }
};

}  // namespace uccl

// The handshake between a receiver that copies and a sender that leaves.
#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "native/check.h"
#include "transport/loopback/link.h"

using namespace uccl;

TEST(transport_loopback_link_refuses_copies_after_the_sender_left) {
  LoopbackLink link(4);
  CHECK(link.begin_copy());
  link.end_copy();
  link.close_sender(5);
  CHECK_EQ(link.sender_closed.load(), 6u);
  CHECK(!link.begin_copy());
  CHECK_EQ(link.copying.load(), 0u);
}

TEST(transport_loopback_link_never_copies_what_was_freed) {
  u64 wrong = 0;
  for (u64 round = 0; round < 200; ++round) {
    LoopbackLink link(4);
    std::atomic<u64> right{0};
    auto memory = std::make_unique<std::vector<u64>>(64, 0);
    std::thread receiver([&, p = memory->data()] {
      while (link.begin_copy()) {
        for (int i = 0; i < 64; ++i) wrong += p[i] != 0;
        right.fetch_add(1, std::memory_order_relaxed);
        link.end_copy();
      }
    });
    // How soon a thread runs is the machine's affair: every fifth sender leaves at once, the others in the middle.
    while (right.load(std::memory_order_relaxed) < round % 5) sched_yield();
    link.close_sender(0);
    std::fill(memory->begin(), memory->end(), 1);  // a race, were the receiver still reading
    memory.reset();
    receiver.join();
  }
  CHECK_EQ(wrong, 0u);
}

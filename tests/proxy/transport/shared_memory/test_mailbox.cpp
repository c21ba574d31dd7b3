// The mailbox's layout: rings do not overlap, the writers of a ring do not share cache lines.
#include <cstddef>

#include "native/check.h"
#include "transport/shared_memory/mailbox.h"

using namespace uccl;

TEST(transport_shared_memory_mailbox_rings_follow_each_other) {
  for (const u32 capacity : {1u, 2u, 64u, 1u << 16}) {
    const MailboxLayout l{5, 3, capacity};
    u64 end = sizeof(MailboxHeader);
    for (u32 sender = 0; sender < 5; ++sender) {
      for (u32 lane = 0; lane < 3; ++lane) {
        CHECK_EQ(l.ring(sender, lane), end);
        CHECK_EQ(end % 64, 0u);
        end += l.ring_bytes();
        CHECK(l.ring_bytes() >= sizeof(MailboxRing) + capacity * 4ull);
      }
    }
    CHECK_EQ(l.bytes(), end);
  }
  CHECK_EQ(offsetof(MailboxRing, consumed) - offsetof(MailboxRing, tail), 64u);
}

// The text of a shared-memory address: what is written is read, what is wrong is refused.
#include "native/check.h"
#include "transport/shared_memory/address.h"
#include "wire/limits.h"

using namespace uccl;

TEST(transport_shared_memory_address_round_trip) {
  SharedMemoryAddress a;
  a.pid = 0x7fffffff;
  a.mailbox_fd = 12;
  a.capacity = 1u << 16;
  CHECK_EQ(SharedMemoryAddress::parse(a.text()).spans.size(), 0u);
  a.spans = {{0, 4096, 3}, {kMaxRegionBytes - 1, 1, 0}, {1ull << 33, 1ull << 32, 0x7fffffff}};
  const SharedMemoryAddress b = SharedMemoryAddress::parse(a.text());
  CHECK_EQ(b.pid, a.pid);
  CHECK_EQ(b.mailbox_fd, a.mailbox_fd);
  CHECK_EQ(b.capacity, a.capacity);
  CHECK_EQ(b.spans.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    CHECK_EQ(b.spans[i].offset, a.spans[i].offset);
    CHECK_EQ(b.spans[i].bytes, a.spans[i].bytes);
    CHECK_EQ(b.spans[i].fd, a.spans[i].fd);
  }
}

TEST(transport_shared_memory_address_refuses_nonsense) {
  const std::string over = std::to_string(kMaxRegionBytes);
  const std::string bad[] = {"",
                             "shm1",
                             "shm1 ",
                             "shm2 1 2 4",
                             "127.0.0.1:80",
                             "shm1 1 2",
                             "shm1 1 2 3",
                             "shm1 1 2 0",
                             "shm1 1 2 131072",
                             "shm1 -1 2 4",
                             "shm1 1 2147483648 4",
                             "shm1 1 2 4 ",
                             "shm1 1 2 4 0,0,3",
                             "shm1 1 2 4 0,16",
                             "shm1 1 2 4 16," + over + ",3",
                             "shm1 1 2 4 0,16,3x",
                             "shm1 1 2 4 0;16;3",
                             "shm1 1 2 4 99999999999999999999,1,3"};
  for (const std::string& text : bad) CHECK_THROWS(std::runtime_error, SharedMemoryAddress::parse(text));
}

// Cutting or changing any one character never crashes and never yields a span outside the limits.
TEST(transport_shared_memory_address_survives_damage) {
  const std::string good = "shm1 123 45 64 4096,8192,7 65536,16,9";
  int accepted = 0;
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int c = 0; c < 256; ++c) {
      std::string text = good;
      if (c == 0)
        text.resize(at);
      else
        text[at] = static_cast<char>(c);
      try {
        for (const auto& s : SharedMemoryAddress::parse(text).spans) {
          CHECK(s.bytes != 0 && s.offset + s.bytes <= kMaxRegionBytes && s.fd >= 0);
        }
        ++accepted;
      } catch (const check::Failure&) { throw; } catch (const std::runtime_error&) {
      }
    }
  }
  CHECK(accepted > 0);
}

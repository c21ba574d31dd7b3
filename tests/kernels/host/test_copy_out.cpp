// Rows copied past the caches: the right bytes and no others, and there for another thread that acquires a flag.
#include <atomic>
#include <thread>
#include <vector>

#include "kernels/host/copy_out.h"
#include "native/check.h"

namespace uccl::simt::host {
namespace {

struct alignas(64) Line {
  u8 bytes[64];
};

}  // namespace

TEST(copy_out_writes_these_bytes_and_no_others) {
  std::vector<Line> from(20), to(20);
  for (u32 i = 0; i < 20 * 64; ++i) from[i / 64].bytes[i % 64] = static_cast<u8>(i * 31 + 7);
  for (const u32 at : {0u, 16u, 32u, 48u})
    for (u32 bytes = 0; bytes <= 1024; bytes += 16) {
      std::memset(to.data(), 0xee, to.size() * 64);
      copy_out(to[1].bytes + at, from[0].bytes + 16, bytes);
      for (u32 i = 0; i < 20 * 64; ++i) {
        const bool inside = i >= 64 + at && i < 64 + at + bytes;
        const u32 source = i - 64 - at + 16;
        CHECK_EQ(to[i / 64].bytes[i % 64], inside ? from[source / 64].bytes[source % 64] : 0xee);
      }
    }
}

TEST(copy_out_is_complete_before_a_release_that_follows) {
  constexpr u32 kRounds = 2000, kLines = 224;
  std::vector<Line> from(kLines), to(kLines);
  std::atomic<u32> written{0}, read{0};
  std::atomic<u32> wrong{0};
  std::thread reader([&] {
    for (u32 round = 1; round <= kRounds; ++round) {
      while (written.load(std::memory_order_acquire) != round) std::this_thread::yield();
      for (const Line& line : to)
        wrong += line.bytes[0] != static_cast<u8>(round) || line.bytes[63] != static_cast<u8>(round);
      read.store(round, std::memory_order_release);
    }
  });
  for (u32 round = 1; round <= kRounds; ++round) {
    std::memset(from.data(), static_cast<int>(round & 0xff), kLines * 64);
    copy_out(to[0].bytes, from[0].bytes, kLines * 64);
    written.store(round, std::memory_order_release);
    while (read.load(std::memory_order_acquire) != round) std::this_thread::yield();
  }
  reader.join();
  CHECK_EQ(wrong.load(), 0u);
}

}  // namespace uccl::simt::host

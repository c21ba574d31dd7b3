// The stack pool: slabs are apart, writable to their ends, used again, and bounded.
#include <cstring>
#include <set>
#include <thread>

#include "kernels/host/stack_pool.h"
#include "native/check.h"

namespace uccl::simt {

TEST(stack_pool_slabs_are_apart_and_used_again) {
  const u64 bytes = 1 << 20;
  StackPool pool(bytes, 3);
  std::vector<u8*> slabs;
  for (int i = 0; i < 5; ++i) slabs.push_back(pool.take());
  const std::set<u8*> first(slabs.begin(), slabs.end());
  CHECK_EQ(first.size(), 5u);
  for (u64 i = 0; i < 5; ++i) std::memset(slabs[i], static_cast<int>(i + 1), bytes);
  for (u64 i = 0; i < 5; ++i) CHECK(slabs[i][0] == i + 1 && slabs[i][bytes - 1] == i + 1);
  CHECK_EQ(pool.kept_bytes(), 0ull);
  for (u8* slab : slabs) pool.give(slab);
  CHECK_EQ(pool.kept_bytes(), 3 * bytes);  // two were unmapped
  CHECK(first.count(pool.take()) == 1);
  CHECK_EQ(pool.kept_bytes(), 2 * bytes);
}

TEST(stack_pool_is_safe_from_many_threads) {
  StackPool pool(1 << 16, 8);
  std::vector<std::thread> threads;
  std::vector<u32> wrong(4, 0);
  for (u32 t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (u32 i = 0; i < 300; ++i) {
        u8* slab = pool.take();
        *slab = static_cast<u8>(t);
        std::this_thread::yield();
        wrong[t] += *slab != t;
        pool.give(slab);
      }
    });
  for (std::thread& t : threads) t.join();
  for (const u32 n : wrong) CHECK_EQ(n, 0u);
  CHECK(pool.kept_bytes() <= 8ull << 16);
}

}  // namespace uccl::simt

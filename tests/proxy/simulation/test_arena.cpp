// Memory that is used again: zeroed, aligned, apart.
#include "native/check.h"
#include "simulation/arena.h"

TEST(simulation_arena_memory_is_zeroed_aligned_and_used_again) {
  using namespace uccl;
  simulation::Arena arena;
  u64 held = 0;
  for (int round = 0; round < 3; ++round) {
    arena.reset();
    std::vector<u8*> taken;
    for (const u64 bytes : {1ull, 0ull, 64ull, 5000000ull, 3ull, 4000000ull}) {
      u8* p = arena.take(bytes);
      CHECK_EQ(reinterpret_cast<std::uintptr_t>(p) % 64, 0u);
      for (u64 i = 0; i < bytes; i += 511) CHECK_EQ(static_cast<u32>(p[i]), 0u);
      for (u8* other : taken) CHECK(p != other);
      std::memset(p, 0xee, bytes);
      taken.push_back(p);
    }
    if (round == 1) held = arena.held_bytes();
    if (round == 2) CHECK_EQ(arena.held_bytes(), held);
  }
}

// The flat offset space: every byte of every span resolves, not one byte beside them does, whatever overflows.
#include "memory/address_space.h"
#include "native/check.h"

using namespace uccl;

TEST(memory_address_space_resolves_exactly_its_bytes) {
  static u8 a[100], b[50];
  AddressSpace space;
  CHECK(space.resolve(0, 0) == nullptr);
  space.add(Span{1000, sizeof(a), a});
  space.add(Span{5000, sizeof(b), b});
  for (u64 offset = 900; offset < 1200; ++offset) {
    for (u64 bytes = 0; bytes < 120; ++bytes) {
      const bool inside = offset >= 1000 && offset + bytes <= 1100;
      CHECK(space.resolve(offset, bytes) == (inside ? a + (offset - 1000) : nullptr));
    }
  }
  CHECK(space.resolve(5049, 1) == b + 49);
  CHECK(space.resolve(5049, 2) == nullptr);
}

TEST(memory_address_space_survives_overflow) {
  static u8 a[16];
  AddressSpace space;
  space.add(Span{1ull << 40, sizeof(a), a});
  CHECK(space.resolve(~0ull, 1) == nullptr);
  CHECK(space.resolve(1ull << 40, ~0ull) == nullptr);
  CHECK(space.resolve((1ull << 40) + 8, ~0ull - 7) == nullptr);  // the sum wraps to a small number
  CHECK(space.resolve((1ull << 40) + 8, 8) == a + 8);
}

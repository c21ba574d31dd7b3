// Fixed-width names shared by kernels and proxy. No system header: NVRTC has none.
#pragma once

namespace uccl {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8, "LP64 or LLP64 expected");

// Two 64-bit words that are stored as one 16-byte unit.
struct alignas(16) u128 {
  u64 lo, hi;
};

constexpr u64 low_bits(int n) { return n >= 64 ? ~0ull : (1ull << n) - 1; }
constexpr u64 align_up(u64 value, u64 unit) { return (value + unit - 1) / unit * unit; }
constexpr u64 ceil_div(u64 value, u64 unit) { return (value + unit - 1) / unit; }

}  // namespace uccl

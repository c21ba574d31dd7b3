// Deterministic values: every number of a simulated run is a function of its seed and of where it stands, so that any
// rank can say what any other rank's input was and checks need no communication.
#pragma once
#include <cstring>
#include <vector>

#include "wire/types.h"

namespace uccl::simulation {

constexpr u64 mix(u64 z) {  // splitmix64
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}
template <class... Rest>
constexpr u64 key_of(u64 first, Rest... rest) {
  if constexpr (sizeof...(rest) == 0)
    return mix(first);
  else
    return mix(first ^ key_of(rest...));
}

class Random {
 public:
  explicit Random(u64 seed) : state_(mix(seed)) {}
  u64 next() { return mix(state_ += 0x9e3779b97f4a7c15ull); }
  u64 below(u64 n) { return n == 0 ? 0 : next() % n; }
  u64 between(u64 low, u64 high) { return low + below(high - low + 1); }  // both included
  bool one_in(u64 n) { return below(n) == 0; }

 private:
  u64 state_;
};

// `n` finite bf16 values of magnitude 2^-9 to 1, both signs, with a few zeros. Four a random word.
inline void fill_row(u16* out, u32 n, u64 key) {
  u64 r = 0;
  for (u32 i = 0; i < n; ++i) {
    if (i % 4 == 0) r = mix(key + i);
    const u32 v = static_cast<u32>(r >> 16 * (i % 4)) & 0xffff;
    out[i] = v % 61 == 0 ? 0 : static_cast<u16>((v & 0x8000) | (0x76 + (v >> 7 & 0xff) % 9) << 7 | (v & 0x7f));
  }
}
inline float bf16_value(u16 v) { return __builtin_bit_cast(float, static_cast<u32>(v) << 16); }

// Memory that is used again for every call, full of kPoison before each: what a kernel should not have written still
// shows it, and what it reads unwritten is nonsense.
inline constexpr u8 kPoison = 0x7b;
template <class T>
class Buffer {
 public:
  T* poison(u64 n) {
    if (n > values_.size()) values_.resize(n);
    size_ = n;
    if (n != 0) std::memset(static_cast<void*>(values_.data()), kPoison, n * sizeof(T));
    return values_.data();
  }
  T* zero(u64 n) {
    poison(n);
    if (n != 0) std::memset(static_cast<void*>(values_.data()), 0, n * sizeof(T));
    return values_.data();
  }
  // Elements [from, to) have not been written.
  bool untouched(u64 from, u64 to) const {
    const u8* bytes = reinterpret_cast<const u8*>(values_.data());
    for (u64 i = from * sizeof(T); i < to * sizeof(T); ++i)
      if (bytes[i] != kPoison) return false;
    return true;
  }
  T* data() { return values_.data(); }
  const T* data() const { return values_.data(); }
  u64 size() const { return size_; }
  const T& operator[](u64 i) const { return values_[i]; }

 private:
  std::vector<T> values_;
  u64 size_ = 0;
};

}  // namespace uccl::simulation

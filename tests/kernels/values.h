// Deterministic test data: any rank can say what any other rank's input was, so checks need no communication.
#pragma once
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "wire/types.h"

namespace uccl::testing {

inline u64 mix(u64 z) {  // splitmix64
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}
template <class... Rest>
u64 key_of(u64 first, Rest... rest) {
  if constexpr (sizeof...(rest) == 0)
    return mix(first);
  else
    return mix(first ^ key_of(rest...));
}

// `n` finite bf16 values of magnitude 2^-9 to 1, both signs, with a few zeros.
inline void fill_row(u16* out, u32 n, u64 key) {
  for (u32 i = 0; i < n; ++i) {
    const u64 r = mix(key + i);
    out[i] = r % 61 == 0 ? 0 : static_cast<u16>((r & 0x8000) | (0x76 + (r >> 16) % 9) << 7 | (r >> 32 & 0x7f));
  }
}
inline std::vector<u16> row_of(u32 n, u64 key) {
  std::vector<u16> row(n);
  fill_row(row.data(), n, key);
  return row;
}
inline float bf16_value(u16 v) { return __builtin_bit_cast(float, static_cast<u32>(v) << 16); }

// Memory of exactly n elements, 64-byte aligned, full of kPoison: what a kernel should not have written still shows it,
// and what it reads unwritten is nonsense.
inline constexpr u8 kPoison = 0x7b;
template <class T>
class Poisoned {
 public:
  explicit Poisoned(u64 n) : size_(n) {
    void* p = nullptr;
    if (posix_memalign(&p, 64, n * sizeof(T) + (n == 0)) != 0) throw std::bad_alloc();
    data_ = static_cast<T*>(p);
    poison();
  }
  Poisoned(Poisoned&& o) noexcept : data_(o.data_), size_(o.size_) {
    o.data_ = nullptr;
    o.size_ = 0;
  }
  Poisoned(const Poisoned&) = delete;
  Poisoned& operator=(const Poisoned&) = delete;
  ~Poisoned() { std::free(data_); }

  void poison() { std::memset(static_cast<void*>(data_), kPoison, size_ * sizeof(T)); }
  Poisoned&& zeroed() && {
    std::memset(static_cast<void*>(data_), 0, size_ * sizeof(T));
    return static_cast<Poisoned&&>(*this);
  }
  // Elements [from, size) have never been written.
  bool untouched(u64 from) const {
    const u8* bytes = reinterpret_cast<const u8*>(data_);
    for (u64 i = from * sizeof(T); i < size_ * sizeof(T); ++i)
      if (bytes[i] != kPoison) return false;
    return true;
  }
  T* data() const { return data_; }
  u64 size() const { return size_; }
  T& operator[](u64 i) const { return data_[i]; }

 private:
  T* data_;
  u64 size_;
};

}  // namespace uccl::testing

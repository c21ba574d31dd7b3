// A 16-byte aligned row of T with a guard unit behind it, compared whole.
#pragma once
#include <cstring>
#include <vector>

#include "wire/types.h"

namespace uccl::simt {

template <class T>
struct Row {
  explicit Row(u64 n) : units((n * sizeof(T) + 15) / 16 + 1) {}
  T* data() { return reinterpret_cast<T*>(units.data()); }
  T& operator[](u64 i) { return data()[i]; }
  bool operator==(const Row& o) const { return std::memcmp(units.data(), o.units.data(), units.size() * 16) == 0; }
  std::vector<u128> units;
};

}  // namespace uccl::simt

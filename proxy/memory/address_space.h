// A rank's flat offset space: commands and wire offsets name bytes by one number, whatever memory they lie in.
#pragma once
#include <algorithm>
#include <vector>

#include "wire/limits.h"
#include "wire/types.h"

namespace uccl {

struct Span {
  u64 offset = 0;  // where it starts in the flat space
  u64 bytes = 0;
  u8* base = nullptr;  // where those bytes are in this process
};

// The one of `spans` that holds every byte of [offset, offset + bytes), or null.
template <class AnySpan>
const AnySpan* find_span(const std::vector<AnySpan>& spans, u64 offset, u64 bytes) {
  for (const AnySpan& s : spans)
    if (offset >= s.offset && bytes <= s.bytes && offset - s.offset <= s.bytes - bytes) return &s;
  return nullptr;
}

// A handful of spans, looked up in the hot loop: linear search, no allocation.
class AddressSpace {
 public:
  void add(Span s) { spans_.push_back(s); }
  // The address of [offset, offset + bytes), or null when any byte of it lies outside every span.
  u8* resolve(u64 offset, u64 bytes) const {
    const Span* s = find_span(spans_, offset, bytes);
    return s == nullptr ? nullptr : s->base + (offset - s->offset);
  }
  const std::vector<Span>& spans() const { return spans_; }

 private:
  std::vector<Span> spans_;
};

}  // namespace uccl

// What shadow.h declares: words split into bytes, memory that begins anew.
#include "shadow.h"

#include <algorithm>

namespace ptx {

void Shadow::split(Cell& word) {
  if (word.bytes) return;
  auto parts = std::make_unique<std::array<Cell, 4>>();
  for (u32 i = 0; i < 4; ++i) {
    Cell& part = (*parts)[i];
    part.write = word.write;
    part.reads = word.reads;
    part.value = word.value >> 8 * i & 0xff;
    part.seen = word.seen;
    part.noticed = word.noticed;
  }
  word.bytes = std::move(parts);
}

void Shadow::forget(u64 address, u64 bytes) {
  const u64 page_bytes = 4 * kPageWords, end = address + bytes;
  if (bytes / page_bytes > pages_.size()) {  // memory that was mostly never touched
    std::erase_if(
        pages_, [&](const auto& page) { return page.first >= address / page_bytes && page.first * page_bytes < end; });
  } else {
    for (u64 at = address / page_bytes; at * page_bytes < end; ++at) {
      const auto page = pages_.find(at);
      if (page == pages_.end()) continue;
      const u64 from = std::max(address, at * page_bytes), to = std::min(end, (at + 1) * page_bytes);
      for (u64 word = from / 4; word < (to + 3) / 4; ++word) (*page->second)[word % kPageWords] = Cell{};
    }
  }
  last_ = nullptr;
}

}  // namespace ptx

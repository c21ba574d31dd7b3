// Which peer a completion is of, known by the sender's address handle and queue pair: a table that is filled while peers
// connect and looked at for every arrival, in one or two cache lines.
#pragma once
#include <vector>

#include "wire/types.h"

namespace uccl {

class EfaSenders {
 public:
  static constexpr u32 kNobody = ~0u;

  // Control path. One that is known already is the new peer's from now on.
  void add(u32 handle, u32 queue_pair, u32 peer) {
    if (2 * (used_ + 1) > entries_.size()) grow();
    Entry& e = entries_[place_of(key_of(handle, queue_pair))];
    used_ += e.peer == kNobody;
    e = {key_of(handle, queue_pair), peer};
  }

  u32 find(u32 handle, u32 queue_pair) const {
    return entries_.empty() ? kNobody : entries_[place_of(key_of(handle, queue_pair))].peer;
  }

 private:
  struct Entry {
    u64 key = 0;
    u32 peer = kNobody;
  };
  static constexpr u64 key_of(u32 handle, u32 queue_pair) { return u64{handle} << 32 | queue_pair; }

  // Where the key is, or the empty place that ends the search for it; at least half of the places are empty.
  std::size_t place_of(u64 key) const {
    const std::size_t mask = entries_.size() - 1;
    // Handles and queue pairs are small numbers in a row: the product's upper bits depend on all of theirs.
    std::size_t at = static_cast<std::size_t>(key * 0x9e3779b97f4a7c15ull >> 32) & mask;
    while (entries_[at].peer != kNobody && entries_[at].key != key) at = (at + 1) & mask;
    return at;
  }

  void grow() {
    std::vector<Entry> before(entries_.empty() ? 16 : 2 * entries_.size());
    before.swap(entries_);
    for (const Entry& e : before)
      if (e.peer != kNobody) entries_[place_of(e.key)] = e;
  }

  std::vector<Entry> entries_;  // a power of two
  std::size_t used_ = 0;
};

}  // namespace uccl

// A queue of peers that wait for one kind of attention. One thread.
#pragma once
#include <cstddef>
#include <vector>

#include "wire/types.h"

namespace uccl {

// Each at most once, so its size is fixed; served in turn.
class PeerRing {
 public:
  explicit PeerRing(u32 num_ranks) : ranks_(num_ranks), waiting_(num_ranks, 0) {}
  std::size_t size() const { return size_; }
  void push(u32 rank) {
    if (waiting_[rank]) return;
    waiting_[rank] = 1;
    ranks_[(head_ + size_++) % ranks_.size()] = rank;
  }
  u32 pop() {
    const u32 rank = ranks_[head_];
    head_ = (head_ + 1) % ranks_.size();
    --size_;
    waiting_[rank] = 0;
    return rank;
  }

 private:
  std::vector<u32> ranks_;
  std::vector<u8> waiting_;
  std::size_t head_ = 0, size_ = 0;
};

}  // namespace uccl

// Fiber stacks, a warp's worth at a time, kept between launches: mapping and first touch cost more than a small kernel.
#pragma once
#include <mutex>
#include <vector>

#include "wire/types.h"

namespace uccl::simt {

// Slabs of one size; thread-safe. Has no guard pages: a slab is one mapping, so thousands of lanes stay far below the
// number of mappings that a process may have.
class StackPool {
 public:
  StackPool(u64 slab_bytes, u64 max_kept) : slab_bytes_(slab_bytes), max_kept_(max_kept) { free_.reserve(max_kept); }
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;

  u8* take();  // throws std::bad_alloc
  void give(u8* slab);  // unmapped when max_kept are there already
  u64 kept_bytes() const;

 private:
  const u64 slab_bytes_, max_kept_;
  mutable std::mutex mutex_;
  std::vector<u8*> free_;
};

}  // namespace uccl::simt

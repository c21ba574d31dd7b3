// Memory of simulated ranks, used again for the next run: mapping and first touch would cost more than a small run.
#pragma once
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "wire/types.h"

namespace uccl::simulation {

class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Zeroed, on a cache line of its own, until `reset`. Throws std::bad_alloc.
  u8* take(u64 bytes) {
    bytes = align_up(bytes + 1, kLine);
    while (next_ < blocks_.size() && blocks_[next_].bytes - used_ < bytes) {
      ++next_;
      used_ = 0;
    }
    if (next_ == blocks_.size()) blocks_.emplace_back(bytes > kBlockBytes ? bytes : kBlockBytes);
    u8* const at = blocks_[next_].memory.get() + used_;
    used_ += bytes;
    std::memset(at, 0, bytes);
    return at;
  }
  void reset() { next_ = used_ = 0; }
  u64 held_bytes() const {
    u64 sum = 0;
    for (const Block& b : blocks_) sum += b.bytes;
    return sum;
  }

 private:
  static constexpr u64 kLine = 64, kBlockBytes = 4u << 20;
  struct Free {
    void operator()(u8* p) const { std::free(p); }
  };
  struct Block {
    explicit Block(u64 n) : bytes(n) {
      void* p = nullptr;
      if (posix_memalign(&p, kLine, n) != 0) throw std::bad_alloc();
      memory.reset(static_cast<u8*>(p));
    }
    std::unique_ptr<u8, Free> memory;
    u64 bytes;
  };
  std::vector<Block> blocks_;
  std::size_t next_ = 0;
  u64 used_ = 0;
};

}  // namespace uccl::simulation

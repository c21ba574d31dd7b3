// See stack_pool.h.
#include "kernels/host/stack_pool.h"

#include <sys/mman.h>

#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace uccl::simt {

StackPool::~StackPool() {
  for (u8* slab : free_) munmap(slab, slab_bytes_);
}

u8* StackPool::take() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!free_.empty()) {
      u8* slab = free_.back();
      free_.pop_back();
      return slab;
    }
  }
  void* slab = mmap(nullptr, slab_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (slab == MAP_FAILED) throw std::bad_alloc();
  // A lane touches one or two pages of its 64 KiB; a huge page would make that 2 MiB a warp.
  madvise(slab, slab_bytes_, MADV_NOHUGEPAGE);
  return static_cast<u8*>(slab);
}

void StackPool::give(u8* slab) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(slab, slab_bytes_);  // frames of a lane that was dropped are still marked
#endif
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (free_.size() < max_kept_) {
      free_.push_back(slab);
      return;
    }
  }
  munmap(slab, slab_bytes_);
}

u64 StackPool::kept_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return free_.size() * slab_bytes_;
}

}  // namespace uccl::simt

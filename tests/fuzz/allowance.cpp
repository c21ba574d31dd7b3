// The counter behind Allowance: one number a thread, which the sanitizer's malloc adds to.
#include "fuzz/allowance.h"

#include <cstddef>
#include <string>

#include "native/check.h"

// Of the sanitizers' common interface; weak, since a build without one has no such function.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*allocated)(const volatile void*, std::size_t),
                                                         void (*freed)(const volatile void*)) __attribute__((weak));

namespace uccl::fuzz {
namespace {

__thread u64 allocated_bytes = 0;  // not thread_local: no initialisation that could itself allocate

}  // namespace

bool counts_allocations() {
  static const bool installed =
      &__sanitizer_install_malloc_and_free_hooks != nullptr &&
      __sanitizer_install_malloc_and_free_hooks(
          [](const volatile void*, std::size_t bytes) { allocated_bytes += bytes; }, [](const volatile void*) {}) != 0;
  return installed;
}

Allowance::Allowance(u64 most_bytes) : begin_(counts_allocations() ? allocated_bytes : 0), most_(most_bytes) {}

void Allowance::check(const char* whose) const {
  const u64 bytes = counts_allocations() ? allocated_bytes - begin_ : 0;
  if (bytes > most_)
    check::fail(__FILE__, __LINE__,
                std::string(whose) + " made " + std::to_string(bytes) +
                    " bytes be allocated; allowed: " + std::to_string(most_));
}

}  // namespace uccl::fuzz

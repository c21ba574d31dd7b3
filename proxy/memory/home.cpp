// Counts forks, in the child of each; see home.h.
#include "memory/home.h"

#include <pthread.h>

namespace uccl {
namespace {

// A child begins with the one thread that reads and writes it here; threads that are made later see it as it is then.
u64 forks_so_far = 0;

[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { ++forks_so_far; });

}  // namespace

u64 Home::forks() { return forks_so_far; }

}  // namespace uccl

// What the programs share that valgrind counts (bench/costs.py): steps, each a function of its own, and how they begin with
// a cold cache.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <utility>
#include <vector>

#include "wire/types.h"

// Never inlined, and each with text of its own, so that the compiler cannot fold two of them into one.
#define STEP(name, parameters, result)                              \
  extern "C" __attribute__((noinline)) u64 step_##name parameters { \
    asm volatile("# step " #name);                                  \
    return result;                                                  \
  }

namespace uccl {

inline constexpr u32 kBatch = 32;  // what a worker takes of a ring, or posts, at once

// Reads enough to fill a first-level cache of 32 KiB four times over: what runs next finds none of its lines there, as
// after a kernel or another thread of the core. Outside of the steps, so nothing of it is counted.
inline void cool() {
  static const std::vector<u64> lines(4 * 32768 / sizeof(u64), 1);
  volatile u64 sum = 0;
  for (std::size_t i = 0; i < lines.size(); i += 8) sum = sum + lines[i];
}

template <auto Step, class... A>
u64 cold(A&&... arguments) {
  cool();
  return Step(std::forward<A>(arguments)...);
}

inline void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

// Runs `count(batches)`; main's result.
template <class Count>
int run_steps(const char* program, const char* batches, Count count) {
  try {
    count(batches == nullptr ? 100 : std::strtoull(batches, nullptr, 10));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return 1;
  }
  return 0;
}

}  // namespace uccl

// Shorthands of the kernel tests: run a lane body, draw random rows. A CHECK that fails in a lane ends the launch,
// which rethrows it.
#pragma once
#include <functional>
#include <random>
#include <vector>

#include "kernels/device/simt.h"
#include "kernels/host/runtime.h"
#include "native/check.h"
#include "wire/control.h"

namespace uccl::simt {

inline void on_warp(const std::function<void()>& body) { launch(LaunchConfig{1, kWarp, 0, 1, 0}, body); }

using Random = std::mt19937_64;
inline u32 below(Random& random, u32 n) { return static_cast<u32>(random() % n); }

// bf16 values of every kind: ordinary, tiny, huge, zero, infinite, NaN.
inline u16 any_bf16(Random& random) {
  switch (below(random, 40)) {
    case 0: return 0;
    case 1: return 0x8000;
    case 2: return static_cast<u16>(random() & 0x807f);  // subnormal
    case 3: return static_cast<u16>((random() & 0x8000) | 0x7f80);  // infinite
    case 4: return static_cast<u16>((random() & 0x8000) | 0x7f81 | (random() & 0x3f));  // NaN
    case 5: return static_cast<u16>(random());
    default: return static_cast<u16>((random() & 0x807f) | (0x78 + random() % 8) << 7);
  }
}
inline u16 plain_bf16(Random& random) { return f_to_bf16(std::normal_distribution<float>(0.f, 1.f)(random)); }

// The control words that waits need.
struct Control {
  alignas(64) u64 abort = 0;
  u64 some_departed = 0;
  FaultRecord fault{};
};

}  // namespace uccl::simt

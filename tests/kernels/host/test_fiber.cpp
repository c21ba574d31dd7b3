// Fibers that carry launches: order of switches, values across them, errors, stacks that are given back, and two
// launches that take turns on one thread through host_hooks.
#include <memory>
#include <stdexcept>
#include <vector>

#include "kernels/host/fiber.h"
#include "kernels/host/runtime.h"
#include "native/check.h"

namespace {

using namespace uccl;
using simt::Fiber;

struct TakeTurns : simt::HostHooks {
  u64 passes = 0;
  TakeTurns()
      : HostHooks{0, [](HostHooks* self, bool) {
                    ++static_cast<TakeTurns*>(self)->passes;
                    Fiber::leave();
                  }} {
    simt::host_hooks = this;
  }
  ~TakeTurns() { simt::host_hooks = nullptr; }
};

}  // namespace

TEST(fiber_switches_where_it_left) {
  std::vector<int> seen;
  Fiber a([&] {
    for (int i = 0; i < 3; ++i) {
      seen.push_back(10 + i);
      Fiber::leave();
    }
  });
  Fiber b([&] {
    for (int i = 0; i < 3; ++i) {
      seen.push_back(20 + i);
      Fiber::leave();
    }
  });
  for (int i = 0; i < 4; ++i) {
    CHECK(!a.ended() && !b.ended());
    a.resume();
    b.resume();
  }
  CHECK(a.ended() && b.ended());
  CHECK(seen == std::vector<int>({10, 20, 11, 21, 12, 22}));
}

TEST(fiber_error_reaches_whoever_resumed_it) {
  Fiber f([] {
    Fiber::leave();
    throw std::runtime_error("from inside");
  });
  f.resume();
  CHECK_THROWS(std::runtime_error, f.resume());
  CHECK(f.ended());
}

TEST(fiber_never_resumed_or_dropped_in_the_middle) {
  for (int i = 0; i < 2000; ++i) {  // stacks come back: far more than could be mapped at once
    Fiber never([] {});
    Fiber dropped([] { Fiber::leave(); });
    dropped.resume();
    CHECK(!dropped.ended());
  }
}

TEST(fiber_has_room_for_deep_calls) {
  u64 sum = 0;
  Fiber f([&] {
    volatile u8 page[128 << 10];  // half of the stack
    for (u64 i = 0; i < sizeof page; i += 4096) page[i] = 1;
    for (u64 i = 0; i < sizeof page; i += 4096) sum += page[i];
  });
  f.resume();
  CHECK_EQ(sum, 32u);
}

// Two kernels that need each other's words: each spins, so neither could end alone.
TEST(fiber_launches_take_turns_on_one_thread) {
  TakeTurns hooks;
  hooks.now_ns = 77;
  alignas(64) u64 words[2] = {0, 0};
  u64 clock[2] = {0, 0};
  std::vector<std::unique_ptr<Fiber>> ranks;
  for (u32 r = 0; r < 2; ++r)
    ranks.push_back(std::make_unique<Fiber>([&, r] {
      simt::LaunchConfig config;
      config.block = 2 * simt::kWarp;
      simt::launch(config, [&, r] {
        for (u64 round = 1; round <= 5; ++round) {
          if (simt::tid() == 0) simt::st_release_sys(&words[r], round);
          while (simt::ld_acquire_sys(&words[1 - r]) < round) simt::pause();
          simt::sync_block();
        }
        if (simt::tid() == 0) clock[r] = simt::now_ns();
      });
    }));
  for (u32 step = 0; step < 1000 && !(ranks[0]->ended() && ranks[1]->ended()); ++step)
    for (auto& rank : ranks)
      if (!rank->ended()) rank->resume();
  CHECK(ranks[0]->ended() && ranks[1]->ended());
  CHECK_EQ(words[0], 5u);
  CHECK(clock[0] == 77 && clock[1] == 77);
  CHECK(hooks.passes > 5);
}

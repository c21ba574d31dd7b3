// The fiber runtime (runtime.h). A worker thread owns whole blocks and runs their warps in turn. Inside a warp a lane
// hands over directly to the next lane that can run: at a shuffle, a barrier, a spin step or its end.
//
// Nothing here is locked: all state of a block is touched by its worker alone. Blocks meet through the kernels' own
// atomics, and through Launch::failed.
#include "kernels/host/runtime.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/host/sanitizer.h"
#include "kernels/host/stack_pool.h"

namespace uccl::simt {
inline namespace UCCL_SIMT_WIDTH {
thread_local LaneView* current_lane = nullptr;
thread_local HostHooks* host_hooks = nullptr;

namespace {

constexpr u64 kKeptSlabs = 256;  // 0.5 GiB of addresses for wave32; what was touched of it stays resident, 8 KiB a lane
constexpr mask_t kAllLanes = kWarp == 1 ? 1 : static_cast<mask_t>(~static_cast<mask_t>(0));

// Made before there are threads. Were it made by the first launch, others would see that in a guard which this file, being
// compiled without ThreadSanitizer, does not show it.
StackPool stacks(static_cast<u64>(kWarp) * kStackBytes, kKeptSlabs);

mask_t bit(u32 lane) { return static_cast<mask_t>(static_cast<mask_t>(1) << lane); }

// Shared by the workers of one launch.
struct Launch {
  const LaunchConfig& config;
  const std::function<void()>& body;
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::exception_ptr error;

  void fail(std::exception_ptr e) {
    std::lock_guard<std::mutex> lock(mutex);
    if (!error) error = e;
    failed.store(true, std::memory_order_release);
  }
};

struct Warp;
struct Block;

struct Worker {
  Launch* launch;
  void* stack_pointer = nullptr;  // of the scheduler, while a lane runs
  StackBounds stack;
  u64 progress = 0;  // turns without a spin, spins that ended, block barriers, lanes that ended
};

struct Lane {
  LaneView view;  // first: current_lane points here
  Warp* warp;
  void* stack_pointer;
};

struct Warp {
  Block* block;
  mask_t ready = 0;  // may run
  mask_t done = 0;  // ended, or beyond the block's size
  mask_t arrived = 0;  // wait in the current rendezvous
  u32 phase = 0;  // rendezvous completed
  bool spun = false;  // some lane paused in this turn
  u64 words[2][kWarp] = {};  // what lanes bring to a rendezvous; the next one uses the other half
  void* tsan_fiber;
  u8* slab;
  Lane lanes[kWarp];

  Warp() : tsan_fiber(tsan_take_fiber()), slab(nullptr) { slab = stacks.take(); }
  ~Warp() {
    tsan_give_fiber(tsan_fiber, done == kAllLanes);
    stacks.give(slab);
  }
  StackBounds stack(const Lane& lane) const {
    return {slab + static_cast<u64>(lane.view.lane) * kStackBytes, kStackBytes};
  }
};

struct SharedDelete {
  void operator()(u8* p) const { ::operator delete(p, std::align_val_t{128}); }
};

struct Block {
  Worker* worker;
  u32 waiting = 0;  // lanes at the barrier
  u32 generation = 0;  // barriers completed
  bool all = true;  // conjunction so far, and
  bool result = true;  // that of the last completed barrier
  std::unique_ptr<u8, SharedDelete> shared;
  std::vector<std::unique_ptr<Warp>> warps;
};

Lane* me() { return reinterpret_cast<Lane*>(current_lane); }

// Hands over to the first lane of `pick` (never the caller), or to the scheduler when it is empty.
void leave(Lane* from, mask_t pick, bool last = false) {
  Warp* const warp = from->warp;
  if (pick == 0) {
    Worker* const worker = warp->block->worker;
    switch_stack(&from->stack_pointer, worker->stack_pointer, worker->stack, last);
    return;
  }
  Lane* const next = &warp->lanes[first_lane(pick)];
  current_lane = &next->view;
  switch_stack(&from->stack_pointer, next->stack_pointer, warp->stack(*next), last);
}

bool full(const Warp* warp) { return static_cast<mask_t>(warp->arrived | warp->done) == kAllLanes; }

void complete(Warp* warp) {
  for (mask_t ended = warp->done; ended != 0; ended = static_cast<mask_t>(ended & (ended - 1)))
    warp->words[warp->phase & 1][first_lane(ended)] = 0;
  warp->arrived = 0;
  warp->phase++;
  warp->ready = static_cast<mask_t>(kAllLanes & ~warp->done);
}

// The warp's rendezvous. Returns every lane's word.
const u64* meet(u64 word) {
  Lane* const lane = me();
  Warp* const warp = lane->warp;
  const u32 phase = warp->phase;
  const mask_t mine = bit(lane->view.lane);
  warp->words[phase & 1][lane->view.lane] = word;
  warp->arrived |= mine;
  if (full(warp)) {
    complete(warp);
    return warp->words[phase & 1];
  }
  do {
    warp->ready &= static_cast<mask_t>(~mine);
    leave(lane, warp->ready);
  } while (warp->phase == phase);
  return warp->words[phase & 1];
}

void lane_main() {
  const StackBounds from = arrive_on_new_stack();
  Lane* lane = me();
  Worker* const worker = lane->warp->block->worker;
  if (worker->stack.bottom == nullptr) worker->stack = from;  // a worker's first lane comes from its scheduler
  tsan_acquire(worker);
  try {
    worker->launch->body();
  } catch (...) { worker->launch->fail(std::current_exception()); }
  lane = me();
  Warp* const warp = lane->warp;
  tsan_release(worker);
  warp->done |= bit(lane->view.lane);
  warp->ready &= static_cast<mask_t>(~bit(lane->view.lane));
  worker->progress++;
  if (warp->arrived != 0 && full(warp)) complete(warp);
  leave(lane, warp->ready, true);
  __builtin_unreachable();  // an ended lane is never ready
}

void place_lane(Warp* warp, u32 index, const LaneView& view) {
  Lane& lane = warp->lanes[index];
  lane.view = view;
  lane.warp = warp;
  // Tops are staggered by two cache lines: at equal offsets of 64 KiB all lanes would share the same cache sets.
  u8* const top = warp->slab + static_cast<u64>(index + 1) * kStackBytes - 64 - (view.tid % 32) * 128;
  lane.stack_pointer = make_fiber(top, lane_main);
  warp->ready |= bit(index);
}

std::unique_ptr<Block> make_block(Worker* worker, u32 index) {
  const LaunchConfig& c = worker->launch->config;
  auto block = std::make_unique<Block>();
  block->worker = worker;
  block->shared.reset(static_cast<u8*>(::operator new(std::max(c.smem_bytes, 1u), std::align_val_t{128})));
  std::memset(block->shared.get(), 0xCD, c.smem_bytes);
  for (u32 first = 0; first < c.block; first += kWarp) {
    block->warps.push_back(std::make_unique<Warp>());
    Warp* const warp = block->warps.back().get();
    warp->block = block.get();
    for (u32 l = 0; l < kWarp; ++l) {
      if (first + l < c.block)
        place_lane(warp, l, LaneView{first + l, index, c.block, c.grid, l, block->shared.get()});
      else
        warp->done |= bit(l);
    }
  }
  return block;
}

// What a worker does after a pass in which nothing came of any spin: pause, then yield, then nap. Ranks share cores,
// and a spinning one would keep the rank that it waits for from running. Linux yields only within a group of its scheduler:
// ranks that are sessions of their own, as torchrun starts them, get a core from each other by naps alone (autogroup).
// Napping after 50 us instead of 1 ms, two cores: 8 such ranks 1.2 times, 4 on two nodes over tcp 1.5 times as fast.
class IdleBackoff {
 public:
  void reset() {
    passes_ = 0;
    nap_ns_ = 0;
  }
  void rest() {
    if (++passes_ <= kPausedPasses) return;
    if (passes_ == kPausedPasses + 1) idle_since_ns_ = now_ns();
    if (nap_ns_ == 0 && passes_ % kPassesPerLook == 0 && now_ns() - idle_since_ns_ >= kNapAfterNs)
      nap_ns_ = kFirstNapNs;
    if (nap_ns_ == 0) {
      sched_yield();
      return;
    }
    const timespec nap{0, static_cast<long>(nap_ns_)};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &nap, nullptr);
    nap_ns_ = std::min(nap_ns_ * 2, kLongestNapNs);
  }

 private:
  static constexpr u64 kPausedPasses = 32, kPassesPerLook = 16;
  static constexpr u64 kNapAfterNs = 50'000, kFirstNapNs = 20'000, kLongestNapNs = 100'000;
  u64 passes_ = 0, idle_since_ns_ = 0, nap_ns_ = 0;
};

// One turn of every warp that has a lane to run. False when there was none: then no lane can ever run again.
bool run_pass(Worker* worker, std::vector<Warp*>* live, u64* random) {
  void* const scheduler_fiber = tsan_current_fiber();
  bool ran = false;
  for (u64 i = 0; i < live->size();) {
    if (*random != 0) {  // xorshift64
      *random ^= *random << 13;
      *random ^= *random >> 7;
      *random ^= *random << 17;
      std::swap((*live)[i], (*live)[i + *random % (live->size() - i)]);
    }
    Warp* const warp = (*live)[i];
    if (warp->ready != 0) {
      ran = true;
      warp->spun = false;
      Lane* const lane = &warp->lanes[first_lane(warp->ready)];
      current_lane = &lane->view;
      tsan_switch_to(warp->tsan_fiber);
      switch_stack(&worker->stack_pointer, lane->stack_pointer, warp->stack(*lane), false);
      tsan_switch_to(scheduler_fiber);
      current_lane = nullptr;
      if (!warp->spun) worker->progress++;
    }
    if (warp->done == kAllLanes) {
      (*live)[i] = live->back();
      live->pop_back();
    } else {
      ++i;
    }
  }
  return ran;
}

// After a failure: what dropped lanes did happened before their memory is given back.
void release_dropped(Worker* worker, const std::vector<Warp*>& dropped) {
  void* const scheduler_fiber = tsan_current_fiber();
  for (const Warp* warp : dropped) {
    tsan_switch_to(warp->tsan_fiber);
    tsan_release(worker);
    tsan_switch_to(scheduler_fiber);
  }
}

void run_blocks(Launch* launch, u32 index, u32 num_workers) {
  Worker worker{launch, nullptr, {}, 0};
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<Warp*> live;
  for (u32 b = index; b < launch->config.grid; b += num_workers) {
    blocks.push_back(make_block(&worker, b));
    for (const auto& warp : blocks.back()->warps) live.push_back(warp.get());
  }
  u64 random = launch->config.seed == 0 ? 0 : (launch->config.seed * 0x9e3779b97f4a7c15ull + index) | 1;
  tsan_release(&worker);  // pairs with lane_main's acquire
  IdleBackoff idle;
  while (!live.empty() && !launch->failed.load(std::memory_order_acquire)) {  // pairs with Launch::fail
    const u64 before = worker.progress;
    if (!run_pass(&worker, &live, &random))
      launch->fail(
          std::make_exception_ptr(std::logic_error("kernel cannot go on: lanes wait at a barrier or shuffle that the "
                                                   "rest of their block or warp has passed or "
                                                   "left")));
    if (host_hooks != nullptr)
      host_hooks->after_pass(host_hooks, worker.progress != before);
    else if (worker.progress != before)
      idle.reset();
    else
      idle.rest();
  }
  release_dropped(&worker, live);
  tsan_acquire(&worker);  // pairs with lane_main's release
}

void run_worker(Launch* launch, u32 index, u32 num_workers) {
  tsan_acquire(launch);
  try {
    run_blocks(launch, index, num_workers);
  } catch (...) { launch->fail(std::current_exception()); }
  tsan_release(launch);
}

void check_config(const LaunchConfig& c) {
  const auto refuse = [](const char* name, u64 value, const std::string& allowed) {
    throw std::invalid_argument(std::string("launch: ") + name + " is " + std::to_string(value) +
                                "; allowed: " + allowed);
  };
  if (c.block == 0 || c.block > kMaxBlock) refuse("block", c.block, "1 to " + std::to_string(kMaxBlock));
  const u64 lanes = c.grid * align_up(c.block, kWarp);
  if (c.grid == 0 || lanes > kMaxLanes)
    refuse("grid", c.grid,
           "1 to " + std::to_string(kMaxLanes / align_up(c.block, kWarp)) + " (all blocks are resident at once, " +
               std::to_string(kMaxLanes) + " lanes in all)");
  if (c.smem_bytes > kMaxSharedBytes) refuse("smem_bytes", c.smem_bytes, "0 to " + std::to_string(kMaxSharedBytes));
  if (c.threads == 0) refuse("threads", c.threads, "1 or more");
}

}  // namespace

void meet_lanes() { meet(0); }
u64 exchange_lanes(u64 value, u32 source_lane) { return meet(value)[source_lane % kWarp]; }
const u64* gather_lanes(u64 value) { return meet(value); }
mask_t vote_lanes(bool p) {
  const u64* const votes = meet(p);
  mask_t result = 0;
  for (u32 l = 0; l < kWarp; ++l) result |= static_cast<mask_t>(static_cast<mask_t>(votes[l]) << l);
  return result;
}

bool block_barrier_and(bool p) {
  Lane* const lane = me();
  Warp* const warp = lane->warp;
  Block* const block = warp->block;
  const u32 generation = block->generation;
  tsan_release(block);
  block->all = block->all && p;
  if (++block->waiting == lane->view.ntid) {
    block->waiting = 0;
    block->result = block->all;
    block->all = true;
    block->generation++;
    block->worker->progress++;
    for (const auto& w : block->warps) w->ready |= static_cast<mask_t>(kAllLanes & ~w->done & ~w->arrived);
    tsan_acquire(block);
    return block->result;
  }
  do {
    warp->ready &= static_cast<mask_t>(~bit(lane->view.lane));
    leave(lane, warp->ready);
  } while (block->generation == generation);
  tsan_acquire(block);
  return block->result;  // the next barrier cannot complete before this lane comes to it
}
void block_barrier() { block_barrier_and(true); }

void yield_lane() {
  if (current_lane == nullptr) {
    sched_yield();
    return;
  }
  Lane* const lane = me();
  lane->warp->spun = true;
  const u32 l = lane->view.lane;
  const mask_t above = l == kWarp - 1 ? 0 : static_cast<mask_t>(kAllLanes << (l + 1));
  leave(lane, static_cast<mask_t>(lane->warp->ready & above));  // round by round, each lane once
}

void note_progress() {
  if (current_lane != nullptr) me()->warp->block->worker->progress++;
}

void launch(const LaunchConfig& config, const std::function<void()>& lane_body) {
  check_config(config);
  if (current_lane != nullptr) throw std::logic_error("launch: called by a kernel");
  Launch state{config, lane_body, {}, {}, {}};
  const u32 num_workers = std::min(config.threads, config.grid);
  tsan_release(&state);
  std::vector<std::thread> threads;
  try {
    for (u32 t = 1; t < num_workers; ++t) threads.emplace_back(run_worker, &state, t, num_workers);
  } catch (...) { state.fail(std::current_exception()); }
  run_worker(&state, 0, num_workers);
  for (std::thread& t : threads) t.join();
  tsan_acquire(&state);
  if (state.error) std::rethrow_exception(state.error);
}

u64 pooled_stack_bytes() { return stacks.kept_bytes(); }

}  // namespace UCCL_SIMT_WIDTH
}  // namespace uccl::simt

// One rank's memory, rings, settings and counters for engine tests, and a worker that a test steps without a thread.
// Flat space of every rank: [0, kDataBytes) data, [kControlOffset, + control) the control segment.
#pragma once
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "engine/words.h"
#include "engine/worker.h"
#include "proxy/engine/fake_transport.h"
#include "proxy/ring/producer.h"
#include "proxy/ring/ring_memory.h"
#include "wire/immediate.h"

namespace uccl::testing {

inline constexpr u64 kDataBytes = 64 << 10;
inline constexpr u64 kControlOffset = 1 << 20;

struct Shape {
  u32 rank = 0, num_ranks = 4, num_channels = 4;
  u32 num_rings = 1, capacity = 64, num_workers = 1, max_in_flight = 64;
  u64 max_in_flight_bytes = 8 << 20;
  u64 ring_start = 0;  // tickets that have gone through every ring before
};

class RankMemory {
 public:
  explicit RankMemory(const Shape& shape)
      : layout{shape.num_ranks, shape.num_channels},
        data(kDataBytes),
        worker_counters(shape.num_workers, WorkerCounters{}),
        peer_counters(shape.num_ranks, PeerCounters{}),
        control_(static_cast<u8*>(std::aligned_alloc(4096, layout.bytes())), &std::free) {
    std::memset(control_.get(), 0, layout.bytes());
    settings.rank = shape.rank;
    settings.num_ranks = shape.num_ranks;
    settings.num_workers = shape.num_workers;
    settings.ring_capacity = shape.capacity;
    for (u32 i = 0; i < shape.num_rings; ++i) {
      rings_.push_back(std::make_unique<RingMemory>(shape.capacity, shape.ring_start));
      settings.rings.push_back(rings_.back()->data());
    }
    settings.local.add({0, kDataBytes, data.data()});
    settings.local.add({kControlOffset, layout.bytes(), control()});
    settings.peer_bytes.assign(shape.num_ranks, kControlOffset + layout.bytes());
    settings.control = control();
    settings.control_layout = layout;
    settings.max_in_flight = shape.max_in_flight;
    settings.max_in_flight_bytes = shape.max_in_flight_bytes;
  }

  u8* control() const { return control_.get(); }
  u64 word(u64 offset) const {
    return std::atomic_ref<u64>(control_word(control(), offset)).load(std::memory_order_acquire);
  }
  void set_word(u64 offset, u64 value) { control_word(control(), offset) = value; }
  u64 flag(Phase p, u32 source) const { return word(layout.flag(p, source)); }
  u64 tail(Direction d, u32 source, u32 channel) const { return word(layout.tail(d, source, channel)); }
  u64 credit(Direction d, u32 peer, u32 channel) const { return word(layout.credit(d, peer, channel)); }
  u64 aborted() const { return word(ControlLayout::kAbort); }
  const FaultRecord& fault() const {  // valid once aborted() is true
    return *reinterpret_cast<const FaultRecord*>(control() + ControlLayout::kFault);
  }
  u64 done(u32 ring) const { return std::atomic_ref<u64>(rings_[ring]->header().done).load(std::memory_order_acquire); }
  u64 ring_tail(u32 ring) const {
    return std::atomic_ref<u64>(rings_[ring]->header().tail).load(std::memory_order_acquire);
  }

  // Puts a command in a ring; waits for no one.
  u64 push(u32 ring, const Command& command) {
    u64 ticket;
    const RingView view = ring_view(rings_[ring]->data(), settings.ring_capacity);
    if (!ring_push(view, {&command, 1}, &ticket, [] { return false; })) throw std::runtime_error("ring is full");
    return ticket;
  }
  // As a write of `source` would have left it there before its immediate.
  void land_header(Phase phase, u64 epoch, u32 source, u64 num_writes) {
    const ExpectHeader header = ExpectHeader::make(epoch, num_writes, 0, 0);
    std::memcpy(control() + layout.expect(phase, epoch, source), &header, sizeof header);
  }

  ControlLayout layout;
  std::vector<u8> data;
  EngineSettings settings;
  std::vector<WorkerCounters> worker_counters;
  std::vector<PeerCounters> peer_counters;

 private:
  std::unique_ptr<u8, void (*)(void*)> control_;
  std::vector<std::unique_ptr<RingMemory>> rings_;
};

// All workers of a rank, stepped by the test.
class Stepper : public RankMemory {
 public:
  explicit Stepper(const Shape& shape)
      : RankMemory(shape),
        transport(shape.num_workers),
        faults(control(), peer_counters.data(), shape.num_ranks),
        membership(shape.num_ranks, peer_counters.data(), faults) {}

  // The workers are built by the first step, so a test may prepare control words before.
  void step(u32 turns = 1) {
    if (workers_.empty())
      for (u32 w = 0; w < settings.num_workers; ++w)
        workers_.push_back(std::make_unique<Worker>(WorkerShared{settings, peer_counters.data(), membership, faults}, w,
                                                    transport.lane(w), worker_counters[w]));
    for (u32 i = 0; i < turns; ++i)
      for (auto& w : workers_) w->turn();
  }
  FakeLane& lane(u32 index = 0) { return transport.fake(index); }
  WorkerCounters& counters(u32 worker = 0) { return worker_counters[worker]; }
  void deliver(ImmediateKind kind, u32 source, u32 key, u32 on_lane = 0) {
    lane(on_lane).deliver(pack(Immediate{kind, source, key}), source);
  }

  FakeTransport transport;
  Faults faults;
  Membership membership;

 private:
  std::vector<std::unique_ptr<Worker>> workers_;
};

inline Command write_command(u32 peer, u32 key = 0, u64 bytes = 16) { return {Op::kWrite, peer, key, 0, 0, bytes}; }

}  // namespace uccl::testing

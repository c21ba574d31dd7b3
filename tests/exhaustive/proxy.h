// The sending half of one rank as its worker holds it (poster, ledger, barrier), over one ring or more and a lane that
// keeps what is posted until the explorer delivers and completes it.
#pragma once
#include "engine/faults.h"
#include "exhaustive/private_state.h"
#include "exhaustive/rank.h"
#include "proxy/ring/producer.h"

namespace uccl::testing {

struct ProxyShape {
  u32 rank = 0, num_ranks = 2, num_rings = 1, capacity = 8, max_in_flight = 64;
  u64 ring_start = 0, round = 0;  // what went before
};

class Proxy {
 public:
  enum Fate : u8 { kPosted, kDelivered, kCompleted };
  static constexpr u64 kDataBytes = 4096, kPeerBytes = 1 << 20;

  explicit Proxy(const ProxyShape& shape)
      : control(shape.num_ranks, 2),
        counters{},
        settings_(make_settings(shape)),
        peer_counters_(shape.num_ranks, PeerCounters{}),
        faults_(control.base(), peer_counters_.data(), shape.num_ranks),
        ledger(settings_, peer_counters_.data()),
        barrier(settings_, lane, ledger, counters),
        poster(WorkerContext{settings_, 0, lane, counters, ledger, faults_}, barrier) {}

  // Puts a command in a ring that has room.
  void push(u32 ring, const Command& command) {
    CHECK(ring_push(ring_view(rings_[ring].get(), settings_.ring_capacity), {&command, 1}, nullptr,
                    [] { return false; }));
  }
  RingHeader& header(u32 ring) const { return *static_cast<RingHeader*>(rings_[ring].get()); }
  u32 num_rings() const { return static_cast<u32>(rings_.size()); }
  bool aborted() const { return control.word(ControlLayout::kAbort) != 0; }

  // Takes note of what was posted since the last call.
  void note_posted() { fates.resize(lane.held.size(), kPosted); }
  void complete(std::size_t i) {
    fates[i] = kCompleted;
    const u64 wr_id = lane.held[i].wr_id;
    poster.complete({&wr_id, 1});
  }

  void state(Bytes& out) {
    put_poster(out, poster);
    put_ledger(out, ledger);
    put_barrier(out, barrier);
    for (u32 r = 0; r < num_rings(); ++r) {
      put(out, header(r).head);
      put(out, header(r).tail);
      put(out, header(r).done);
    }
    put(out, control.word(ControlLayout::kBarrier));
    put(out, control.word(ControlLayout::kAbort));
    for (std::size_t i = 0; i < fates.size(); ++i)  // what is complete decides nothing any more
      if (fates[i] != kCompleted) put(out, lane.held[i].wr_id * 4 + fates[i] + 1);
    put(out, static_cast<u64>(fates.size()));
  }

  ControlSegment control;
  WorkerCounters counters;
  HeldLane lane;
  std::vector<u8> fates;  // of lane.held

 private:
  EngineSettings make_settings(const ProxyShape& shape) {
    EngineSettings s;
    s.rank = shape.rank;
    s.num_ranks = shape.num_ranks;
    s.ring_capacity = shape.capacity;
    s.max_in_flight = shape.max_in_flight;
    s.control = control.base();
    s.control_layout = control.layout;
    s.peer_bytes.assign(shape.num_ranks, kPeerBytes);
    data_.resize(kDataBytes);
    s.local.add({0, kDataBytes, data_.data()});
    for (u32 i = 0; i < shape.num_rings; ++i) {
      rings_.emplace_back(std::aligned_alloc(64, align_up(ring_bytes(shape.capacity), 64)), &std::free);
      std::memset(rings_.back().get(), 0, ring_bytes(shape.capacity));
      RingHeader& h = header(i);
      h.head = h.tail = h.done = h.cached_tail = shape.ring_start;
      auto* slots = reinterpret_cast<u128*>(&h + 1);
      for (u64 t = shape.ring_start; t < shape.ring_start + shape.capacity; ++t)
        slots[t % shape.capacity].lo = slots[t % shape.capacity].hi = lap_parity(t, shape.capacity) ^ kParityBit;
      s.rings.push_back(rings_.back().get());
    }
    control.set_word(ControlLayout::kBarrier, shape.round);
    return s;
  }

  std::vector<u8> data_;
  std::vector<std::unique_ptr<void, void (*)(void*)>> rings_;
  EngineSettings settings_;
  std::vector<PeerCounters> peer_counters_;
  Faults faults_;

 public:  // last: built from all of the above
  PeerLedger ledger;
  Barrier barrier;
  Poster poster;
};

}  // namespace uccl::testing

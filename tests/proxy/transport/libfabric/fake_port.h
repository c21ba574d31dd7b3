// A provider that a test plays: writes are kept until the test lets them go, in an order of its choice; it can refuse
// them for now, fail them, or lie about a sender. "Addresses" are pointers into this process.
#pragma once
#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proxy/transport/contract.h"
#include "transport/libfabric/lane.h"

namespace fake {

using namespace uccl;

class Port;
struct Wire {
  std::vector<Port*> ports;
};

class Port final : public RmaPort {
 public:
  explicit Port(Wire& wire) : wire_(wire), index_(wire.ports.size()) { wire.ports.push_back(this); }

  int write(const RmaWrite& w) override {
    if (refusals != 0) {
      --refusals;
      return EAGAIN;
    }
    if (refuse_destination == w.destination) return EAGAIN;
    if (impossible != 0) return std::exchange(impossible, 0);
    written.push_back(w);
    pending.push_back(w);
    return 0;
  }
  std::size_t poll(std::span<RmaEvent> events) override {
    if (!hold) {
      while (!pending.empty()) deliver(shuffle_seed == 0 ? 0 : next() % pending.size());
    }
    std::size_t n = 0;
    for (; n < events.size() && !events_.empty(); ++n) {
      events[n] = events_.front();
      events_.pop_front();
    }
    return n;
  }
  u64 add(const std::string& name) override { return std::stoull(name); }

  // Lets one write go; with an error, its data never arrives.
  void deliver(std::size_t i, int error = 0) {
    const RmaWrite w = pending[i];
    pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(i));
    if (error == 0) {
      if (w.bytes != 0) std::memcpy(reinterpret_cast<void*>(w.remote_address), w.source, w.bytes);
      if (w.with_data && w.destination < wire_.ports.size()) {
        wire_.ports[w.destination]->events_.push_back(
            RmaEvent{.arrival = true, .data = w.data, .bytes = w.bytes, .source = index_});
      }
    }
    events_.push_back(RmaEvent{.context = w.context, .error = error});
  }
  void inject(const RmaEvent& e) { events_.push_back(e); }

  u32 refusals = 0;   // so many writes are not taken
  u64 refuse_destination = ~0ull;
  int impossible = 0;  // the next write fails at once
  bool hold = false;   // nothing is delivered but by deliver()
  u64 shuffle_seed = 0;
  std::vector<RmaWrite> written;
  std::vector<RmaWrite> pending;

 private:
  u64 next() { return shuffle_seed = contract::mix(shuffle_seed, 1); }
  Wire& wire_;
  u64 index_;
  std::deque<RmaEvent> events_;
};

inline std::string secret() { return "0123456789abcdef0123456789ABCDEF"; }

// Ranks of one lane each, over fake ports; added to each other, and open.
struct Group {
  static constexpr u64 kBase = 4096, kBytes = 1 << 16;

  explicit Group(u32 num_ranks, const LaneShape& base = {}, bool greet = true) {
    for (u32 r = 0; r < num_ranks; ++r) {
      memory.emplace_back(kBytes);
      mailboxes.emplace_back(2 * num_ranks);
      LaneShape s = base;
      s.rank = r;
      s.num_ranks = num_ranks;
      s.session = 5;
      s.secret = secret();
      s.max_in_flight = base.max_in_flight > 1 ? base.max_in_flight : 16;
      if (s.max_piece == 0) s.max_piece = ~0ull;
      s.transmit_entries = 64;
      auto port = std::make_unique<Port>(wire);
      MailboxSlot* m = mailboxes.back().data();
      lanes.push_back(std::make_unique<LibfabricLane>(s, std::move(port), m, m + num_ranks));
    }
    for (u32 a = 0; a < num_ranks; ++a) {
      for (u32 b = 0; b < num_ranks; ++b) {
        if (a != b) lanes[a]->add_peer(b, address(b));
      }
    }
    if (greet) open_all();
  }
  void open_all() {
    for (u32 a = 0; a < lanes.size(); ++a) {
      for (u32 b = 0; b < lanes.size(); ++b) {
        if (a == b) continue;
        lanes[a]->set_tag(b, lanes[b]->tag_for(a));
        lanes[a]->open(b);
      }
    }
  }
  LibfabricAddress::LaneAddress address(u32 rank) {
    LibfabricAddress::LaneAddress a;
    a.name = std::to_string(rank);
    auto& m = mailboxes[rank];
    a.mailbox = RemoteMemory{0, m.size() * sizeof(MailboxSlot), reinterpret_cast<u64>(m.data()), 1};
    a.spans.push_back(RemoteMemory{kBase, kBytes, reinterpret_cast<u64>(memory[rank].data()), 2});
    return a;
  }
  Port& port(u32 rank) { return *wire.ports[rank]; }
  std::size_t post(u32 from, const WriteRequest& r) {
    const std::size_t n = lanes[from]->post(std::span(&r, 1));
    lanes[from]->flush();
    return n;
  }
  std::vector<Arrival> arrivals(u32 rank) {
    Arrival a[64];
    const std::size_t n = lanes[rank]->poll_arrivals(a);
    return {a, a + n};
  }
  std::vector<u64> wr_ids(u32 rank) {
    u64 t[64];
    lanes[rank]->poll_arrivals({});
    const std::size_t n = lanes[rank]->poll_completions(t);
    return {t, t + n};
  }
  std::vector<PeerEvent> events(u32 rank) {
    std::vector<PeerEvent> all;
    PeerEvent e;
    for (int i = 0; i < 8; ++i) {
      while (lanes[rank]->poll_events(std::span(&e, 1)) != 0) all.push_back(e);
    }
    return all;
  }

  Wire wire;
  std::vector<std::vector<u8>> memory;
  std::vector<std::vector<MailboxSlot>> mailboxes;
  std::vector<std::unique_ptr<LibfabricLane>> lanes;
};

inline WriteRequest request(u32 peer, u32 immediate, u64 bytes, u64 wr_id = 0, u64 at = 0) {
  return WriteRequest{peer, immediate, contract::random_bytes(), Group::kBase + at, bytes, wr_id};
}

}  // namespace fake

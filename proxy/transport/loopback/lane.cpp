// The data path of loopback: single-producer single-consumer queues, and a copy made by the receiver.
#include "transport/loopback/lane.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace uccl {
namespace {

// A shuffled item is held back for at most this many polls that had room for it.
constexpr u32 kMaxHeldPolls = 16;

}  // namespace

LoopbackLane::LoopbackLane(const TransportSettings& settings, u32 index)
    : JudgingLane(settings.num_ranks),
      index_(index),
      local_(settings.local),
      max_in_flight_(settings.max_in_flight),
      random_state_(settings.in_process.shuffle_seed == 0
                        ? 0
                        : settings.in_process.shuffle_seed ^ (settings.rank + 1ull) << 40 ^ index << 20),
      by_rank_(settings.num_ranks, nullptr) {
  if (settings.in_process.shuffle_seed != 0 && random_state_ == 0) random_state_ = 1;
}

LoopbackLane::~LoopbackLane() {
  for (const Peer& p : peers_) close_peer(p.rank);
}

void LoopbackLane::attach(const std::shared_ptr<LoopbackEndpoint>& self,
                          const std::vector<std::shared_ptr<LoopbackEndpoint>>& endpoints) {
  self_ = self;
  endpoints_ = endpoints;
  peers_.reserve(endpoints.size());
  std::size_t in_flight = 0;
  for (u32 p = 0; p < endpoints.size(); ++p) {
    if (!endpoints[p]) continue;
    LoopbackLink& in = self->inbound(p, index_);
    LoopbackLink& out = endpoints[p]->inbound(self->rank, index_);
    peers_.push_back(Peer{p, &in, &out, std::min(max_in_flight_, out.requests.capacity())});
    by_rank_[p] = &peers_.back();
    in_flight += std::max(in.requests.capacity(), max_in_flight_);
    book_.open(p);
  }
  if (random_state_ != 0) {
    held_.reserve(in_flight);
    held_wr_ids_.reserve(in_flight);
  }
}

u64 LoopbackLane::random() {  // splitmix64
  u64 z = random_state_ += 0x9e3779b97f4a7c15ull;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

std::size_t LoopbackLane::take(std::span<const WriteRequest> requests) {
  std::size_t n = 0;
  for (; n < requests.size(); ++n) {
    const WriteRequest& r = requests[n];
    Peer& p = *by_rank_[r.peer];
    if (p.open == p.limit) break;
    // Never full: its capacity is at least the limit.
    p.out->requests.push(LoopbackRequest{r.source, r.remote_offset, r.bytes, r.wr_id, r.immediate});
    ++p.open;
    ++counters_.writes;
    counters_.write_bytes += r.bytes;
  }
  return n;
}

std::size_t LoopbackLane::poll_completions(std::span<u64> wr_ids) {
  return random_state_ == 0 ? wr_ids_in_order(wr_ids) : wr_ids_shuffled(wr_ids);
}

std::size_t LoopbackLane::wr_ids_in_order(std::span<u64> wr_ids) {
  std::size_t n = 0;
  for (Peer& p : peers_) {
    while (n < wr_ids.size() && p.out->completions.pop(&wr_ids[n])) {
      ++n;
      --p.open;
    }
  }
  return n;
}

std::size_t LoopbackLane::wr_ids_shuffled(std::span<u64> wr_ids) {
  for (Peer& p : peers_) {
    u64 wr_id;
    while (held_wr_ids_.size() < held_wr_ids_.capacity() && p.out->completions.pop(&wr_id)) {
      held_wr_ids_.push_back(HeldWrId{&p, wr_id, 0});
    }
  }
  std::size_t n = 0;
  for (std::size_t i = held_wr_ids_.size(); i > 1; --i) std::swap(held_wr_ids_[i - 1], held_wr_ids_[random() % i]);
  for (std::size_t i = 0; i < held_wr_ids_.size() && n < wr_ids.size();) {
    if (held_wr_ids_[i].polls++ < kMaxHeldPolls && random() % 2) {
      ++i;
      continue;
    }
    wr_ids[n++] = held_wr_ids_[i].wr_id;
    --held_wr_ids_[i].peer->open;
    held_wr_ids_[i] = held_wr_ids_.back();
    held_wr_ids_.pop_back();
  }
  return n;
}

// Copies one request into this rank's memory. False when there is nothing to report: refused, or the peer has gone.
bool LoopbackLane::deliver(Peer& peer, const LoopbackRequest& r, Arrival* out) {
  u8* target = r.bytes == 0 ? nullptr : local_.resolve(r.remote_offset, r.bytes);
  if (r.bytes != 0 && target == nullptr) {
    ++counters_.refused;
    lose(peer.rank, PeerFault::kProtocol, ERANGE, EPROTO);
    return false;
  }
  if (!peer.in->begin_copy()) {
    notice_closed(peer);
    return false;
  }
  if (r.bytes != 0) std::memcpy(target, r.source, r.bytes);
  peer.in->end_copy();
  peer.in->completions.push(r.wr_id);  // never full: at most its capacity of writes is open
  ++counters_.arrivals;
  counters_.arrival_bytes += r.bytes;
  *out = Arrival{r.immediate, peer.rank};
  return true;
}

std::size_t LoopbackLane::poll_arrivals(std::span<Arrival> out) {
  for (Peer& p : peers_) notice_closed(p);
  return random_state_ == 0 ? poll_in_order(out) : poll_shuffled(out);
}

std::size_t LoopbackLane::poll_in_order(std::span<Arrival> out) {
  std::size_t n = 0;
  for (std::size_t i = 0; i < peers_.size() && n < out.size(); ++i) {
    Peer& p = peers_[(turn_ + i) % peers_.size()];
    LoopbackRequest r;
    while (n < out.size() && book_.is_open(p.rank) && p.in->requests.pop(&r)) n += deliver(p, r, &out[n]);
  }
  ++turn_;
  return n;
}

std::size_t LoopbackLane::poll_shuffled(std::span<Arrival> out) {
  for (Peer& p : peers_) {
    LoopbackRequest r;
    while (book_.is_open(p.rank) && held_.size() < held_.capacity() && p.in->requests.pop(&r)) {
      held_.push_back(Held{&p, r, 0});
    }
  }
  for (std::size_t i = held_.size(); i > 1; --i) std::swap(held_[i - 1], held_[random() % i]);
  std::size_t n = 0;
  for (const bool overdue : {true, false}) {
    for (std::size_t i = 0; i < held_.size() && n < out.size();) {
      Held& h = held_[i];
      const bool gone = !book_.is_open(h.peer->rank);
      const bool now = overdue ? h.polls >= kMaxHeldPolls : random() % 2 == 0;
      if (!gone && !now) {
        h.polls += !overdue;
        ++i;
        continue;
      }
      const Held chosen = h;
      h = held_.back();
      held_.pop_back();
      if (!gone) n += deliver(*chosen.peer, chosen.request, &out[n]);
    }
  }
  return n;
}

std::size_t LoopbackLane::poll_events(std::span<PeerEvent> out) {
  for (Peer& p : peers_) notice_closed(p);
  return book_.take_events(out);
}

void LoopbackLane::notice_closed(Peer& peer) {
  if (!book_.is_open(peer.rank)) return;
  const u32 closed = std::max(peer.in->sender_closed.load(std::memory_order_acquire),
                              peer.out->receiver_closed.load(std::memory_order_acquire));
  if (closed != 0) lose(peer.rank, PeerFault::kLost, static_cast<int>(closed - 1), 0);
}

void LoopbackLane::part(u32 rank, u32 farewell) {
  Peer& peer = *by_rank_[rank];
  peer.in->receiver_closed.store(1 + farewell, std::memory_order_release);  // pairs with notice_closed
  peer.out->close_sender(farewell);
}

}  // namespace uccl

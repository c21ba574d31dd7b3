// The data path of shared memory: bounds check, copy, one release store per run of writes to the same peer.
#include "transport/shared_memory/lane.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>

namespace uccl {

SharedMemoryLane::SharedMemoryLane(const TransportSettings& settings, u32)
    : book_(settings.num_ranks),
      max_in_flight_(settings.max_in_flight),
      by_rank_(settings.num_ranks, nullptr),
      completed_(1) {
  peers_.reserve(settings.num_ranks);  // by_rank_ points into it
}

SharedMemoryLane::~SharedMemoryLane() {
  for (const Peer& p : peers_) close_peer(p.rank);
}

void SharedMemoryLane::attach(u32 peer, const Mapping& mapping) {
  Peer p{peer, mapping, std::min(max_in_flight_, mapping.out_capacity)};
  peers_.push_back(p);
  by_rank_[peer] = &peers_.back();
  completed_.resize(std::bit_ceil(peers_.size() * max_in_flight_));
  book_.open(peer);
}

bool SharedMemoryLane::has_room(Peer& p) {
  if (p.tail - p.cached_consumed < p.limit) return true;
  // Pairs with drain's release.
  const u64 consumed = std::atomic_ref<u64>(p.m.out->consumed).load(std::memory_order_acquire);
  if (consumed - p.cached_consumed > p.tail - p.cached_consumed) {  // it claims to have read what was never written
    lose(p, PeerFault::kProtocol, EPROTO, EPROTO);
    return false;
  }
  p.cached_consumed = consumed;
  return p.tail - consumed < p.limit;
}

void SharedMemoryLane::publish(Peer& p) {
  std::atomic_ref<u64>(p.m.out->tail).store(p.tail, std::memory_order_release);  // pairs with drain's acquire
}

std::size_t SharedMemoryLane::post(std::span<const WriteRequest> requests) {
  std::size_t n = 0;
  Peer* unpublished = nullptr;
  for (; n < requests.size(); ++n) {
    const WriteRequest& r = requests[n];
    int code = 0;
    const PeerBook::Verdict verdict = book_.judge(r, &code);
    if (verdict == PeerBook::Verdict::kRefuse) refuse(r.peer, code);
    if (verdict != PeerBook::Verdict::kPost) continue;
    Peer* p = by_rank_[r.peer];
    if (p != unpublished) {
      if (unpublished) publish(*unpublished);
      unpublished = nullptr;
      // A peer that has closed wants no byte from here any more; poll_arrivals reports it after its last words.
      if (std::atomic_ref<u32>(p->m.in->closed).load(std::memory_order_acquire) != 0) continue;
      unpublished = p;
    }
    if (!has_room(*p) || completed_tail_ - completed_head_ == completed_.size()) {
      if (book_.is_open(r.peer)) break;
      continue;
    }
    if (!take(r)) continue;
  }
  if (unpublished) publish(*unpublished);
  return n;
}

// Copies one write into the peer's memory and fills its slot; `publish` makes both visible.
bool SharedMemoryLane::take(const WriteRequest& r) {
  Peer& p = *by_rank_[r.peer];
  if (r.bytes != 0) {
    u8* target = p.m.memory->resolve(r.remote_offset, r.bytes);
    if (target == nullptr) {
      refuse(r.peer, ERANGE);
      return false;
    }
    std::memcpy(target, r.source, r.bytes);
  }
  u32& slot = mailbox_slots(p.m.out)[p.tail++ & (p.m.out_capacity - 1)];
  std::atomic_ref<u32>(slot).store(r.immediate, std::memory_order_relaxed);
  completed_[completed_tail_++ & (completed_.size() - 1)] = r.wr_id;
  ++counters_.writes;
  counters_.write_bytes += r.bytes;
  return true;
}

std::size_t SharedMemoryLane::poll_completions(std::span<u64> wr_ids) {
  std::size_t n = 0;
  while (n < wr_ids.size() && completed_head_ != completed_tail_) {
    wr_ids[n++] = completed_[completed_head_++ & (completed_.size() - 1)];
  }
  return n;
}

std::size_t SharedMemoryLane::poll_arrivals(std::span<Arrival> out) {
  std::size_t n = 0;
  for (std::size_t i = 0; i < peers_.size() && n < out.size(); ++i) {
    Peer& p = peers_[(turn_ + i) % peers_.size()];
    if (book_.is_open(p.rank)) n += drain(p, out.subspan(n));
  }
  ++turn_;
  return n;
}

std::size_t SharedMemoryLane::drain(Peer& p, std::span<Arrival> out) {
  // `closed` before `tail`: when it is set, the tail read next is the last one. Both pair with the sender's releases.
  const u32 closed = std::atomic_ref<u32>(p.m.in->closed).load(std::memory_order_acquire);
  const u64 waiting = std::atomic_ref<u64>(p.m.in->tail).load(std::memory_order_acquire) - p.consumed;
  if (waiting > p.m.in_capacity) {
    ++counters_.refused;
    lose(p, PeerFault::kProtocol, EPROTO, EPROTO);
    return 0;
  }
  const std::size_t n = std::min<std::size_t>(waiting, out.size());
  u32* slots = mailbox_slots(p.m.in);
  for (std::size_t i = 0; i < n; ++i) {
    u32& slot = slots[p.consumed++ & (p.m.in_capacity - 1)];
    out[i] = Arrival{std::atomic_ref<u32>(slot).load(std::memory_order_relaxed), p.rank};
  }
  // Pairs with has_room's acquire.
  if (n != 0) std::atomic_ref<u64>(p.m.in->consumed).store(p.consumed, std::memory_order_release);
  counters_.arrivals += n;
  if (closed != 0 && n == waiting) lose(p, PeerFault::kLost, static_cast<int>(closed - 1), 0);
  return n;
}

std::size_t SharedMemoryLane::poll_events(std::span<PeerEvent> out) { return book_.take_events(out); }

// Ends both directions; the peer will report kLost with `farewell`.
void SharedMemoryLane::lose(Peer& p, PeerFault fault, int code, u32 farewell) {
  if (!book_.fail(p.rank, fault, code)) return;
  publish(p);  // what was posted is complete for our engine, so the peer must see it
  std::atomic_ref<u32>(p.m.out->closed).store(1 + farewell, std::memory_order_release);
}

void SharedMemoryLane::refuse(u32 peer, int code) {
  ++counters_.refused;
  if (peer >= by_rank_.size()) return;
  // The peer did nothing wrong: this rank's own request did, so both sides end the connection.
  if (by_rank_[peer])
    lose(*by_rank_[peer], PeerFault::kProtocol, code, EPROTO);
  else
    book_.fail(peer, PeerFault::kProtocol, code);
}

void SharedMemoryLane::close_peer(u32 peer) {
  if (peer >= by_rank_.size()) return;
  if (book_.is_open(peer)) std::atomic_ref<u32>(by_rank_[peer]->m.out->closed).store(1, std::memory_order_release);
  book_.close(peer);
}

}  // namespace uccl

// The data path of shared memory: bounds check, copy, one release store per run of writes to the same peer.
#include "transport/shared_memory/lane.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>

namespace uccl {

SharedMemoryLane::SharedMemoryLane(const TransportSettings& settings, u32)
    : JudgingLane(settings.num_ranks),
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
    lose(p.rank, PeerFault::kProtocol, EPROTO, EPROTO);
    return false;
  }
  p.cached_consumed = consumed;
  return p.tail - consumed < p.limit;
}

void SharedMemoryLane::publish(Peer& p) {
  std::atomic_ref<u64>(p.m.out->tail).store(p.tail, std::memory_order_release);  // pairs with drain's acquire
}

std::size_t SharedMemoryLane::take(std::span<const WriteRequest> requests) {
  std::size_t n = 0;
  Peer* unpublished = nullptr;
  for (; n < requests.size(); ++n) {
    const WriteRequest& r = requests[n];
    if (!book_.is_open(r.peer)) continue;
    Peer* p = by_rank_[r.peer];
    if (p != unpublished) {
      if (unpublished) publish(*unpublished);
      unpublished = nullptr;
      // A peer that has closed wants no byte from here any more; poll_arrivals reports it after its last words.
      if (std::atomic_ref<u32>(p->m.in->closed).load(std::memory_order_acquire) != 0) continue;
      unpublished = p;
    }
    if (has_room(*p) && completed_tail_ - completed_head_ != completed_.size())
      copy(r);
    else if (book_.is_open(r.peer))
      break;
  }
  if (unpublished) publish(*unpublished);
  return n;
}

// Copies one write into the peer's memory and fills its slot; `publish` makes both visible.
void SharedMemoryLane::copy(const WriteRequest& r) {
  Peer& p = *by_rank_[r.peer];
  if (r.bytes != 0) {
    u8* target = p.m.memory->resolve(r.remote_offset, r.bytes);
    if (target == nullptr) {
      refuse(r.peer, ERANGE);
      return;
    }
    std::memcpy(target, r.source, r.bytes);
  }
  u32& slot = mailbox_slots(p.m.out)[p.tail++ & (p.m.out_capacity - 1)];
  std::atomic_ref<u32>(slot).store(r.immediate, std::memory_order_relaxed);
  completed_[completed_tail_++ & (completed_.size() - 1)] = r.wr_id;
  ++counters_.writes;
  counters_.write_bytes += r.bytes;
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
    lose(p.rank, PeerFault::kProtocol, EPROTO, EPROTO);
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
  if (closed != 0 && n == waiting) lose(p.rank, PeerFault::kLost, static_cast<int>(closed - 1), 0);
  return n;
}

void SharedMemoryLane::part(u32 peer, u32 farewell) {
  Peer& p = *by_rank_[peer];
  publish(p);  // what was posted is complete for our engine, so the peer must see it
  std::atomic_ref<u32>(p.m.out->closed).store(1 + farewell, std::memory_order_release);
}

}  // namespace uccl

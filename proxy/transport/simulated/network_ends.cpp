// How connections begin and end in the simulated network, and the faults of its plan.
#include <algorithm>
#include <cerrno>

#include "transport/simulated/network.h"

namespace uccl {

void SimulatedNetwork::open(u32 self, u32 peer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ends_[self].book.open(peer);
}

void SimulatedNetwork::set_local(u32 self, const AddressSpace& local) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ends_[self].local = local;
}

void SimulatedNetwork::set_device(u64 bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  device_bytes_ = bytes;
}

// Neither end's memory is touched by these writes again.
void SimulatedNetwork::drop(u32 from, u32 to) {
  for (Write& w : writes_)
    if (w.events != 0 && !w.dropped && w.from == from && w.to == to) {
      w.dropped = true;
      ++totals_.dropped;
    }
}

void SimulatedNetwork::notify(u64 at_ns, const Notice& notice) {
  notices_.push_back(notice);
  push(at_ns, Stage::kNotice, static_cast<u32>(notices_.size() - 1));
}

// Both directions end at this end; the other one hears of it, unless nothing gets through.
void SimulatedNetwork::farewell(u32 self, u32 peer, int code) {
  const u32 other = end_of(peer, self % settings_.num_lanes), rank = rank_of(self);
  drop(self, other);
  drop(other, self);
  End& end = ends_[self];
  std::erase_if(end.arrivals, [peer](const Arrival& a) { return a.peer == peer; });
  end.waiting_from[peer] = 0;
  if (cut(rank, peer)) return;
  const u64 at_ns = past_stalls(rank, peer, now_ns_ + link(self, other).latency_ns);
  notify(at_ns, Notice{other, rank, PeerFault::kLost, code});
}

void SimulatedNetwork::fail(u32 self, u32 peer, PeerFault fault, int code, int farewell_code) {
  End& end = ends_[self];
  const bool connected = end.book.is_open(peer);
  if (!end.book.fail(peer, fault, code)) return;
  end.events_wait = true;
  if (connected) farewell(self, peer, farewell_code);
  trace(now_ns_ ^ 0xfa11, static_cast<u64>(self) << 32 | peer);
  tell(self);
}

void SimulatedNetwork::close_peer(u32 self, u32 peer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (peer >= settings_.num_ranks) return;
  if (ends_[self].book.is_open(peer)) farewell(self, peer, 0);
  ends_[self].book.close(peer);
}

void SimulatedNetwork::leave(u32 self) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ends_[self].gone) return;
  for (u32 peer = 0; peer < settings_.num_ranks; ++peer) {
    if (ends_[self].book.is_open(peer)) farewell(self, peer, 0);
    ends_[self].book.close(peer);
  }
  ends_[self].gone = true;
}

void SimulatedNetwork::end_all() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (End& end : ends_) end.gone = true;
  for (Hidden& h : hidden_) h.shown = true;  // memory may be gone
}

void SimulatedNetwork::cut_off(u32 source, u32 target) { cut(source, target) = 1; }

void SimulatedNetwork::begin_fault(const FaultPlan& p) {
  ++totals_.faults;
  trace(now_ns_ ^ 0xdead, static_cast<u64>(p.kind) << 32 | p.source);
  switch (p.kind) {
    case FaultPlanKind::kStall:
    case FaultPlanKind::kSlow: return;
    case FaultPlanKind::kHalfOpen: return cut_off(p.source, p.target);
    case FaultPlanKind::kLinkLoss:
      cut_off(p.source, p.target);
      cut_off(p.target, p.source);
      for (u32 lane = 0; lane < settings_.num_lanes; ++lane) {
        notify(now_ns_ + 1 + below(p.notice_ns), Notice{end_of(p.source, lane), p.target, PeerFault::kLost, ETIMEDOUT});
        notify(now_ns_ + 1 + below(p.notice_ns), Notice{end_of(p.target, lane), p.source, PeerFault::kLost, ETIMEDOUT});
      }
      return;
    case FaultPlanKind::kDeath:
      dead_[p.source] = 1;
      for (Write& w : writes_)  // what the network had taken may still arrive
        if (w.events != 0 && !w.dropped && rank_of(w.from) == p.source && below(2) == 0) w.dropped = true;
      for (u32 end = 0; end < ends_.size(); ++end) {
        const u32 rank = rank_of(end);
        if (rank == p.source) continue;
        cut_off(rank, p.source);
        if (ends_[end].book.is_open(p.source))
          notify(now_ns_ + 1 + below(p.notice_ns), Notice{end, p.source, PeerFault::kLost, ECONNRESET});
      }
      return;
  }
}

}  // namespace uccl

// What a write goes through: launch (its times are drawn), land, arrive, complete. Faults are events like the others.
#include "transport/simulated/network.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace uccl {
namespace {

constexpr u32 kEventsAPoll = 4;  // self-driven: how far a poll that finds nothing moves time on

u64 mix(u64 z) {  // splitmix64
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

// A copy that ThreadSanitizer does not see. Volatile, lest it become a call of memcpy, which it sees.
__attribute__((no_sanitize_thread)) void copy_unseen(volatile u8* to, const u8* from, u64 bytes) {
  for (u64 i = 0; i < bytes; ++i) to[i] = from[i];
}

}  // namespace

SimulatedNetwork::SimulatedNetwork(const NetworkSettings& s)
    : settings_(s),
      random_state_(mix(s.seed)),
      hidden_of_(s.num_ranks),
      links_(static_cast<std::size_t>(s.num_ranks) * s.num_lanes * s.num_ranks),
      cut_(static_cast<std::size_t>(s.num_ranks) * s.num_ranks),
      dead_(s.num_ranks),
      undelivered_(s.num_ranks) {
  ends_.reserve(static_cast<std::size_t>(s.num_ranks) * s.num_lanes);
  for (u32 e = 0; e < s.num_ranks * s.num_lanes; ++e) ends_.emplace_back(s.num_ranks);
  for (u32 from = 0; from < ends_.size(); ++from)
    for (u32 to = 0; to < s.num_ranks; ++to) {
      const u64 distance = mix(s.seed ^ (static_cast<u64>(rank_of(from)) << 32 | to) << 8) % 4;  // same for every lane
      links_[static_cast<std::size_t>(from) * s.num_ranks + to].latency_ns = s.profile.latency_ns * (1 + distance);
    }
  for (u32 i = 0; i < s.faults.size(); ++i) push(s.faults[i].begin_ns, Stage::kFault, i);
}

u64 SimulatedNetwork::random() { return mix(random_state_ += 0x9e3779b97f4a7c15ull); }

void SimulatedNetwork::trace(u64 a, u64 b) { totals_.trace = mix(totals_.trace ^ a) ^ b; }

void SimulatedNetwork::push(u64 at_ns, Stage stage, u32 subject) {
  events_.push_back(Event{at_ns, order_++, subject, stage});
  std::push_heap(events_.begin(), events_.end(), [](const Event& a, const Event& b) { return a.after(b); });
}

// ---- posting --------------------------------------------------------------------------------------------------------

std::size_t SimulatedNetwork::post(u32 self, std::span<const WriteRequest> requests) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto take = [this, self](std::span<const WriteRequest> good) {
    End& end = ends_[self];
    std::size_t n = 0;
    for (; n < good.size() && end.open[good[n].peer] != settings_.max_in_flight; ++n) {
      const WriteRequest& r = good[n];
      ++end.open[r.peer];
      ++end.counters.writes;
      end.counters.write_bytes += r.bytes;
      ++totals_.writes;
      undelivered_[rank_of(self)] += r.bytes != 0;
      launch(self, r);
    }
    return n;
  };
  const auto refuse = [this, self](u32 peer, int code) {
    ++ends_[self].counters.refused;
    if (peer < settings_.num_ranks) fail(self, peer, PeerFault::kProtocol, code, EPROTO);
  };
  return ends_[self].book.judge(requests, take, refuse);
}

// Drawn from the write's place alone, so that leaving one perturbation out does not change the others.
Perturbation SimulatedNetwork::perturb(u64 key, u64 bytes) const {
  const LinkProfile& p = settings_.profile;
  Perturbation out;
  if (settings_.calm[key % NetworkSettings::kBuckets]) return out;
  const u64 r = mix(key), s = mix(r);
  if (p.jitter_ns != 0) out.delay_ns = r % p.jitter_ns;
  if (p.stragglers != 0 && (r >> 32) % p.stragglers == 0) out.delay_ns += s % (p.straggler_ns + 1);
  out.completion_ns = mix(s) % (p.completion_ns + 1);
  if (p.late_completions != 0 && (s >> 40) % p.late_completions == 0)
    out.completion_ns = mix(s) % (p.late_completion_ns + 1);
  if (bytes != 0 && (s >> 20) % 3 == 0) out.early_bytes = 1 + (r >> 20) % bytes;
  out.reads_early = (s >> 30) % 4 == 0;
  return out;
}

// Bytes that arrive while a link is stalled come when the stall ends.
u64 SimulatedNetwork::past_stalls(u32 source, u32 target, u64 at_ns) const {
  for (const FaultPlan& p : settings_.faults)
    if (p.kind == FaultPlanKind::kStall && p.source == source && p.target == target && at_ns >= p.begin_ns &&
        at_ns < p.end_ns)
      at_ns = p.end_ns;
  return at_ns;
}

void SimulatedNetwork::launch(u32 self, const WriteRequest& r) {
  const u32 source = rank_of(self), lane = self % settings_.num_lanes, to = end_of(r.peer, lane);
  Link& l = link(self, to);
  const u64 key = mix(settings_.seed ^ mix(static_cast<u64>(self) << 32 | r.peer) ^ l.posted);
  const Perturbation p = perturb(key, r.bytes);
  if (recording_ && !p.none())
    recorded_.push_back(
        {now_ns_, l.posted, source, r.peer, lane, r.immediate, static_cast<u32>(key % NetworkSettings::kBuckets), p});
  if (free_.empty()) {
    free_.push_back(static_cast<u32>(writes_.size()));
    writes_.emplace_back();
  }
  const u32 index = free_.back();
  free_.pop_back();
  const u64 start = std::max(now_ns_, l.free_ns);
  l.free_ns = start + (settings_.profile.bytes_per_us == 0 ? 0 : r.bytes * 1000 / settings_.profile.bytes_per_us);
  u64 arrival = past_stalls(source, r.peer, l.free_ns + l.latency_ns + p.delay_ns);
  u64 completion = past_stalls(source, r.peer, arrival + p.completion_ns);
  if (settings_.profile.ordered) {
    arrival = l.last_arrival_ns = std::max(arrival, l.last_arrival_ns);
    completion = l.last_completion_ns = std::max({completion, l.last_completion_ns, arrival});
  }
  Write& w = writes_[index];
  w.source = r.source;
  w.remote_offset = r.remote_offset;
  w.bytes = r.bytes;
  w.wr_id = r.wr_id;
  w.position = l.posted++;
  w.early_bytes = p.early_bytes;
  w.complete_ns = completion;
  w.from = self;
  w.to = to;
  w.immediate = r.immediate;
  w.events = 2 + (p.early_bytes != 0);
  w.dropped = w.arrived = false;
  w.early = p.reads_early;
  if (p.reads_early) w.kept.assign(r.source, r.source + r.bytes);
  if (p.early_bytes != 0) push(start + (arrival - start) / 2, Stage::kData, index);
  push(arrival, Stage::kArrive, index);
  push(completion, Stage::kComplete, index);
}

// ---- delivery -------------------------------------------------------------------------------------------------------

void SimulatedNetwork::run_until(u64 at_ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  while (next_ns() <= at_ns) step();
  now_ns_ = std::max(now_ns_, at_ns);
}

void SimulatedNetwork::step() {
  std::pop_heap(events_.begin(), events_.end(), [](const Event& a, const Event& b) { return a.after(b); });
  const Event e = events_.back();
  events_.pop_back();
  now_ns_ = std::max(now_ns_, e.at_ns);
  if (e.stage == Stage::kFault) return begin_fault(settings_.faults[e.subject]);
  if (e.stage == Stage::kNotice) {
    const Notice n = notices_[e.subject];
    if (ends_[n.end].gone) return;
    ends_[n.end].notices.push_back(n);
    return tell(n.end);
  }
  if (e.stage == Stage::kVisible) {
    show(hidden_[e.subject]);
    return free_hidden_.push_back(e.subject);
  }
  Write& w = writes_[e.subject];
  if (!w.dropped && (cut(rank_of(w.from), rank_of(w.to)) || ends_[w.to].gone)) {
    w.dropped = true;
    ++totals_.dropped;
  }
  if (!w.dropped && e.stage == Stage::kData) land(w, 0, w.early_bytes);
  if (!w.dropped && e.stage == Stage::kArrive) arrive(w);
  if (!w.dropped && e.stage == Stage::kComplete) complete(w);
  if (--w.events == 0) free_.push_back(e.subject);
}

// Bytes [begin, end) become visible at the receiver, which is also where they are judged.
void SimulatedNetwork::land(Write& w, u64 begin, u64 end) {
  if (w.bytes == 0) return;
  u8* const target = ends_[w.to].local.resolve(w.remote_offset, w.bytes);
  if (target == nullptr) {
    ++ends_[w.to].counters.refused;
    fail(w.to, rank_of(w.from), PeerFault::kProtocol, ERANGE, EPROTO);
    return;
  }
  const u8* const source = (w.early ? w.kept.data() : w.source) + begin;
  if (w.remote_offset < device_bytes_) return hide(w, target + begin, source, end - begin);
  std::memcpy(target + begin, source, end - begin);
}

// The NIC has passed them on, and the way into the GPU has a queue that the way to the host does not.
void SimulatedNetwork::hide(const Write& w, u8* target, const u8* source, u64 bytes) {
  if (bytes == 0) return;
  if (free_hidden_.empty()) {
    free_hidden_.push_back(static_cast<u32>(hidden_.size()));
    hidden_.emplace_back();
  }
  const u32 index = free_hidden_.back(), rank = rank_of(w.to);
  free_hidden_.pop_back();
  Hidden& h = hidden_[index];
  h.target = target;
  h.bytes.assign(source, source + bytes);
  h.rank = rank;
  h.shown = false;
  hidden_of_[rank].push_back(index);
  push(now_ns_ + mix(settings_.seed ^ order_) % (settings_.lag_ns + 1), Stage::kVisible, index);
}

void SimulatedNetwork::show(Hidden& h) {
  if (h.shown) return;
  if (settings_.reads_order)
    copy_unseen(h.target, h.bytes.data(), h.bytes.size());
  else
    std::memcpy(h.target, h.bytes.data(), h.bytes.size());
  h.shown = true;
  std::erase_if(hidden_of_[h.rank], [this](u32 i) { return hidden_[i].shown; });
}

void SimulatedNetwork::flush_device(u32 rank) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const u32 i : std::vector<u32>(hidden_of_[rank])) show(hidden_[i]);
}

void SimulatedNetwork::arrive(Write& w) {
  land(w, w.early_bytes, w.bytes);
  if (w.dropped) return;
  End& end = ends_[w.to];
  w.arrived = true;
  undelivered_[rank_of(w.from)] -= w.bytes != 0;
  end.arrivals.push_back(Arrival{w.immediate, rank_of(w.from)});
  ++end.waiting_from[rank_of(w.from)];
  ++end.counters.arrivals;
  end.counters.arrival_bytes += w.bytes;
  ++totals_.arrivals;
  count_order(w);
  trace(now_ns_ << 16 ^ w.to, static_cast<u64>(w.immediate) << 32 ^ w.bytes);
  tell(w.to);
}

void SimulatedNetwork::complete(Write& w) {
  End& end = ends_[w.from];
  if (end.gone || end.book.state(rank_of(w.to)) != PeerState::kOpen) return;
  end.wr_ids.push_back(w.wr_id);
  end.token_peers.push_back(rank_of(w.to));
  ++totals_.completions;
  tell(w.from);
}

void SimulatedNetwork::count_order(const Write& w) {
  Link& l = link(w.from, w.to);
  u64 earlier = 0;
  for (const u64 p : l.ahead) earlier += p < w.position;
  const u64 overtaken = w.position - l.in_order - earlier;
  totals_.overtakes += overtaken != 0;
  totals_.deepest = std::max(totals_.deepest, overtaken);
  l.ahead.push_back(w.position);
  for (auto next = l.ahead.end(); (next = std::find(l.ahead.begin(), l.ahead.end(), l.in_order)) != l.ahead.end();
       ++l.in_order) {
    *next = l.ahead.back();
    l.ahead.pop_back();
  }
}

// ---- polling --------------------------------------------------------------------------------------------------------

void SimulatedNetwork::drive() {
  for (u32 i = 0; i < kEventsAPoll && settings_.self_driven && !events_.empty(); ++i) step();
}

std::size_t SimulatedNetwork::poll_completions(u32 self, std::span<u64> wr_ids) {
  const std::lock_guard<std::mutex> lock(mutex_);
  End& end = ends_[self];
  if (end.wr_ids.empty()) drive();
  std::size_t n = 0;
  const std::size_t ready = std::min(end.wr_ids.size(), wr_ids.size());
  for (; n < ready; ++n) {
    const std::size_t left = end.wr_ids.size() - (settings_.profile.ordered ? n : 0);
    const std::size_t i = settings_.profile.ordered ? n : below(left);
    wr_ids[n] = end.wr_ids[i];
    --end.open[end.token_peers[i]];
    if (settings_.profile.ordered) continue;
    end.wr_ids[i] = end.wr_ids.back();
    end.token_peers[i] = end.token_peers.back();
    end.wr_ids.pop_back();
    end.token_peers.pop_back();
  }
  if (settings_.profile.ordered) {
    end.wr_ids.erase(end.wr_ids.begin(), end.wr_ids.begin() + static_cast<std::ptrdiff_t>(n));
    end.token_peers.erase(end.token_peers.begin(), end.token_peers.begin() + static_cast<std::ptrdiff_t>(n));
  }
  return n;
}

std::size_t SimulatedNetwork::poll_arrivals(u32 self, std::span<Arrival> out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  End& end = ends_[self];
  if (end.arrivals.empty()) drive();
  const std::size_t ready = std::min(end.arrivals.size(), out.size());
  if (ready != 0) totals_.lagging += hidden_of_[rank_of(self)].size();
  for (std::size_t n = 0; n < ready; ++n) {
    const std::size_t i = settings_.profile.ordered ? n : below(end.arrivals.size());
    out[n] = end.arrivals[i];
    --end.waiting_from[out[n].peer];
    if (settings_.profile.ordered) continue;
    end.arrivals[i] = end.arrivals.back();
    end.arrivals.pop_back();
  }
  if (settings_.profile.ordered)
    end.arrivals.erase(end.arrivals.begin(), end.arrivals.begin() + static_cast<std::ptrdiff_t>(ready));
  return ready;
}

std::size_t SimulatedNetwork::poll_events(u32 self, std::span<PeerEvent> out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  End& end = ends_[self];
  if (end.notices.empty() && !end.events_wait) drive();
  // What a peer had delivered before its end is polled before its end is told.
  for (std::size_t i = 0; i < end.notices.size();) {
    const Notice n = end.notices[i];
    if (end.waiting_from[n.peer] != 0) {
      ++i;
      continue;
    }
    end.notices.erase(end.notices.begin() + static_cast<std::ptrdiff_t>(i));
    if (end.book.is_open(n.peer)) fail(self, n.peer, n.fault, n.code, 0);
  }
  const std::size_t taken = end.book.take_events(out);
  end.events_wait = taken == out.size() && taken != 0;
  return taken;
}

bool SimulatedNetwork::has_news(u32 self) const {
  const End& e = ends_[self];
  return !e.arrivals.empty() || !e.wr_ids.empty() || !e.notices.empty() || e.events_wait;
}

void SimulatedNetwork::tell(u32 end) {
  if (ends_[end].in_news) return;
  ends_[end].in_news = true;
  news_.push_back(end);
}

void SimulatedNetwork::clear_news() {
  for (const u32 end : news_) ends_[end].in_news = false;
  news_.clear();
}

}  // namespace uccl

// The loop of a proxy thread.
#include "engine/worker.h"

#include "engine/words.h"
#include "wire/immediate.h"

namespace uccl {

Worker::Worker(const WorkerShared& shared, u32 index, Lane& lane, WorkerCounters& counters)
    : settings_(shared.settings),
      index_(index),
      lane_(lane),
      counters_(counters),
      membership_(shared.membership),
      faults_(shared.faults),
      departures_(settings_.control, settings_.control_layout),
      ledger_(settings_, shared.peer_counters),
      barrier_(settings_, lane, ledger_, counters),
      poster_(WorkerContext{settings_, index, lane, counters, ledger_, faults_}, barrier_),
      arrivals_(settings_.control, settings_.control_layout),
      sequences_(settings_.control, settings_.control_layout, counters),
      idle_(settings_.nap_when_idle, settings_.nap_ns) {}

void Worker::run(const std::atomic<u64>& stop_at_ns) {
  IdleLadder::prepare_thread();
  for (;;) {
    if (turn()) {
      idle_.reset();
    } else if (idle_.rest()) {
      bump(counters_.naps);
    }
    const u64 stop_at = stop_at_ns.load(std::memory_order_acquire);  // pairs with the release in Engine::stop
    if (stop_at != kNeverStop && (poster_.drained() || steady_ns() >= stop_at)) return;
  }
}

bool Worker::turn() {
  bool worked = poll_completions();
  const u32 moved = poster_.turn();
  if (moved != 0 || barrier_.sent() != barrier_sent_) {
    barrier_sent_ = barrier_.sent();
    lane_.flush();
    worked = true;
  }
  worked |= poll_arrivals();
  if (turns_++ % kTurnsPerEventPoll == 0) poll_events();
  if (membership_.version() != membership_seen_) follow_membership();
  if (ledger_.changed()) ledger_.publish(ledger_.heard() ? steady_ns() : 0);
  return worked;
}

bool Worker::poll_completions() {
  const std::size_t n = lane_.poll_completions(tokens_);
  if (n != 0) poster_.complete({tokens_.data(), n});
  return n != 0;
}

bool Worker::poll_arrivals() {
  const std::size_t n = lane_.poll_arrivals(incoming_);
  if (n == 0) return false;
  const u64 now_ns = steady_ns();  // one clock read a batch stamps every flag it raises
  for (std::size_t i = 0; i < n; ++i) apply(incoming_[i], now_ns);
  bump(counters_.arrivals, n);
  return true;
}

void Worker::poll_events() {
  std::array<PeerEvent, 8> events;
  for (std::size_t n; (n = lane_.poll_events(events)) != 0;)
    for (std::size_t i = 0; i < n; ++i) {
      const PeerEvent& e = events[i];
      // A goodbye ends this lane only: another may still hold arrivals of the peer.
      if (departures_.connection_ended(e.peer, e.fault, e.code))
        part(e.peer);
      else
        membership_.lose(e.peer, e.fault, e.code);
    }
}

// Closes, on this lane, every peer that has gone since the last look. Arrivals that were already here have been
// applied: the loop polls them before it looks.
void Worker::follow_membership() {
  membership_seen_ = membership_.version();  // first: a change during the scan is seen again
  for (u32 peer = 0; peer < settings_.num_ranks; ++peer)
    if (membership_.gone(peer)) part(peer);
}

void Worker::part(u32 peer) {
  if (!ledger_.is_peer(peer) || ledger_.gone(peer)) return;
  lane_.close_peer(peer);  // before its writes count as complete: from here on nothing reads their sources
  poster_.drop_peer(peer);
}

bool Worker::plausible(const Arrival& arrival, const Immediate& immediate) const {
  if (immediate.source != arrival.peer || !ledger_.is_peer(arrival.peer)) return false;
  return immediate.kind != ImmediateKind::kBarrier || index_ == 0;
}

void Worker::apply(const Arrival& arrival, u64 now_ns) {
  const Immediate immediate = unpack_immediate(arrival.immediate);
  Verdict verdict{Outcome::kRefused, arrival.peer, immediate.source};
  if (plausible(arrival, immediate)) {
    ledger_.arrived(arrival.peer);
    if (ledger_.gone(arrival.peer)) {
      verdict = {Outcome::kStale};
    } else {
      verdict = dispatch(immediate, now_ns);
    }
  }
  if (verdict.outcome == Outcome::kApplied) return;
  if (verdict.outcome == Outcome::kStale) {
    bump(counters_.stale);
    return;
  }
  bump(counters_.refused);
  const bool stream = immediate.kind == ImmediateKind::kSequence || immediate.kind == ImmediateKind::kCredit;
  faults_.raise({.kind = FaultKind::kBadArrival,
                 .peer = arrival.peer,
                 .channel = stream ? key_channel(immediate.key) : ~0u,
                 .expected = verdict.expected,
                 .seen = verdict.seen});
}

Verdict Worker::dispatch(const Immediate& immediate, u64 now_ns) {
  switch (immediate.kind) {
    case ImmediateKind::kArrive: return arrivals_.arrive(immediate.source, immediate.key, now_ns);
    case ImmediateKind::kExpect:
      bump(counters_.expects);
      return arrivals_.expect(immediate.source, immediate.key, now_ns);
    case ImmediateKind::kSequence: bump(counters_.sequences); return sequences_.chunk(immediate.source, immediate.key);
    case ImmediateKind::kCredit: bump(counters_.credits); return sequences_.credit(immediate.source, immediate.key);
    case ImmediateKind::kBarrier: return barrier_.arrived(immediate.source, immediate.key);
  }
  return {Outcome::kRefused, 0, static_cast<u64>(immediate.kind)};  // a kind that the wire does not have
}

}  // namespace uccl

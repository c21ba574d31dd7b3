// The loop of a proxy thread.
#include "engine/worker.h"

#include <algorithm>

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
      events_(index < settings_.events.size() ? settings_.events[index] : EventLog()),
      departures_(settings_.control, settings_.control_layout),
      ledger_(settings_, shared.peer_counters),
      barrier_(settings_, lane, ledger_, counters),
      poster_(WorkerContext{settings_, index, lane, counters, ledger_, faults_, events_}, barrier_),
      arrivals_(settings_.control, settings_.control_layout, events_),
      sequences_(settings_.control, settings_.control_layout, counters),
      idle_(settings_.nap_when_idle, settings_.nap_ns, !ledger_.has_peers()),
      doorbell_(settings_.control),
      traced_(events_.traced()) {}

void Worker::run(const std::atomic<u64>& stop_at_ns) {
  IdleLadder::prepare_thread();
  for (;;) {
    if (turn()) {
      idle_.reset();
    } else if (const IdleLadder::Rest rest = idle_.rest(doorbell_); rest != IdleLadder::Rest::kAwake) {
      bump(counters_.naps);
      if (rest == IdleLadder::Rest::kSleep) turns_ = 0;  // much may have happened: the next turn looks at everything
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
  if (turns_++ % kTurnsPerEventPoll == 0) {
    poll_events();
    follow_exclusions();
    follow_fault();
  }
  if (membership_.version() != membership_seen_) follow_membership();
  if (ledger_.changed()) ledger_.publish(steady_ns());
  return worked;
}

bool Worker::poll_completions() {
  const std::size_t n = lane_.poll_completions(tokens_);
  if (n != 0) poster_.complete({tokens_.data(), n});
  return n != 0;
}

bool Worker::poll_arrivals() {
  const std::size_t n = lane_.poll_arrivals(incoming_);
  if (n == 0) {
    quiet_ = true;
    return false;
  }
  if (settings_.flush.call != nullptr && !make_visible(n)) return true;
  take_exclusions();  // who comes back sends after this rank has said from where on it counts
  const u64 now_ns = steady_ns();  // one clock read a batch stamps every flag it raises
  for (std::size_t i = 0; i < n; ++i) apply(incoming_[i], now_ns);
  bump(counters_.arrivals, n);
  return true;
}

// Credits announce no bytes. A word that may say more than its readers can see is never written: the rank fails instead.
bool Worker::make_visible(std::size_t n) {
  const auto has_bytes = [](const Arrival& a) { return unpack_immediate(a.immediate).kind != ImmediateKind::kCredit; };
  if (std::none_of(incoming_.begin(), incoming_.begin() + static_cast<std::ptrdiff_t>(n), has_bytes)) return true;
  const int error = settings_.flush.call(settings_.flush.what);
  if (error != 0) faults_.raise({.kind = FaultKind::kTransport, .seen = static_cast<u64>(error)});
  return error == 0;
}

void Worker::poll_events() {
  std::array<PeerEvent, 8> events;
  for (std::size_t n; (n = lane_.poll_events(events)) != 0;)
    for (std::size_t i = 0; i < n; ++i) {
      const PeerEvent& e = events[i];
      // A goodbye ends this lane only: another may still hold arrivals of the peer.
      if (departures_.connection_ended(e.peer, e.fault, e.code))
        part(e.peer, PartReason::kGoodbye);
      else
        lose(e);
    }
}

void Worker::lose(const PeerEvent& event) {
  const u64 code = static_cast<u64>(static_cast<i64>(event.code));
  events_.record({steady_ns(), EventKind::kParted, event.peer, static_cast<u64>(PartReason::kConnection), code});
  if (settings_.losses_are_absences && event.fault == PeerFault::kLost) {
    departures_.lost(event.peer);
    membership_.dismiss(event.peer);
  }
  membership_.lose(event.peer, event.fault, event.code);
}

// As the process watch does, for which this host's kernel speaks.
void Worker::hear_end(u32 peer) {
  if (!membership_.gone(peer) && !departures_.process_ended(peer)) lose({peer, PeerFault::kLost, 0});
}

// Takes over which peers have ended on other hosts, which ones kernels or Python leave out, and from where on those
// count that come back.
void Worker::take_exclusions() {
  std::atomic_ref<u64> changes(control_word(settings_.control, ControlLayout::kExclusions));
  const u64 seen = changes.load(std::memory_order_acquire);  // pairs with whoever changed a word and then added here
  if (seen == exclusions_seen_) return;
  exclusions_seen_ = seen;
  excluded_at_ns_ = steady_ns();
  num_excluded_ = 0;
  for (u32 peer = 0; peer < settings_.num_ranks; ++peer) {
    const bool out = read_word(control_word(settings_.control, settings_.control_layout.excluded(peer))) != 0;
    ledger_.exclude(peer, out);
    num_excluded_ += out;
    if (read_word(control_word(settings_.control, settings_.control_layout.ended(peer))) != 0) hear_end(peer);
    arrivals_.resume(peer, excluded_at_ns_);
  }
}

// What is on its way to a peer that is left out may never be read: it is given kPatienceNs, then the peer is parted
// with, so that nobody waits for it behind the same ring.
void Worker::follow_exclusions() {
  take_exclusions();
  if (num_excluded_ == 0 || steady_ns() - excluded_at_ns_ < kPatienceNs) return;
  for (u32 peer = 0; peer < settings_.num_ranks; ++peer)
    if (ledger_.excluded(peer) && ledger_.in_flight_to(peer) != 0) part(peer, PartReason::kLeftOut);
}

// Closes, on this lane, every peer that has gone since the last look. Arrivals that were already here have been
// applied: the loop polls them before it looks.
void Worker::follow_membership() {
  membership_seen_ = membership_.version();  // first: a change during the scan is seen again
  for (u32 peer = 0; peer < settings_.num_ranks; ++peer)
    if (membership_.gone(peer)) {
      part(peer, PartReason::kEnded);
      if (!ledger_.is_peer(peer)) departures_.silent(peer);
    }
}

// The rank's fault, whoever has raised it, which kernels do too: for the flight recorder only.
void Worker::follow_fault() {
  if (fault_told_ || index_ != 0 || !events_.enabled()) return;
  auto& record = *reinterpret_cast<FaultRecord*>(settings_.control + ControlLayout::kFault);
  // Acquire: pairs with the release of whoever has filled the record.
  if (std::atomic_ref<u32>(record.ready).load(std::memory_order_acquire) == 0) return;
  fault_told_ = true;
  const u64 what = u64{record.phase} << 32 | record.kind;
  events_.record({steady_ns(), EventKind::kFault, record.peer, what, record.seen});
}

void Worker::part(u32 peer, PartReason reason) {
  if (!ledger_.is_peer(peer) || ledger_.gone(peer)) return;
  events_.record({steady_ns(), EventKind::kParted, peer, static_cast<u64>(reason), 0});
  raise_word(settings_.control, settings_.control_layout.parted(peer), 1);
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
  record_arrival(arrival, immediate.kind, now_ns);
  if (plausible(arrival, immediate)) {
    ledger_.arrived(arrival.peer);
    if (ledger_.gone(arrival.peer)) {
      verdict = {Outcome::kStale};
    } else {
      verdict = dispatch(immediate, now_ns);
    }
  }
  if (verdict.outcome == Outcome::kApplied) {
    if (verdict.arriving_ns != 0 || verdict.parked != 0) ledger_.took(arrival.peer, verdict);
    if (traced_ && immediate.kind == ImmediateKind::kSequence) record_tail(immediate, now_ns);
    return;
  }
  if (verdict.outcome == Outcome::kOvertaken) return;
  if (verdict.outcome == Outcome::kStale) {
    bump(counters_.stale);
    return;
  }
  bump(counters_.refused);
  const bool stream = immediate.kind == ImmediateKind::kSequence || immediate.kind == ImmediateKind::kCredit;
  faults_.raise({.kind = FaultKind::kBadArrival,
                 .peer = arrival.peer,
                 .detail = stream ? DetailWord(key_channel(immediate.key)) : DetailWord(),
                 .expected = verdict.expected,
                 .seen = verdict.seen});
}

void Worker::record_arrival(const Arrival& arrival, ImmediateKind kind, u64 now_ns) {
  if (!traced_ && !quiet_ && kind != ImmediateKind::kExpect && kind != ImmediateKind::kBarrier) return;
  quiet_ = false;
  events_.record({now_ns, EventKind::kArrival, arrival.peer, arrival.immediate, read_word(counters_.arrivals)});
}

void Worker::record_tail(const Immediate& immediate, u64 now_ns) {
  const u64 offset =
      settings_.control_layout.tail(key_direction(immediate.key), immediate.source, key_channel(immediate.key));
  const u64 tail = read_word(control_word(settings_.control, offset));
  events_.record({now_ns, EventKind::kPublished, immediate.source, 1ull << 32 | immediate.key, tail});
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

// One proxy thread: the loop over completions, rings and arrivals, and everything that is private to it. No lock, no
// allocation and no exception after construction; what it shares with others are the words in the control segment, the
// counters, and Membership.
#pragma once
#include <array>
#include <atomic>

#include "engine/arrivals.h"
#include "engine/barrier.h"
#include "engine/departures.h"
#include "engine/doorbell.h"
#include "engine/idle.h"
#include "engine/ledger.h"
#include "engine/membership.h"
#include "engine/poster.h"
#include "engine/sequences.h"

namespace uccl {

// What the workers of a rank have in common; all of it outlives them.
struct WorkerShared {
  const EngineSettings& settings;
  PeerCounters* peer_counters;
  Membership& membership;
  Faults& faults;
};

// Never false-shared: a worker's private words start on their own line.
class alignas(64) Worker {
 public:
  static constexpr u64 kNeverStop = ~0ull;

  Worker(const WorkerShared& shared, u32 index, Lane& lane, WorkerCounters& counters);

  // Turns until `stop_at_ns` (steady clock) is set, then until everything taken is complete or that moment has come.
  void run(const std::atomic<u64>& stop_at_ns);

  // One turn; true when something moved. Public so that tests can step a worker without a thread.
  bool turn();

 private:
  static constexpr u32 kBatch = 64;           // completions and arrivals a turn, so neither starves the rings
  static constexpr u32 kTurnsPerEventPoll = 16;
  static constexpr u64 kPatienceNs = 1'000'000'000;  // with what is on its way to a peer that was left out

  bool poll_completions();
  bool poll_arrivals();
  bool make_visible(std::size_t num_arrivals);
  void poll_events();
  void lose(const PeerEvent& event);
  void hear_end(u32 peer);
  void follow_exclusions();
  void take_exclusions();
  void follow_membership();
  void follow_fault();
  void part(u32 peer, PartReason reason);
  void apply(const Arrival& arrival, u64 now_ns);
  bool plausible(const Arrival& arrival, const Immediate& immediate) const;
  Verdict dispatch(const Immediate& immediate, u64 now_ns);
  void record_arrival(const Arrival& arrival, ImmediateKind kind, u64 now_ns);
  void record_tail(const Immediate& immediate, u64 now_ns);

  const EngineSettings& settings_;
  u32 index_;
  Lane& lane_;
  WorkerCounters& counters_;
  Membership& membership_;
  Faults& faults_;
  EventLog events_;
  Departures departures_;
  PeerLedger ledger_;
  Barrier barrier_;
  Poster poster_;
  Arrivals arrivals_;
  Sequences sequences_;
  IdleLadder idle_;
  Doorbell doorbell_;
  u64 membership_seen_ = 0;
  u64 exclusions_seen_ = 0, excluded_at_ns_ = 0;
  u32 num_excluded_ = 0;
  u64 barrier_sent_ = 0;
  u32 turns_ = 0;
  bool traced_;
  bool quiet_ = true;  // nothing came when it last looked: the next arrival begins a burst
  bool fault_told_ = false;
  std::array<u64, kBatch> tokens_;
  std::array<Arrival, kBatch> incoming_;
};

}  // namespace uccl

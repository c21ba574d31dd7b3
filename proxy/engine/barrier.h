// Barrier rounds with every remote peer. A rank's barriers go through one ring of worker 0 at a time, so the state is
// one round; immediates of peers may come before this rank's own command, and a later round may overtake an earlier.
#pragma once
#include <vector>

#include "engine/ledger.h"
#include "engine/settings.h"
#include "engine/verdict.h"

namespace uccl {

class Lane;

class Barrier {
 public:
  // Completions of barrier immediates carry this wr_id plus the peer: they belong to no ring.
  static constexpr u64 kWrId = 1ull << 63;

  // Goes on from the round that the control segment holds.
  Barrier(const EngineSettings& settings, Lane& lane, PeerLedger& ledger, WorkerCounters& counters);

  bool active() const { return active_; }
  // The full round of a command's key; false when it was completed already.
  bool round_of(u32 key, u64* round) const;
  void begin(u64 round);
  // Sends what there is room for; true when every remaining peer has been told and heard, and the round is published.
  bool progress();
  Verdict arrived(u32 source, u32 key);
  u64 sent() const { return sent_; }  // immediates posted so far

 private:
  void note(u32 peer);
  bool skip(u32 peer) const { return !ledger_.is_peer(peer) || ledger_.gone(peer) || ledger_.excluded(peer); }

  const EngineSettings& settings_;
  Lane& lane_;
  PeerLedger& ledger_;
  WorkerCounters& counters_;
  std::vector<u64> heard_;  // last round of each peer
  u64 published_;
  u64 round_ = 0;
  u64 sent_ = 0;
  u32 next_send_ = 0, next_wait_ = 0;  // ranks below are done with; both only move forward within a round
  bool active_ = false;
};

}  // namespace uccl

// One cursor over the peers to tell, one over the peers to hear: a round costs O(ranks) however often it is polled.
#include "engine/barrier.h"

#include "engine/words.h"
#include "transport/transport.h"
#include "wire/immediate.h"

namespace uccl {

Barrier::Barrier(const EngineSettings& settings, Lane& lane, PeerLedger& ledger, WorkerCounters& counters)
    : settings_(settings),
      lane_(lane),
      ledger_(ledger),
      counters_(counters),
      published_(read_word(control_word(settings.control, ControlLayout::kBarrier))) {
  heard_.assign(settings.num_ranks, published_);
}

bool Barrier::round_of(u32 key, u64* round) const {
  *round = widen(key, kKeyBits, published_);
  return static_cast<i64>(*round - published_) > 0;
}

void Barrier::begin(u64 round) {
  round_ = round;
  next_send_ = next_wait_ = 0;
  active_ = true;
  for (u32 peer = 0; peer < settings_.num_ranks; ++peer)
    if (!skip(peer)) note(peer);
}

// For reports: whether the peer's part of this round is here, 1 due and 0 or 1 arrived, where phases have theirs.
void Barrier::note(u32 peer) {
  const u64 offset = settings_.control_layout.progress(Phase::kSpare, peer);
  write_word(control_word(settings_.control, offset), 1ull << 32 | (heard_[peer] >= round_));
}

bool Barrier::progress() {
  const u32 key = static_cast<u32>(round_ & low_bits(kKeyBits));
  const u32 word = pack(Immediate{ImmediateKind::kBarrier, settings_.rank, key});
  for (; next_send_ < settings_.num_ranks; ++next_send_) {
    if (skip(next_send_)) continue;
    if (!ledger_.has_room(next_send_, 0)) return false;
    const WriteRequest request{next_send_, word, nullptr, 0, 0, kWrId + next_send_};
    if (lane_.post({&request, 1}) == 0) return false;
    ledger_.opened(next_send_, 0);
    ++sent_;
  }
  while (next_wait_ < settings_.num_ranks && (skip(next_wait_) || heard_[next_wait_] >= round_)) ++next_wait_;
  if (next_wait_ < settings_.num_ranks) return false;
  active_ = false;
  published_ = round_;
  bump(counters_.barriers);
  publish_word(settings_.control, ControlLayout::kBarrier, round_);  // pairs with the kernel that waits for the round
  return true;
}

Verdict Barrier::arrived(u32 source, u32 key) {
  const u64 round = widen(key, kKeyBits, heard_[source]);
  if (static_cast<i64>(round - heard_[source]) <= 0) return {Outcome::kStale};  // a later round overtook it
  heard_[source] = round;
  if (active_) note(source);
  return {};
}

}  // namespace uccl

// Counting writes against their announcement and raising flags in epoch order.
#include "engine/arrivals.h"

#include <algorithm>

#include "engine/words.h"

namespace uccl {

Arrivals::Arrivals(u8* control, const ControlLayout& layout)
    : control_(control), layout_(layout), counters_(static_cast<std::size_t>(kNumPhases) * layout.num_ranks) {
  for (u32 phase = 0; phase < kNumPhases; ++phase)
    for (u32 r = 0; r < layout.num_ranks; ++r)
      counters_[phase * layout.num_ranks + r].published =
          read_word(control_word(control, layout.flag(static_cast<Phase>(phase), r)));
}

// The full epoch of `key`, and whether it can still count.
Verdict Arrivals::place(const Counter& counter, u32 key, u64* epoch) const {
  *epoch = widen(key_epoch(key), kEpochBits, counter.published);
  const i64 ahead = static_cast<i64>(*epoch - counter.published);
  if (ahead <= 0) return {Outcome::kStale};
  if (ahead > static_cast<i64>(kEpochWindow)) return {Outcome::kRefused, counter.published + kEpochWindow, *epoch};
  return {};
}

Verdict Arrivals::arrive(u32 source, u32 key, u64 now_ns) {
  Counter& counter = at(source, key);
  u64 epoch;
  const Verdict verdict = place(counter, key, &epoch);
  if (verdict.outcome != Outcome::kApplied) return verdict;
  Epoch& e = counter.window[epoch % kEpochWindow];
  // Complete but not published (an earlier epoch is open): one write more than announced.
  if (e.counted == e.expected) return {Outcome::kRefused, e.expected, e.counted + 1};
  ++e.counted;
  settle(counter, epoch, source, key_phase(key), now_ns);
  return {};
}

Verdict Arrivals::expect(u32 source, u32 key, u64 now_ns) {
  Counter& counter = at(source, key);
  u64 epoch;
  const Verdict verdict = place(counter, key, &epoch);
  if (verdict.outcome != Outcome::kApplied) return verdict;
  // The transport acquired the arrival, so plain data before it is visible; atomic reads keep a misbehaving sender's
  // overwrite from being a data race.
  auto* header = reinterpret_cast<ExpectHeader*>(control_ + layout_.expect(key_phase(key), epoch, source));
  const u64 header_epoch = read_word(header->epoch), num_writes = read_word(header->num_writes);
  if (header_epoch != epoch) return {Outcome::kRefused, epoch, header_epoch};
  Epoch& e = counter.window[epoch % kEpochWindow];
  if (e.expected != kUnknown) return {Outcome::kRefused, e.expected, num_writes};  // announced twice
  if (num_writes == kUnknown || e.counted > num_writes) return {Outcome::kRefused, num_writes, e.counted};
  e.expected = num_writes;
  // Both phases carry both words, and the phases may be on different workers: hence raised, not stored.
  raise_word(control_, layout_.consumed(Phase::kDispatch, source), read_word(header->consumed_dispatch));
  raise_word(control_, layout_.consumed(Phase::kCombine, source), read_word(header->consumed_combine));
  settle(counter, epoch, source, key_phase(key), now_ns);
  return {};
}

// After a change of `epoch`: raises the flag when it can be raised, and notes how far the next one is.
void Arrivals::settle(Counter& counter, u64 epoch, u32 source, Phase phase, u64 now_ns) {
  if (epoch != counter.published + 1) return;
  const Epoch& changed = counter.window[epoch % kEpochWindow];
  if (changed.counted == changed.expected) publish(counter, source, phase, now_ns);
  if (phase == Phase::kSpare) return;  // its words tell of barriers (barrier.cpp)
  // For reports only, hence relaxed. `due` is 0 until it is announced.
  const Epoch& next = counter.window[(counter.published + 1) % kEpochWindow];
  const u64 due = next.expected == kUnknown ? 0 : std::min(next.expected, low_bits(32));
  const u64 arrived = std::min(next.counted, low_bits(32));
  write_word(control_word(control_, layout_.progress(phase, source)), due << 32 | arrived);
}

void Arrivals::publish(Counter& counter, u32 source, Phase phase, u64 now_ns) {
  const u64 before = counter.published;
  for (;;) {
    Epoch& e = counter.window[(counter.published + 1) % kEpochWindow];
    if (e.counted != e.expected) break;
    e = Epoch{};
    ++counter.published;
  }
  if (counter.published == before) return;
  write_word(control_word(control_, layout_.flag_time(source)), now_ns);
  publish_word(control_, layout_.flag(phase, source), counter.published);  // pairs with the kernel's wait
}

}  // namespace uccl

// Counting writes against their announcement and raising flags in epoch order.
#include "engine/arrivals.h"

#include <algorithm>
#include <array>
#include <bit>

#include "engine/words.h"

namespace uccl {
namespace {

// A key has room for more phases than there are.
bool has_phase(u32 key) { return static_cast<u32>(key_phase(key)) < kNumPhases; }
[[gnu::cold, gnu::noinline]] Verdict no_such_phase(u32 key) {
  return {Outcome::kRefused, kNumPhases - 1, static_cast<u64>(key_phase(key))};
}

}  // namespace

Arrivals::Arrivals(u8* control, const ControlLayout& layout, EventLog events)
    : control_(control),
      layout_(layout),
      counters_(static_cast<std::size_t>(kNumPhases) * layout.num_ranks),
      events_(events) {
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
  if (!has_phase(key)) [[unlikely]]
    return no_such_phase(key);
  Counter& counter = at(source, key);
  u64 epoch;
  const Verdict verdict = place(counter, key, &epoch);
  if (verdict.outcome != Outcome::kApplied) return verdict;
  Epoch& e = counter.window[epoch % kEpochWindow];
  // Complete but not published (an earlier epoch is open): one write more than announced.
  if (e.counted == e.expected) return {Outcome::kRefused, e.expected, e.counted + 1};
  if (e.counted == 0 && e.expected == kUnknown) e.first_ns = now_ns;
  if (key_phase(key) == Phase::kIdentity && e.expected == kUnknown) e.expected = 1;  // nobody announces it
  ++e.counted;
  return {.arriving_ns = settle(counter, epoch, source, key_phase(key), now_ns)};
}

Verdict Arrivals::expect(u32 source, u32 key, u64 now_ns) {
  if (!has_phase(key)) [[unlikely]]
    return no_such_phase(key);
  Counter& counter = at(source, key);
  u64 epoch;
  const Verdict verdict = place(counter, key, &epoch);
  if (verdict.outcome != Outcome::kApplied) return verdict;
  // The transport acquired the arrival, so plain data before it is visible; atomic reads keep a misbehaving sender's
  // overwrite from being a data race.
  const u64* const words = &control_word(control_, layout_.expect(key_phase(key), epoch, source));
  const auto h = std::bit_cast<ExpectHeader>(std::array{read_word(words[0]), read_word(words[1]), read_word(words[2]),
                                                        read_word(words[3]), read_word(words[4]), read_word(words[5])});
  const u64 header_epoch = h.epoch, num_writes = h.num_writes;
  // Nobody waits for an announcement of what was read to be looked at before the next ones are sent, so a newer one may
  // have landed in its place: it expects no write either, and says all that this one said.
  const bool replaced = key_phase(key) == Phase::kSpare && header_epoch > epoch && header_epoch - epoch <= kEpochWindow;
  if (header_epoch != epoch && !replaced) return {Outcome::kRefused, epoch, header_epoch};
  // One that may be replaced may also be half of each: all of it is true, and it expects nothing.
  if (key_phase(key) == Phase::kSpare ? num_writes != 0 : !h.is_whole()) return {Outcome::kRefused, 0, num_writes};
  Epoch& e = counter.window[epoch % kEpochWindow];
  if (e.expected != kUnknown) return {Outcome::kRefused, e.expected, num_writes};  // announced twice
  if (e.counted > num_writes) return {Outcome::kRefused, num_writes, e.counted};
  if (e.counted == 0) e.first_ns = now_ns;
  e.expected = num_writes;
  // Both phases carry both words, and the phases may be on different workers: hence raised, not stored.
  raise_word(control_, layout_.consumed(Phase::kDispatch, source), h.consumed_dispatch);
  raise_word(control_, layout_.consumed(Phase::kCombine, source), h.consumed_combine);
  return {.arriving_ns = settle(counter, epoch, source, key_phase(key), now_ns)};
}

void Arrivals::resume(u32 source, u64 now_ns) {
  for (u32 p = 0; p < kNumPhases; ++p) {
    const Phase phase = static_cast<Phase>(p);
    const u64 from = read_word(control_word(control_, layout_.resume(phase, source)));
    Counter& counter = counters_[p * layout_.num_ranks + source];
    if (from <= counter.published) continue;
    for (u64 e = counter.published + 1; e <= std::min(from, counter.published + kEpochWindow); ++e)
      counter.window[e % kEpochWindow] = Epoch{};
    counter.published = from;
    // Raised, not stored: every worker comes here, and the one that counts this phase may be further.
    for (const u64 set : {0ull, 1ull}) raise_word(control_, layout_.flag_beside(phase, set, source), from);
    raise_word(control_, layout_.flag(phase, source), from);
    publish(counter, source, phase, now_ns);
  }
}

// After a change of `epoch`: raises the flag when it can be raised, and notes how far the next one is. Returns what
// publish returns.
u64 Arrivals::settle(Counter& counter, u64 epoch, u32 source, Phase phase, u64 now_ns) {
  if (epoch != counter.published + 1) return 0;
  const Epoch& changed = counter.window[epoch % kEpochWindow];
  const u64 took_ns = changed.counted == changed.expected ? publish(counter, source, phase, now_ns) : 0;
  if (phase == Phase::kSpare) return 0;  // its words tell of barriers (barrier.cpp), and nobody waits for its calls
  // For reports only, hence relaxed. `due` is 0 until it is announced.
  const Epoch& next = counter.window[(counter.published + 1) % kEpochWindow];
  const u64 due = next.expected == kUnknown ? 0 : std::min(next.expected, low_bits(32));
  const u64 arrived = std::min(next.counted, low_bits(32));
  write_word(control_word(control_, layout_.progress(phase, source)), due << 32 | arrived);
  return took_ns;
}

// Returns how long the epochs that it publishes took from their first sign on.
u64 Arrivals::publish(Counter& counter, u32 source, Phase phase, u64 now_ns) {
  const u64 before = counter.published;
  u64 took_ns = 0;
  for (;;) {
    Epoch& e = counter.window[(counter.published + 1) % kEpochWindow];
    if (e.counted != e.expected) break;
    took_ns += now_ns - e.first_ns;
    e = Epoch{};
    ++counter.published;
  }
  if (counter.published == before) return 0;
  write_word(control_word(control_, layout_.flag_time(source)), now_ns);
  // Each pairs with a kernel's wait.
  for (const u64 set : {0ull, 1ull}) publish_word(control_, layout_.flag_beside(phase, set, source), counter.published);
  publish_word(control_, layout_.flag(phase, source), counter.published);
  events_.record({now_ns, EventKind::kPublished, source, static_cast<u64>(phase), counter.published});
  return took_ns;
}

}  // namespace uccl

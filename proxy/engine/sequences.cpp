// Bitmap windows per channel, and the forward-only credit word.
#include "engine/sequences.h"

#include <new>

#include "engine/words.h"

namespace uccl {

Sequences::Sequences(u8* control, const ControlLayout& layout, WorkerCounters& counters)
    : control_(control), layout_(layout), counters_(counters) {
  const std::size_t num_streams = static_cast<std::size_t>(kNumDirections) * layout.num_ranks * layout.num_channels;
  streams_.reset(static_cast<Stream*>(std::calloc(num_streams ? num_streams : 1, sizeof(Stream))));
  if (!streams_) throw std::bad_alloc();
  std::size_t i = 0;
  for (const Direction direction : {Direction::kDispatch, Direction::kCombine})
    for (u32 rank = 0; rank < layout.num_ranks; ++rank)
      for (u32 channel = 0; channel < layout.num_channels; ++channel, ++i) {
        const u64 tail = read_word(control_word(control, layout.tail(direction, rank, channel)));
        if (tail != 0) streams_[i].next = tail;  // a store of zero would commit the page
      }
}

Verdict Sequences::chunk(u32 source, u32 key) {
  const Direction direction = key_direction(key);
  const u32 channel = key_channel(key);
  if (channel >= layout_.num_channels) return {Outcome::kRefused, layout_.num_channels, channel};
  Stream& s =
      streams_[(static_cast<std::size_t>(direction) * layout_.num_ranks + source) * layout_.num_channels + channel];
  const u64 n = widen(key_position(key), kSequenceBits, s.next);
  const i64 ahead = static_cast<i64>(n - s.next);
  if (ahead < 0) return {Outcome::kStale};
  if (ahead > 0) {
    if (test(s, n)) return {Outcome::kStale};
    flip(s, n);
    bump(counters_.parked);
    if (++s.waiting > read_word(counters_.deepest_reorder)) write_word(counters_.deepest_reorder, s.waiting);
    return {.parked = 1};
  }
  const i64 waited = static_cast<i64>(s.waiting);
  ++s.next;
  for (; s.waiting != 0 && test(s, s.next); ++s.next, --s.waiting) flip(s, s.next);
  publish_word(control_, layout_.tail(direction, source, channel), s.next);  // pairs with the reading kernel's wait
  return {.parked = static_cast<i64>(s.waiting) - waited};
}

Verdict Sequences::credit(u32 source, u32 key) {
  const Direction direction = key_direction(key);
  const u32 channel = key_channel(key);
  if (channel >= layout_.num_channels) return {Outcome::kRefused, layout_.num_channels, channel};
  const u64 offset = layout_.credit(direction, source, channel);
  const u64 current = read_word(control_word(control_, offset));
  const u64 head = widen(key_position(key), kSequenceBits, current);
  if (static_cast<i64>(head - current) <= 0) return {Outcome::kOvertaken};
  publish_word(control_, offset, head);  // pairs with the sending kernel's wait for room
  return {};
}

}  // namespace uccl

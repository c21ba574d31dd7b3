// Immediates: fields at their limits, keys by kind, and widening around every kind of wrap.
#include <random>

#include "native/check.h"
#include "wire/immediate.h"

using namespace uccl;

TEST(wire_immediate_fields_at_their_limits) {
  for (u32 kind = 1; kind <= 5; ++kind)
    for (u32 source : {0u, 1u, 2047u, kMaxRanks - 1})
      for (u32 key : {0u, 1u, 0xffffu, static_cast<u32>(low_bits(kKeyBits))}) {
        const Immediate i = unpack_immediate(pack(Immediate{static_cast<ImmediateKind>(kind), source, key}));
        CHECK_EQ(static_cast<u32>(i.kind), kind);
        CHECK_EQ(i.source, source);
        CHECK_EQ(i.key, key);
      }
  CHECK_EQ(pack(Immediate{ImmediateKind::kArrive, 0, 0}), 1u << 29);
  CHECK_EQ(pack(Immediate{static_cast<ImmediateKind>(7), kMaxRanks - 1, (1u << kKeyBits) - 1}), ~0u);
}

TEST(wire_immediate_epoch_keys) {
  for (u32 phase = 0; phase < kNumPhases; ++phase)
    for (u64 epoch : {0ull, 1ull, 32766ull, 32767ull, 32768ull, 1ull << 40}) {
      const u32 key = epoch_key(static_cast<Phase>(phase), epoch);
      CHECK(key <= low_bits(kKeyBits));
      CHECK_EQ(static_cast<u32>(key_phase(key)), phase);
      CHECK_EQ(u64{key_epoch(key)}, epoch & low_bits(kEpochBits));
    }
}

TEST(wire_immediate_stream_keys) {
  for (u32 direction = 0; direction < kNumDirections; ++direction)
    for (u32 channel = 0; channel < kMaxChannels; ++channel)
      for (u64 position : {0ull, 1ull, 1023ull, 1024ull, (1ull << 33) + 5}) {
        const u32 key = stream_key(static_cast<Direction>(direction), channel, position);
        CHECK(key <= low_bits(kKeyBits));
        CHECK_EQ(static_cast<u32>(key_direction(key)), direction);
        CHECK_EQ(key_channel(key), channel);
        CHECK_EQ(u64{key_position(key)}, position % 1024);
      }
}

TEST(wire_immediate_each_operation_has_its_kind) {
  CHECK(kind_of(Op::kWrite) == ImmediateKind::kArrive);
  CHECK(kind_of(Op::kCount) == ImmediateKind::kExpect);
  CHECK(kind_of(Op::kSequence) == ImmediateKind::kSequence);
  CHECK(kind_of(Op::kCredit) == ImmediateKind::kCredit);
  CHECK(kind_of(Op::kBarrier) == ImmediateKind::kBarrier);
}

TEST(wire_immediate_widen_finds_the_nearest) {
  std::mt19937_64 random(2);
  for (int bits : {static_cast<int>(kSequenceBits), static_cast<int>(kEpochBits), kKeyBits})
    for (int i = 0; i < 100000; ++i) {
      const i64 half = 1ll << (bits - 1);
      // References around a wrap of the field, of 2^32, and anywhere; at least half a range above zero.
      u64 reference = random() % (1ull << 62);
      if (i % 3 == 0) reference = (1ull << bits) * (1 + random() % 1000) + random() % 8 - 4;
      if (i % 3 == 1) reference = (1ull << 32) + random() % 64 - 32;
      const i64 distance = static_cast<i64>(random() % (2 * half)) - half;
      const u64 value = reference + static_cast<u64>(distance);
      CHECK_EQ(widen(static_cast<u32>(value & low_bits(bits)), bits, reference), value);
    }
}

TEST(wire_immediate_widen_at_the_exact_half_is_behind) {
  CHECK_EQ(widen(512, 10, 1024), 512ull);
  CHECK_EQ(widen(511, 10, 1024), 1535ull);
  CHECK_EQ(widen(1023, 10, 0), ~0ull);  // below zero wraps, so callers compare differences as signed
}

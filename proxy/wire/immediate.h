// The 32 bits that the receiver sees after a write's data is visible.
//
//   [31:29] kind | [28:17] source rank | [16:0] key
//
// Keys by kind (17 bits, the same 17 bits as a command's key):
//   arrive, expect   [16:14] phase | [13:0] epoch             partial completion: count to N, in any order
//   sequence, credit [16] direction | [15:10] channel | [9:0] position   per-channel order
//   barrier          [16:0] round
//
// Epochs and positions are the low bits of 64-bit counters that both sides keep; `widen` finds the full value nearest
// to a reference. What is further away than half the field's range belongs to another life of the buffer: it is
// dropped and counted, never applied.
#pragma once
#include "wire/command.h"
#include "wire/limits.h"
#include "wire/types.h"

namespace uccl {

enum class ImmediateKind : u32 { kArrive = 1, kExpect = 2, kSequence = 3, kCredit = 4, kBarrier = 5 };

// What is being counted under an arrive or expect immediate.
enum class Phase : u32 {
  kDispatch = 0,
  kCombine = 1,  // rows of a low-latency combine as experts gave them (direct form)
  kCounts = 2,
  kSpare = 3,
  kWeights = 4,  // what a host needs to sum an owner's rows in its node (kernels/low_latency/combine_reduce.h)
  kReduced = 5,  // those sums
  kIdentity = 6  // who takes part in a throughput call without counts, and in which: one write, announced by nobody
};
inline constexpr u32 kNumPhases = 7;

// Which way a throughput stream runs.
enum class Direction : u32 { kDispatch = 0, kCombine = 1 };
inline constexpr u32 kNumDirections = 2;

inline constexpr int kKindBits = 3, kSourceBits = 12, kPhaseBits = 3, kDirectionBits = 1, kChannelBits = 6;
static_assert(kKindBits + kSourceBits + kKeyBits == 32);
static_assert(kMaxRanks <= (1u << kSourceBits));
static_assert(kPhaseBits + static_cast<int>(kEpochBits) == kKeyBits);
static_assert(kNumPhases <= (1u << kPhaseBits));
static_assert(kDirectionBits + kChannelBits + static_cast<int>(kSequenceBits) == kKeyBits);
static_assert(kMaxChannels <= (1u << kChannelBits));

struct Immediate {
  ImmediateKind kind;
  u32 source;
  u32 key;
};

constexpr u32 pack(const Immediate& i) {
  return static_cast<u32>(i.kind) << 29 | (i.source & low_bits(kSourceBits)) << kKeyBits |
         static_cast<u32>(i.key & low_bits(kKeyBits));
}
constexpr Immediate unpack_immediate(u32 word) {
  return Immediate{static_cast<ImmediateKind>(word >> 29), static_cast<u32>(word >> kKeyBits & low_bits(kSourceBits)),
                   static_cast<u32>(word & low_bits(kKeyBits))};
}
// The kind that a command's operation puts on the wire; kQuiet has none.
constexpr ImmediateKind kind_of(Op op) {
  switch (op) {
    case Op::kWrite: return ImmediateKind::kArrive;
    case Op::kCount: return ImmediateKind::kExpect;
    case Op::kSequence: return ImmediateKind::kSequence;
    case Op::kCredit: return ImmediateKind::kCredit;
    default: return ImmediateKind::kBarrier;
  }
}

constexpr u32 epoch_key(Phase phase, u64 epoch) {
  return static_cast<u32>(phase) << kEpochBits | static_cast<u32>(epoch & low_bits(kEpochBits));
}
constexpr Phase key_phase(u32 key) { return static_cast<Phase>(key >> kEpochBits & low_bits(kPhaseBits)); }
constexpr u32 key_epoch(u32 key) { return static_cast<u32>(key & low_bits(kEpochBits)); }

constexpr u32 stream_key(Direction direction, u32 channel, u64 position) {
  return static_cast<u32>(direction) << (kKeyBits - 1) | channel << kSequenceBits |
         static_cast<u32>(position & low_bits(kSequenceBits));
}
constexpr Direction key_direction(u32 key) { return static_cast<Direction>(key >> (kKeyBits - 1) & 1); }
constexpr u32 key_channel(u32 key) { return static_cast<u32>(key >> kSequenceBits & low_bits(kChannelBits)); }
constexpr u32 key_position(u32 key) { return static_cast<u32>(key & low_bits(kSequenceBits)); }

// The 64-bit value with these low bits that is nearest to `reference` (the lower one at an exact half).
constexpr u64 widen(u32 low, int bits, u64 reference) {
  const u64 range = 1ull << bits;
  const u64 ahead = (low - reference) & (range - 1);
  return ahead < range / 2 ? reference + ahead : reference + ahead - range;
}

}  // namespace uccl

// The 16-byte command that a kernel puts into a ring and a proxy takes out.
//
//   lo  [63] lap parity | [62:60] op | [59:48] peer | [47:12] remote offset | [11:0] key, low 12 bits
//   hi  [63] lap parity | [62:61] zero | [60:25] local offset | [24:5] length | [4:0] key, high 5 bits
//
// Offsets and length count 16-byte units, so 36 bits reach 1 TiB and 20 bits reach 16 MiB. The parity of the lap is in
// both words: no value is reserved, no slot is ever cleared, and a reader that sees the two words of different laps
// (a torn read) sees that it does. `key` is what the immediate carries beside the kind and the sender's rank.
#pragma once
#include "wire/limits.h"
#include "wire/types.h"

namespace uccl {

enum class Op : u32 {
  kNone = 0,
  kWrite = 1,     // bytes + immediate `arrive`: counted by the receiver under (phase, epoch)
  kCount = 2,     // bytes (an ExpectHeader) + immediate `expect`: says how many kWrite belong to that (phase, epoch)
  kSequence = 3,  // bytes + immediate `sequence`: applied in order on its channel, then the channel's tail advances
  kCredit = 4,    // no bytes + immediate `credit`: the channel's head, as seen by the reader
  kQuiet = 5,     // complete when every earlier command of this ring is complete at its receiver
  kBarrier = 6,   // kQuiet, then a barrier with every remote peer; published in ControlLayout::barrier
};
inline constexpr u32 kNumOps = 7;

struct Command {
  Op op = Op::kNone;
  u32 peer = 0;           // destination rank
  u32 key = 0;            // see immediate.h
  u64 local_offset = 0;   // bytes, multiple of 16; in the sender's flat offset space
  u64 remote_offset = 0;  // bytes, multiple of 16; in the receiver's
  u64 bytes = 0;          // multiple of 16; 0 sends the immediate alone
};
inline constexpr int kOpBits = 3, kPeerBits = 12, kOffsetBits = 36, kLengthBits = 20, kKeyBits = 17;
inline constexpr int kKeyLowBits = 12, kKeyHighBits = kKeyBits - kKeyLowBits;

static_assert(kNumOps <= (1u << kOpBits));
static_assert(kMaxRanks <= (1u << kPeerBits));
static_assert(kMaxRegionBytes / kWireUnitBytes <= (1ull << kOffsetBits));
static_assert(kMaxWriteBytes / kWireUnitBytes <= low_bits(kLengthBits));
static_assert(1 + kOpBits + kPeerBits + kOffsetBits + kKeyLowBits == 64);
static_assert(1 + 2 + kOffsetBits + kLengthBits + kKeyHighBits == 64);

inline constexpr u64 kParityBit = 1ull << 63;

// Lap 0 is written with parity 1, so that memory of zeros reads as "nothing yet".
constexpr u64 lap_parity(u64 ticket, u32 capacity) { return (ticket / capacity & 1) ? 0 : kParityBit; }

enum class CommandError : u32 { kOk = 0, kOp, kPeer, kKey, kLocalOffset, kRemoteOffset, kLength };

constexpr bool wire_aligned(u64 v) { return v % kWireUnitBytes == 0; }

// What a sender checks before it packs; a value beyond its field is an error here and never a truncation.
constexpr CommandError check(const Command& c) {
  if (c.op == Op::kNone || static_cast<u32>(c.op) >= kNumOps) return CommandError::kOp;
  if (c.peer >= kMaxRanks) return CommandError::kPeer;
  if (c.key > low_bits(kKeyBits)) return CommandError::kKey;
  if (!wire_aligned(c.local_offset) || c.local_offset >= kMaxRegionBytes) return CommandError::kLocalOffset;
  if (!wire_aligned(c.remote_offset) || c.remote_offset >= kMaxRegionBytes) return CommandError::kRemoteOffset;
  if (!wire_aligned(c.bytes) || c.bytes > kMaxWriteBytes) return CommandError::kLength;
  return CommandError::kOk;
}

constexpr u128 pack(const Command& c, u64 parity) {
  return u128{parity | static_cast<u64>(c.op) << 60 | static_cast<u64>(c.peer) << 48 |
                  (c.remote_offset / kWireUnitBytes) << kKeyLowBits | (c.key & low_bits(kKeyLowBits)),
              parity | (c.local_offset / kWireUnitBytes) << (kLengthBits + kKeyHighBits) |
                  (c.bytes / kWireUnitBytes) << kKeyHighBits | c.key >> kKeyLowBits};
}

constexpr Command unpack(u128 w) {
  Command c;
  c.op = static_cast<Op>(w.lo >> 60 & low_bits(kOpBits));
  c.peer = static_cast<u32>(w.lo >> 48 & low_bits(kPeerBits));
  c.remote_offset = (w.lo >> kKeyLowBits & low_bits(kOffsetBits)) * kWireUnitBytes;
  c.local_offset = (w.hi >> (kLengthBits + kKeyHighBits) & low_bits(kOffsetBits)) * kWireUnitBytes;
  c.bytes = (w.hi >> kKeyHighBits & low_bits(kLengthBits)) * kWireUnitBytes;
  c.key = static_cast<u32>((w.lo & low_bits(kKeyLowBits)) | (w.hi & low_bits(kKeyHighBits)) << kKeyLowBits);
  return c;
}

}  // namespace uccl

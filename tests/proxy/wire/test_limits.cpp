// The limits that the project promises, and that both wire formats carry each of them.
#include "native/check.h"
#include "wire/command.h"
#include "wire/immediate.h"
#include "wire/limits.h"

using namespace uccl;

TEST(wire_limits_are_what_was_promised) {
  CHECK(kMaxRanks >= 4096);
  CHECK(kMaxExperts >= 4096);
  CHECK(kMaxTokensPerRank >= 65536);
  CHECK(kMaxRegionBytes >= 1ull << 40);
}

TEST(wire_limits_are_carried_by_a_command) {
  Command c{Op::kWrite,    kMaxRanks - 1, 0, kMaxRegionBytes - kWireUnitBytes, kMaxRegionBytes - kWireUnitBytes,
            kMaxWriteBytes};
  CHECK(uccl::check(c) == CommandError::kOk);
  const Command back = unpack(pack(c, 0));
  CHECK_EQ(back.peer, c.peer);
  CHECK_EQ(back.local_offset, c.local_offset);
  CHECK_EQ(back.remote_offset, c.remote_offset);
  CHECK_EQ(back.bytes, c.bytes);
}

TEST(wire_limits_are_carried_by_an_immediate) {
  const u32 key = stream_key(Direction::kCombine, kMaxChannels - 1, (1u << kSequenceBits) - 1);
  const Immediate i = unpack_immediate(pack(Immediate{ImmediateKind::kBarrier, kMaxRanks - 1, key}));
  CHECK_EQ(i.source, kMaxRanks - 1);
  CHECK_EQ(key_channel(i.key), kMaxChannels - 1);
  CHECK_EQ(key_position(i.key), (1u << kSequenceBits) - 1);
}

TEST(wire_limits_sequence_window_survives_any_reorder) {
  // Any number within the in-flight bound of the reference widens to itself; one further does not.
  const u64 reference = 5ull << kSequenceBits;
  for (u64 ahead = 0; ahead < kMaxSequenceInFlight; ++ahead) {
    const u64 n = reference + ahead;
    CHECK_EQ(widen(static_cast<u32>(n & low_bits(kSequenceBits)), kSequenceBits, reference), n);
  }
  const u64 beyond = reference + kMaxSequenceInFlight;
  CHECK(widen(static_cast<u32>(beyond & low_bits(kSequenceBits)), kSequenceBits, reference) != beyond);
}

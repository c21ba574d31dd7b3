// Commands: every field there and back, at its limits, and refused beyond them.
#include <random>

#include "native/check.h"
#include "wire/command.h"

using namespace uccl;

namespace {

void same(const Command& a, const Command& b) {
  CHECK_EQ(static_cast<u32>(a.op), static_cast<u32>(b.op));
  CHECK_EQ(a.peer, b.peer);
  CHECK_EQ(a.key, b.key);
  CHECK_EQ(a.local_offset, b.local_offset);
  CHECK_EQ(a.remote_offset, b.remote_offset);
  CHECK_EQ(a.bytes, b.bytes);
}

// Packs with either parity, and checks that the parity is the top bit of both words and of nothing else.
void there_and_back(const Command& c) {
  CHECK(uccl::check(c) == CommandError::kOk);
  for (const u64 parity : {0ull, kParityBit}) {
    const u128 w = pack(c, parity);
    CHECK_EQ(w.lo & kParityBit, parity);
    CHECK_EQ(w.hi & kParityBit, parity);
    same(unpack(u128{w.lo & ~kParityBit, w.hi & ~kParityBit}), c);
    CHECK_EQ(w.hi >> 61 & 3, 0ull);  // kept zero for later use
  }
}

const Command kFull{static_cast<Op>(kNumOps - 1), kMaxRanks - 1,        static_cast<u32>(low_bits(kKeyBits)),
                    kMaxRegionBytes - 16,         kMaxRegionBytes - 16, kMaxWriteBytes};

}  // namespace

TEST(wire_command_each_field_at_its_limit_alone) {
  const Command base{Op::kWrite, 0, 0, 0, 0, 0};
  there_and_back(base);
  there_and_back(kFull);
  Command c = base;
  for (u32 op = 1; op < kNumOps; ++op) c.op = static_cast<Op>(op), there_and_back(c);
  c = base, c.peer = kFull.peer, there_and_back(c);
  c = base, c.key = kFull.key, there_and_back(c);
  c = base, c.local_offset = kFull.local_offset, there_and_back(c);
  c = base, c.remote_offset = kFull.remote_offset, there_and_back(c);
  c = base, c.bytes = kFull.bytes, there_and_back(c);
}

TEST(wire_command_every_bit_of_every_field_has_its_own_place) {
  const u128 zero = pack(Command{}, 0);
  u64 lo = zero.lo, hi = zero.hi;
  int bits = 0;
  const auto claim = [&](Command c) {
    const u128 w = pack(c, 0);
    CHECK_EQ(__builtin_popcountll(w.lo) + __builtin_popcountll(w.hi), 1);
    CHECK((w.lo & lo) == 0 && (w.hi & hi) == 0);
    lo |= w.lo, hi |= w.hi, ++bits;
  };
  for (int i = 0; i < kOpBits; ++i) claim({static_cast<Op>(1u << i), 0, 0, 0, 0, 0});
  for (int i = 0; i < kPeerBits; ++i) claim({Op::kNone, 1u << i, 0, 0, 0, 0});
  for (int i = 0; i < kKeyBits; ++i) claim({Op::kNone, 0, 1u << i, 0, 0, 0});
  for (int i = 0; i < kOffsetBits; ++i) claim({Op::kNone, 0, 0, 16ull << i, 0, 0});
  for (int i = 0; i < kOffsetBits; ++i) claim({Op::kNone, 0, 0, 0, 16ull << i, 0});
  for (int i = 0; i < kLengthBits; ++i) claim({Op::kNone, 0, 0, 0, 0, 16ull << i});
  CHECK_EQ(bits, 128 - 2 - 2);  // two parities, two zero bits
}

TEST(wire_command_random_values_there_and_back) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 200000; ++i) {
    Command c;
    c.op = static_cast<Op>(1 + random() % (kNumOps - 1));
    c.peer = static_cast<u32>(random() % kMaxRanks);
    c.key = static_cast<u32>(random() & low_bits(kKeyBits));
    c.local_offset = random() % kMaxRegionBytes & ~15ull;
    c.remote_offset = random() % kMaxRegionBytes & ~15ull;
    c.bytes = random() % (kMaxWriteBytes + 1) & ~15ull;
    there_and_back(c);
  }
}

TEST(wire_command_beyond_a_limit_is_refused_and_named) {
  const auto with = [](auto change) {
    Command c = kFull;
    change(c);
    return uccl::check(c);
  };
  CHECK(uccl::check(kFull) == CommandError::kOk);
  CHECK(with([](Command& c) { c.op = Op::kNone; }) == CommandError::kOp);
  CHECK(with([](Command& c) { c.op = static_cast<Op>(kNumOps); }) == CommandError::kOp);
  CHECK(with([](Command& c) { c.peer = kMaxRanks; }) == CommandError::kPeer);
  CHECK(with([](Command& c) { ++c.key; }) == CommandError::kKey);
  CHECK(with([](Command& c) { c.local_offset += 16; }) == CommandError::kLocalOffset);
  CHECK(with([](Command& c) { c.local_offset = 8; }) == CommandError::kLocalOffset);
  CHECK(with([](Command& c) { c.remote_offset += 16; }) == CommandError::kRemoteOffset);
  CHECK(with([](Command& c) { c.remote_offset = 1; }) == CommandError::kRemoteOffset);
  CHECK(with([](Command& c) { c.bytes += 16; }) == CommandError::kLength);
  CHECK(with([](Command& c) { c.bytes = 15; }) == CommandError::kLength);
}

TEST(wire_command_parity_alternates_by_lap) {
  for (u32 capacity : {2u, 8u, 1024u}) {
    CHECK_EQ(lap_parity(0, capacity), kParityBit);  // zeroed memory reads as "nothing yet"
    for (u64 ticket = 0; ticket < 5ull * capacity; ++ticket) {
      CHECK(lap_parity(ticket, capacity) != lap_parity(ticket + capacity, capacity));
      if (ticket % capacity != 0) CHECK_EQ(lap_parity(ticket, capacity), lap_parity(ticket - 1, capacity));
    }
    CHECK(lap_parity((1ull << 32) - 1, capacity) != lap_parity(1ull << 32, capacity));
  }
}

// Every limit of the system, once. The wire formats assert that they can carry these; the Python API refuses beyond
// them before anything is sent.
#pragma once
#include "wire/types.h"

namespace uccl {

inline constexpr u32 kMaxRanks = 4096;
inline constexpr u32 kMaxExperts = 4096;
inline constexpr u32 kMaxTokensPerRank = 65536;
inline constexpr u32 kMaxTopk = 32;
inline constexpr u32 kMaxRanksPerNode = 64;     // one bit each in a row's destination mask
inline constexpr u32 kMaxChannels = 64;         // throughput mode: streams between one pair
inline constexpr u64 kMaxRegionBytes = 1ull << 40;  // 1 TiB of offsets a rank
inline constexpr u64 kMaxWriteBytes = (1ull << 24) - 16;  // one command
inline constexpr u32 kMaxHidden = 1u << 18;     // channels of one row
inline constexpr u32 kWireUnitBytes = 16;       // offsets and lengths on the wire count these

// Arrivals of this many epochs ago are told from today's: half of what the immediate's epoch field can count.
inline constexpr u32 kEpochBits = 14;
// A channel's writes in flight stay below half of what its sequence field can count, so no reorder overflows a window.
inline constexpr u32 kSequenceBits = 10;
inline constexpr u32 kMaxSequenceInFlight = 1u << (kSequenceBits - 1);

// What a region must leave free at its end: vector copies may read (never write) past a row.
inline constexpr u32 kRegionSlackBytes = 64;

}  // namespace uccl

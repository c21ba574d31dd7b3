// Which words of memory a rank reads that another rank, or a proxy on another rank's word, has written: the table of
// README.md as code.
#pragma once
#include <vector>

#include "kernels/low_latency/calls.h"
#include "kernels/throughput/calls.h"

namespace uccl::fuzz {

// How a wrong row is judged when one of the words was overwritten.
enum class Proof : u32 {
  kSealed,  // a finding
  kCounter,  // none when the number came out near the truth: by then the row may be half written
  kNone  // none: what it says in range cannot be told from the truth
};
// Neighbouring words.
struct Words {
  u8* at;
  u64 bytes;
  Proof proof;
};
using Places = std::vector<Words>;

// Read by `victim` in the count exchange, the dispatch or the combine of one throughput round.
Places count_words(const testing::World& world, const testing::ThroughputCase& c, u64 round, u32 victim);
Places stream_words(const testing::World& world, const testing::ThroughputCase& c, u64 round, u32 victim,
                    Direction direction);

// Likewise in the receiving halves of one low-latency round; epochs are counted from 1.
Places received_words(const testing::World& world, u64 epoch, u32 victim);
Places combined_words(const testing::World& world, const testing::LowLatencyCase& c, u64 epoch, u32 victim);

}  // namespace uccl::fuzz

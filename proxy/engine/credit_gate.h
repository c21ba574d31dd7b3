// Keeps credits of one stream close enough together that their low bits tell old from new at the other side.
//
// A network may hold one credit back while any number of later ones pass. The receiver widens ten bits around its
// current word, so every credit that is still on its way must lie within half a field of every value the word can have:
// from the last credit known to be there, to the newest one sent. A credit further ahead waits until the open ones are
// complete. (Chunks need no such state: theirs is the oldest open ticket of the ring, see poster.cpp.)
#pragma once
#include <vector>

#include "wire/immediate.h"

namespace uccl {

class CreditGate {
 public:
  CreditGate(u32 num_ranks, u32 num_channels)
      : num_ranks_(num_ranks), num_channels_(num_channels), streams_(kNumDirections * num_ranks * num_channels) {}

  // The stream of a checked credit command.
  u32 stream(u32 peer, u32 key) const {
    return (static_cast<u32>(key_direction(key)) * num_ranks_ + peer) * num_channels_ + key_channel(key);
  }
  bool may_send(u32 stream, u32 position) const {
    const Stream& s = streams_[stream];
    return s.open == 0 || ((position - s.settled) & low_bits(kSequenceBits)) < kMaxSequenceInFlight;
  }
  void opened(u32 stream, u32 position) {
    Stream& s = streams_[stream];
    s.newest = static_cast<u16>(position);
    ++s.open;
  }
  void completed(u32 stream) {
    Stream& s = streams_[stream];
    if (--s.open == 0) s.settled = s.newest;
  }

 private:
  struct Stream {
    u32 open = 0;
    u16 settled = 0;  // position of the newest credit when last none was open
    u16 newest = 0;
  };
  u32 num_ranks_, num_channels_;
  std::vector<Stream> streams_;
};

}  // namespace uccl

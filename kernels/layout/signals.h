// The words at the start of a rank's data region that kernels of its node write and wait on. (What proxies write is in
// wire/control.h.) One writer each, only growing, 8 bytes
// (but for identities).
#pragma once
#include "wire/identity.h"
#include "wire/immediate.h"
#include "wire/limits.h"
#include "wire/types.h"

namespace uccl {

struct SignalLayout {
  u32 num_ranks = 0;
  u32 num_channels = 0;

  // Epoch up to which everything that `source` put into this region for `phase` is there. The rank itself for what its
  // node reads from it (dispatch, counts); each peer for what it stores into this region (combine).
  constexpr u64 flag(Phase phase, u32 source) const { return (static_cast<u64>(phase) * num_ranks + source) * 8; }
  // Epoch that `reader` (a rank of this node) has finished reading from this rank.
  constexpr u64 consumed(Phase phase, u32 reader) const {
    return flags_bytes() + (static_cast<u64>(phase) * num_ranks + reader) * 8;
  }
  // Chunks of this rank's own stream (dispatch: to its node; combine: its rows for `source`) on a channel.
  constexpr u64 stream_tail(Direction d, u32 source, u32 channel) const {
    return 2 * flags_bytes() + ((static_cast<u64>(d) * num_ranks + source) * num_channels + channel) * 8;
  }
  // Chunks of the stream of `source` held here that local reader `reader` (index in the node) has finished with.
  constexpr u64 stream_head(Direction d, u32 source, u32 channel, u32 reader) const {
    return heads_begin() +
           (((static_cast<u64>(d) * num_ranks + source) * num_channels + channel) * max_readers + reader) * 8;
  }
  // Chunks that this rank has sent on a stream to another node (dispatch: by its landing rank there; combine: by the
  // source).
  constexpr u64 sent(Direction d, u32 peer, u32 channel) const {
    return sent_begin() + ((static_cast<u64>(d) * num_ranks + peer) * num_channels + channel) * 8;
  }
  // Chunks that this rank has finished with of the partial sums that `reducer` (on another node) sends it.
  constexpr u64 partial_head(u32 reducer, u32 channel) const {
    return sent_begin() + kNumDirections * streams() * 8 + (static_cast<u64>(reducer) * num_channels + channel) * 8;
  }
  // Round of the node's own barrier that this rank has entered.
  constexpr u64 barrier() const { return sent_begin() + (kNumDirections + 1) * streams() * 8; }
  // The identity of this rank's call, for ranks of its node: released by the flag of the same phase and epoch. No shape
  // of a call moves it, so that what another shape has left is never taken for it. Two sets, by epoch parity.
  constexpr u64 identity(Phase phase, u64 epoch) const {
    return align_up(barrier() + 64, 64) + (static_cast<u64>(phase) * 2 + (epoch & 1)) * 32;
  }
  // The epoch of a low-latency call's identity, which releases it and all that this rank has stored for its node: in one
  // sector of 32 bytes with it, so a GPU reads both at once. The words of flag() then say the same to reports, and where
  // ranks may leave each other out, to each reader of a combine by itself.
  constexpr u64 flag_beside(Phase phase, u64 epoch) const { return identity(phase, epoch) + sizeof(CallIdentity); }
  constexpr u64 bytes() const { return align_up(identity(static_cast<Phase>(kNumPhases), 0), 4096); }

  u32 max_readers = 1;  // largest node

 private:
  constexpr u64 flags_bytes() const { return static_cast<u64>(kNumPhases) * num_ranks * 8; }
  constexpr u64 streams() const { return static_cast<u64>(num_ranks) * num_channels; }
  constexpr u64 heads_begin() const { return 2 * flags_bytes() + kNumDirections * streams() * 8; }
  constexpr u64 sent_begin() const { return heads_begin() + kNumDirections * streams() * max_readers * 8; }
};

}  // namespace uccl

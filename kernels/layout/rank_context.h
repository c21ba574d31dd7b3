// What every kernel of a rank is told: who is where, which memories it may touch, and how long to wait.
#pragma once
#include "kernels/layout/signals.h"
#include "kernels/layout/topology.h"
#include "ring/layout.h"
#include "wire/control.h"

namespace uccl {

struct RankContext {
  TopologyView topology;
  u8* const* data;     // [local_size] data region of each rank of the node, by local index
  u8* const* control;  // [local_size] control segment of each; null of a rank of another host
  const RingView* rings;
  u32 num_rings;
  u32 shrink;          // a wait that expires masks the peer instead of failing (low latency)
  u32* mask;           // [num_ranks], 1 = left out
  u64* peer_stats;     // [num_ranks][kPeerStats], see PeerStat
  u64 timeout_ns;
  u32 tag;             // what the caller calls the step that it is in (CallIdentity), 0 = nothing
  u32 unused;
  u64 control_offset;  // where the control segment starts in the flat offset space
  SignalLayout signals;
  ControlLayout control_layout;
};

// Lanes of the largest block that kernels are launched with: they are compiled for it, so that no lane runs out of
// registers (an NVIDIA lane then has 128).
inline constexpr u32 kMaxBlockLanes = 512;

// With `shrink`, a sending half that waits for a peer gives it up this share of the timeout before a receiving half would.
inline constexpr u64 kSendersGiveUpEarly = 8;

// Per-peer sums that kernels keep; Buffer.stats() shows them. Waits are those of one warp (block 0's, channel 0's): real
// time, not the sum over all warps that wait at once.
enum class PeerStat : u32 { kRowsOut = 0, kBytesOut, kRowsIn, kBytesIn, kWaitNs };
inline constexpr u32 kPeerStats = 5;

}  // namespace uccl

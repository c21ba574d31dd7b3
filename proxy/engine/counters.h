// What a proxy has counted, by worker and by peer, in a shared segment that other processes read while the job runs.
#pragma once
#include "wire/types.h"

namespace uccl {

// One per worker. Written by the worker alone; relaxed atomics, so a reader sees whole numbers but not one instant.
struct alignas(64) WorkerCounters {
  u64 commands, writes, write_bytes, completions, arrivals, expects, sequences, credits, barriers, quiets;
  u64 parked;           // arrivals that came before their turn
  u64 deepest_reorder;  // most writes of one channel that waited at once
  u64 stale;            // immediates of another epoch, dropped
  u64 refused;          // commands or arrivals that no correct peer sends
  u64 stalls;           // times the head of a ring waited for room towards its peer
  u64 naps;
};

// Per peer: bytes out and in, stalls, open writes. Written by workers (relaxed adds).
struct alignas(64) PeerCounters {
  u64 writes, write_bytes, arrivals, stalls, in_flight, in_flight_bytes, last_arrival_ns, lost;
  u64 sending_ns;   // with writes open towards it, up to the last change, added up over workers
  u64 arriving_ns;  // from the first sign of a call of its to that call's flag, added up over calls
  u64 parked;       // arrivals of its that wait now for their turn
};

}  // namespace uccl

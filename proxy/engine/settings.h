// What an engine is given, and the check of it.
#pragma once
#include <vector>

#include "diag/event_ring.h"
#include "engine/counters.h"
#include "memory/address_space.h"
#include "wire/control.h"

namespace uccl {

// Makes what NICs have written into a device's memory by now visible to whoever reads it, before a worker says so in a
// word that lies elsewhere; 0, or why it could not. Called once for each batch of arrivals, by every worker's thread.
struct DeviceFlush {
  int (*call)(void* what) = nullptr;  // null: not needed
  void* what = nullptr;
};

struct EngineSettings {
  u32 rank = 0;
  u32 num_ranks = 1;
  u32 num_workers = 1;             // threads; worker w owns lane w and the rings with index % num_workers == w
  std::vector<void*> rings;        // ring memories (ring/layout.h), all of one capacity
  u32 ring_capacity = 1024;
  AddressSpace local;              // the rank's own flat space: sources of writes, targets of arrivals
  std::vector<u64> peer_bytes;     // size of each peer's flat space; commands beyond it are refused. 0 = not a peer
  u8* control = nullptr;           // the control segment's base
  ControlLayout control_layout;
  std::vector<int> peer_pids;      // pid to watch per rank on this host, 0 = none
  u32 max_in_flight = 64;          // writes per peer that are posted and not complete
  u64 max_in_flight_bytes = 8ull << 20;
  u64 max_in_flight_bytes_all = 0;  // of a worker to all peers together; 0 = no bound beyond each peer's
  bool losses_are_absences = false; // a lost peer is no fault: its `departed` word says so, and kernels mask it
  std::vector<int> cpus;           // pin worker w to cpus[w % size]; empty = not pinned
  std::vector<int> near_cpus;      // where workers that are not pinned may run; empty, or refused: anywhere
  bool nap_when_idle = true;       // after a while without work, sleep in short naps (at most nap_ns); else idle.h
  u64 nap_ns = 50 * 1000;
  DeviceFlush flush;
  std::vector<EventLog> events;    // the flight recorder's, one a worker; empty = nothing is recorded
};

inline constexpr u32 kMaxWorkers = 256;

// Throws std::invalid_argument that names the field, its value and what is allowed.
void check_settings(const EngineSettings& settings, const WorkerCounters* worker_counters,
                    const PeerCounters* peer_counters);

}  // namespace uccl

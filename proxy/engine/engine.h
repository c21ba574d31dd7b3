// The proxy of one rank: worker threads that take commands from rings, post them to a transport, and turn what arrives
// into words that kernels wait on. Knows nothing of tensors, tokens or Python.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "diag/event_ring.h"
#include "memory/address_space.h"
#include "memory/home.h"
#include "ring/layout.h"
#include "transport/transport.h"
#include "wire/control.h"

namespace uccl {

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
  bool losses_are_absences = false; // a lost peer is no fault: its `departed` word says so, and kernels mask it
  std::vector<int> cpus;           // pin worker w to cpus[w % size]; empty = not pinned
  bool nap_when_idle = true;       // after a while without work, sleep in short naps (at most nap_ns)
  u64 nap_ns = 50 * 1000;
  std::vector<EventLog> events;    // the flight recorder's, one a worker; empty = nothing is recorded
};

// One per worker, in a shared segment so that other processes can read it while the job runs. Written by the worker
// alone; relaxed atomics, so a reader sees whole numbers but not one instant.
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

class Engine {
 public:
  // `worker_counters` and `peer_counters` point at num_workers and num_ranks zeroed entries that outlive the engine.
  Engine(EngineSettings settings, std::unique_ptr<Transport> transport, WorkerCounters* worker_counters,
         PeerCounters* peer_counters);
  ~Engine();  // stops; in a child of fork() it has no effect
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void start();
  // Ends the threads after at most `drain_ns` of trying to complete what is posted. No collective, never blocks on a
  // peer. Idempotent.
  void stop(u64 drain_ns);
  // From now on a peer's silence or death is expected (it said goodbye, or is masked): no fault is recorded for it.
  void dismiss_peer(u32 peer);
  // The transport's, at any time before destruction.
  std::vector<QueueCounters> queue_counters() const;

 private:
  struct Shared;
  HomePtr<Shared> shared_;
};

}  // namespace uccl

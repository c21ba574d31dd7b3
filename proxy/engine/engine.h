// The proxy of one rank: worker threads that take commands from rings, post them to a transport, and turn what arrives
// into words that kernels wait on. Knows nothing of tensors, tokens or Python.
#pragma once
#include <memory>
#include <vector>

#include "engine/settings.h"
#include "memory/home.h"

namespace uccl {

class Transport;
struct Admission;
struct QueueCounters;

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
  void admit(const Admission& wanted);
  std::vector<QueueCounters> queue_counters() const;

 private:
  struct Shared;
  HomePtr<Shared> shared_;
};

}  // namespace uccl

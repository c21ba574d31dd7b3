// The engine's control path: building the workers, starting and ending their threads. Everything is allocated here.
#include "engine/engine.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "engine/departures.h"
#include "engine/process_watch.h"
#include "engine/settings.h"
#include "engine/words.h"
#include "engine/worker.h"
#include "memory/start_thread.h"

namespace uccl {

struct Engine::Shared {
  Shared(EngineSettings s, std::unique_ptr<Transport> t, WorkerCounters* worker_counters, PeerCounters* peer_counters);
  ~Shared() { stop(0); }
  void start_worker(u32 index);
  void stop(u64 drain_ns);

  EngineSettings settings;
  std::unique_ptr<Transport> transport;
  Faults faults;
  Membership membership;
  Departures departures;
  ProcessWatch watch;
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::thread> threads;
  std::atomic<u64> stop_at_ns{Worker::kNeverStop};
  std::mutex control_path;  // start, stop and destruction; never taken by a worker
  bool started = false;
};

Engine::Shared::Shared(EngineSettings s, std::unique_ptr<Transport> t, WorkerCounters* worker_counters,
                       PeerCounters* peer_counters)
    : settings((check_settings(s, worker_counters, peer_counters), std::move(s))),
      transport(std::move(t)),
      faults(settings.control, peer_counters, settings.num_ranks),
      membership(settings.num_ranks, peer_counters, faults),
      departures(settings.control, settings.control_layout),
      watch(settings.peer_pids, [this](u32 peer) {
        if (departures.process_ended(peer)) return;
        if (settings.losses_are_absences) {
          departures.lost(peer);
          membership.dismiss(peer);
        }
        membership.lose(peer, PeerFault::kLost, 0);
      }) {
  if (!transport) throw std::invalid_argument("engine: transport is null, allowed: a connected transport");
  for (u32 w = 0; w < settings.num_workers; ++w)
    workers.push_back(std::make_unique<Worker>(WorkerShared{settings, peer_counters, membership, faults}, w,
                                               transport->lane(w), worker_counters[w]));
}

void Engine::Shared::start_worker(u32 index) {
  threads.push_back(start_thread("a proxy worker", [this, index] { workers[index]->run(stop_at_ns); }));
  const pthread_t thread = threads.back().native_handle();
  pthread_setname_np(thread, ("uccl-proxy-" + std::to_string(index)).c_str());  // 15 characters: fits 256 workers
  cpu_set_t set;
  CPU_ZERO(&set);
  if (settings.cpus.empty()) {
    for (const int cpu : settings.near_cpus) CPU_SET(cpu, &set);
    if (!settings.near_cpus.empty()) pthread_setaffinity_np(thread, sizeof set, &set);  // a matter of speed only
    return;
  }
  const int cpu = settings.cpus[index % settings.cpus.size()];
  CPU_SET(cpu, &set);
  if (const int error = pthread_setaffinity_np(thread, sizeof set, &set); error != 0)
    throw std::system_error(error, std::generic_category(),
                            "engine: pinning worker " + std::to_string(index) + " to cpu " + std::to_string(cpu));
}

void Engine::Shared::stop(u64 drain_ns) {
  const std::lock_guard<std::mutex> lock(control_path);
  const u64 now = steady_ns();
  // Saturates, and stays below kNeverStop. Release pairs with the workers' acquire.
  stop_at_ns.store(now + std::min(drain_ns, Worker::kNeverStop - 1 - now), std::memory_order_release);
  for (std::thread& thread : threads) thread.join();
  threads.clear();
  watch.stop();
}

Engine::Engine(EngineSettings settings, std::unique_ptr<Transport> transport, WorkerCounters* worker_counters,
               PeerCounters* peer_counters)
    : shared_(make_at_home<Shared>(std::move(settings), std::move(transport), worker_counters, peer_counters)) {}

Engine::~Engine() = default;

void Engine::start() {
  Shared& s = *shared_;
  std::unique_lock<std::mutex> lock(s.control_path);
  if (s.started) throw std::logic_error("engine: started twice");
  s.started = true;
  try {
    s.threads.reserve(s.settings.num_workers);
    for (u32 w = 0; w < s.settings.num_workers; ++w) s.start_worker(w);
    s.watch.start();
  } catch (...) {
    lock.unlock();
    s.stop(0);  // a half-started engine has no use
    throw;
  }
}

void Engine::stop(u64 drain_ns) { shared_->stop(drain_ns); }

void Engine::admit(const Admission& wanted) { shared_->transport->admit(wanted); }

std::vector<QueueCounters> Engine::queue_counters() const { return shared_->transport->queue_counters(); }

void Engine::dismiss_peer(u32 peer) {
  if (peer >= shared_->settings.num_ranks)
    throw std::invalid_argument("engine: peer is " + std::to_string(peer) + ", allowed: below " +
                                std::to_string(shared_->settings.num_ranks));
  shared_->membership.dismiss(peer);
}

}  // namespace uccl

// Every requirement on EngineSettings, each with a message that says what to change.
#include "engine/settings.h"

#include <sched.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "ring/layout.h"
#include "wire/limits.h"

namespace uccl {
namespace {

[[noreturn]] void refuse(const char* field, const std::string& value, const std::string& allowed) {
  throw std::invalid_argument(std::string("engine: ") + field + " is " + value + ", allowed: " + allowed);
}

void in_range(const char* field, u64 value, u64 low, u64 high) {
  if (value < low || value > high)
    refuse(field, std::to_string(value), std::to_string(low) + " to " + std::to_string(high));
}

void check_rings(const EngineSettings& s) {
  if (!valid_capacity(s.ring_capacity))
    refuse("ring_capacity", std::to_string(s.ring_capacity), "a power of two, at least 2");
  in_range("rings.size()", s.rings.size(), 0, u64{s.num_workers} << 15);  // the completion wr_id's ring field
  for (std::size_t i = 0; i < s.rings.size(); ++i)
    if (s.rings[i] == nullptr) refuse(("rings[" + std::to_string(i) + "]").c_str(), "null", "ring memory");
}

void check_peers(const EngineSettings& s) {
  if (s.peer_bytes.size() != s.num_ranks)
    refuse("peer_bytes.size()", std::to_string(s.peer_bytes.size()), "num_ranks = " + std::to_string(s.num_ranks));
  for (const u64 bytes : s.peer_bytes) in_range("peer_bytes", bytes, 0, kMaxRegionBytes);
  if (!s.peer_pids.empty() && s.peer_pids.size() != s.num_ranks)
    refuse("peer_pids.size()", std::to_string(s.peer_pids.size()), "0 or num_ranks = " + std::to_string(s.num_ranks));
}

}  // namespace

void check_settings(const EngineSettings& s, const WorkerCounters* worker_counters, const PeerCounters* peer_counters) {
  in_range("num_ranks", s.num_ranks, 1, kMaxRanks);
  in_range("rank", s.rank, 0, s.num_ranks - 1);
  in_range("num_workers", s.num_workers, 1, kMaxWorkers);
  check_rings(s);
  check_peers(s);
  if (s.control == nullptr) refuse("control", "null", "the control segment's base");
  if (s.control_layout.num_ranks != s.num_ranks)
    refuse("control_layout.num_ranks", std::to_string(s.control_layout.num_ranks),
           "num_ranks = " + std::to_string(s.num_ranks));
  in_range("control_layout.num_channels", s.control_layout.num_channels, 0, kMaxChannels);
  // The receiver's window of a channel is as wide as this: more in flight could not be put in order again.
  in_range("max_in_flight", s.max_in_flight, 1, kMaxSequenceInFlight);
  in_range("max_in_flight_bytes", s.max_in_flight_bytes, 1, ~0ull);
  for (const auto& [name, cpus] : {std::pair("cpus", &s.cpus), std::pair("near_cpus", &s.near_cpus)})
    for (const int cpu : *cpus)
      if (cpu < 0 || cpu >= CPU_SETSIZE) refuse(name, std::to_string(cpu), "0 to " + std::to_string(CPU_SETSIZE - 1));
  if (worker_counters == nullptr) refuse("worker_counters", "null", "num_workers zeroed entries");
  if (peer_counters == nullptr) refuse("peer_counters", "null", "num_ranks zeroed entries");
}

}  // namespace uccl

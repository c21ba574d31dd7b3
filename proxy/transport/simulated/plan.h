// What a simulated network is like and what goes wrong in it: plain values, so that a run can be drawn from a seed,
// printed, and repeated with parts left out. Times are virtual nanoseconds.
#pragma once
#include <bitset>
#include <string>
#include <vector>

#include "wire/types.h"

namespace uccl {

// How a network treats writes. Every number that varies is drawn once a link, or once a write, from the seed.
struct LinkProfile {
  std::string name;
  bool ordered = false;           // a queue pair delivers and completes in the order posted (reliable connection)
  u64 latency_ns = 2000;          // of the shortest link; others up to four times that
  u64 jitter_ns = 0;              // added to each write, 0 to this
  u32 stragglers = 0;             // one write in so many is held back by up to straggler_ns; 0 = none
  u64 straggler_ns = 0;
  u64 bytes_per_us = 10000;       // of a link; 0 = no limit
  u64 completion_ns = 1000;       // from the arrival to the sender's completion, up to this
  u32 late_completions = 0;       // one in so many takes up to late_completion_ns instead; 0 = none
  u64 late_completion_ns = 0;
};

// By name: "rc" (InfiniBand or RoCE reliable connection: in order per queue pair) or "srd" (EFA: any order).
// Throws std::invalid_argument that lists the names.
LinkProfile link_profile(const std::string& name);

enum class FaultPlanKind : u32 {
  kStall,      // source -> target: nothing is delivered or completed from begin to end, then all of it
  kLinkLoss,   // both directions end at `begin`; both ranks are told after `notice_ns`
  kHalfOpen,   // source -> target swallows everything from `begin`; nobody is told
  kDeath,      // rank `source` stops at `begin`; its peers are told after `notice_ns` each
  kSlow,       // rank `source` polls only once in `period_ns` from begin to end (a driver asks `slow_until`)
};

struct FaultPlan {
  FaultPlanKind kind = FaultPlanKind::kStall;
  u32 source = 0, target = 0;
  u64 begin_ns = 0, end_ns = 0;
  u64 notice_ns = 0;
  u64 period_ns = 0;

  bool lethal() const {
    return kind == FaultPlanKind::kLinkLoss || kind == FaultPlanKind::kHalfOpen || kind == FaultPlanKind::kDeath;
  }
};
std::string describe(const FaultPlan& plan);

// One write's treatment: what remains of a failing run is a list of these.
struct Perturbation {
  u64 delay_ns = 0;       // beyond the link's latency
  u64 completion_ns = 0;  // from arrival to completion
  u64 early_bytes = 0;    // so many land before the rest
  bool reads_early = false;  // the source is read when the write leaves, not when it lands

  bool none() const { return delay_ns == 0 && completion_ns == 0 && early_bytes == 0 && !reads_early; }
};

struct NetworkSettings {
  u32 num_ranks = 1, num_lanes = 1;
  u64 seed = 0;
  u32 max_in_flight = 256;  // writes per peer and lane
  LinkProfile profile;
  std::vector<FaultPlan> faults;
  // Writes fall into kBuckets by (source, target, lane, position); those of these buckets are not perturbed. A bucket
  // keeps its meaning when another is calmed: that is how a failing run is shortened.
  static constexpr u32 kBuckets = 512;
  std::bitset<kBuckets> calm;
  bool self_driven = false;  // polls that find nothing move time on: no driver does
  u64 lag_ns = 0;  // bytes in a GPU's memory are visible up to so much later than they land (network.h, set_device)
  // A GPU's read of a flag makes them visible to it, whoever wrote them before: an order that ThreadSanitizer does not know.
  bool reads_order = false;
};

}  // namespace uccl

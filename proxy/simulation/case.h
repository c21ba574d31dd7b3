// Everything that is chosen about one simulated run, drawn from its seed: who is where, sizes, limits, network, faults.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "kernels/launch/launch.h"
#include "kernels/layout/low_latency.h"
#include "transport/simulated/plan.h"

namespace uccl::simulation {

enum class Mode : u32 { kLowLatency = 0, kThroughput = 1 };

// Where rows lie, and who makes visible what NICs have written there.
enum class Rows : u32 {
  kHost,  // in the host's memory, where they are visible before their immediate is
  kFlushed,  // in GPUs' memory, where they are visible late; engines flush before they raise a flag
  kOwned,  // likewise, and nobody flushes: a GPU's own kernels see what came before a flag that they read
  kForgotten,  // likewise, and nothing helps: wrong rows, which a run must find
};

struct WorldShape {
  std::vector<u32> node_of{0};  // nodes are numbered by their lowest rank
  std::vector<u32> cell_of;  // likewise cells, each within a node (kernels/layout/topology.h); empty: its node
  bool shrink = false;  // a wait that expires leaves the peer out instead of failing (enable_shrink)
  u32 num_rings = 1, ring_capacity = 8, num_workers = 1, num_channels = 4;
  u32 max_in_flight = 8;
  u64 max_in_flight_bytes = 8u << 20;
  u64 timeout_ns = 2'000'000'000;  // virtual
  u64 age = 0;  // what every counter starts from: chunks, epochs, barriers, and tickets as near as rings allow
  // Low-latency part; hidden 0: none.
  u32 max_tokens = 0, hidden = 0, max_topk = 0, staging_rows = 8;
  u64 zero_copy_bytes = 0;
  // Throughput part; unit_bytes 0: none.
  u64 unit_bytes = 0;
  u32 max_local_experts = 16;
  Rows rows = Rows::kHost;
  u64 lag_ns = 20'000;  // until a NIC's bytes in a GPU's memory are visible by themselves, at most

  u32 num_ranks() const { return static_cast<u32>(node_of.size()); }
  u32 num_nodes() const;
  u32 num_cells() const;
  const std::vector<u32>& cells() const { return cell_of.empty() ? node_of : cell_of; }
};

// A rank that takes no further part though nothing has befallen it; its proxy goes on. With `shrink` only.
enum class LeavingKind : u32 {
  kAgreed,  // before `round`, after a barrier: all leave it out at once; round 0: it never took part
  kMiddle,  // in `round`, before others depend on what it owes: all leave it out then
  kSilent,  // the others find out for themselves. Low latency: instead of its `launches`-th launch; throughput: before
  // `round`. (A rank that hangs within a throughput call holds up some of the others, but not all alike; who
  // is held up less may then leave out who is held up more, so nothing is fixed.)
};
struct Leaving {
  LeavingKind kind = LeavingKind::kAgreed;
  u32 rank = 0, round = 0, launches = ~0u;  // ~0: does not stop by launches
};

// Enough also where the ranks of a node read zero-copy rows in place.
inline constexpr u64 kZeroCopySets = 3;

struct Case {
  u64 seed = 1;
  Mode mode = Mode::kLowLatency;
  WorldShape world;
  u32 rounds = 3;
  u32 num_experts = 8;  // of all ranks
  u32 grid = 1, warps = 1;
  // Low latency.
  RowFormat format = RowFormat::kBf16;
  bool round_scale = false, zero_copy = false;
  bool rows_stay = false;  // combine's rows, in low latency zero-copy ones, are read where they lie by their node
  u32 batch = 4;
  // Throughput.
  u32 max_tokens = 12, max_topk = 4, max_channels = 2, max_hidden = 64;
  bool same_geometry = false;
  // Scheduling.
  u64 step_ns = 100;  // virtual time that a step of a kernel or a worker takes
  bool in_turn = false;  // ranks and workers take turns instead of an order drawn from the seed
  LinkProfile profile;
  std::vector<FaultPlan> faults;
  std::vector<Leaving> leavings;
  std::bitset<NetworkSettings::kBuckets> calm;  // writes that are left in peace (shorten.h)

  DeviceShape device() const { return {grid, warps, seed % 2 == 0}; }  // launches of every other case are a GPU's
  bool lethal() const;
  bool absences() const { return world.shrink && (lethal() || !leavings.empty()); }  // somebody may be left out
};

// What a caller fixes about every case; the seed chooses the rest.
struct Wish {
  Wish(const char* p) : profile(p) {}
  Wish(std::string p, u32 ranks = 0, u32 nodes = 0) : profile(std::move(p)), num_ranks(ranks), num_nodes(nodes) {}
  std::string profile;  // by name: "rc", "srd", or "any" for the seed to choose
  u32 num_ranks = 0, num_nodes = 0;  // both 0: the seed chooses; nodes of neighbouring ranks, as equal as there can be
};

// Throws std::invalid_argument for a profile that is not there (it lists them), and for ranks and nodes that cannot be.
Case draw_case(u64 seed, const Wish& wish);
std::string describe(const Case& c);

}  // namespace uccl::simulation

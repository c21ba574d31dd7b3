// N ranks in one process for the kernel tests: real rings, real engines over the loopback transport, regions in plain
// memory, and the tables that kernels are told about. Each rank runs on a thread of its own, and nothing but the
// product keeps them in step.
#pragma once
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <typeindex>
#include <vector>

#include "engine/engine.h"
#include "kernels/host/runtime.h"
#include "kernels/launch/rank_tables.h"
#include "kernels/launch/region_plan.h"
#include "kernels/layout/access.h"
#include "kernels/layout/low_latency.h"
#include "kernels/layout/throughput.h"
#include "kernels/values.h"
#include "transport/fabric.h"

namespace uccl::testing {

struct WorldShape {
  std::vector<u32> node_of{0};
  u32 num_rings = 1, ring_capacity = 8, num_workers = 1, num_channels = 4;
  u32 max_in_flight = 8;
  u64 shuffle_seed = 0;  // of the transport; 0: writes arrive as posted
  u64 timeout_ns = 30'000'000'000ull;
  bool shrink = false;
  bool apart = false;  // each rank is a cell of its own (topology.h)
  // Low-latency part; hidden 0: none.
  u32 max_tokens = 0, hidden = 0, max_topk = 0, staging_rows = 8;
  bool reduces = false;  // with room for combines that are reduced in the node
  u64 zero_copy_bytes = 0;
  // Throughput part; unit_bytes 0: none.
  u64 unit_bytes = 0;
  u32 max_local_experts = 16;
  // Ranks in several processes (tests/rdma): the ranks that this one plays (empty: all), a family that reaches the
  // others, and what carries addresses: this process's in, everybody's out.
  std::string family = "loopback";
  FabricSettings fabric;
  std::vector<u32> here;
  std::function<std::vector<std::string>(const std::vector<std::string>&)> exchange;

  u32 num_ranks() const { return static_cast<u32>(node_of.size()); }
};

// How a test launches a kernel.
struct LaunchShape {
  u32 grid = 1, warps = 2, threads = 1;
  u64 seed = 0;
};

template <class Args>
void launch_kernel(void (*kernel)(Args), const Args& args, const LaunchShape& shape) {
  simt::LaunchConfig config;
  config.grid = shape.grid;
  config.block = shape.warps * simt::kWarp;
  // What a GPU's driver refuses: kernels are compiled for so many lanes, and have places for so many warps.
  if (shape.warps > kMaxBlockWarps) throw std::invalid_argument("a block of more warps than kernels are compiled for");
  config.smem_bytes = static_cast<u32>(shared_bytes(args, shape.warps));
  config.threads = shape.threads;
  config.seed = shape.seed;
  simt::launch(config, [&] { kernel(args); });
}

// Launches kept with their argument bytes, to be run again: what a recorded graph does.
class Recording {
 public:
  // Launches; and keeps the launch, and what it points at, while recording.
  template <class Args>
  void launch(void (*kernel)(Args), const Args& args, const LaunchShape& shape, std::shared_ptr<void> held = nullptr) {
    const auto other = others_.find(typeid(Args));
    const Other by = other == others_.end() ? Other() : other->second;
    const auto run = [kernel, args, shape, held, by] {
      if (by != nullptr) return by(&args, shape);
      launch_kernel(kernel, args, shape);
    };
    if (on_) launches_.push_back(run);
    run();
  }
  // From now on another form of the kernel with these arguments is launched in its stead.
  template <class Args>
  void replace(std::function<void(const Args&, const LaunchShape&)> other) {
    others_[typeid(Args)] = [other](const void* args, const LaunchShape& shape) {
      other(*static_cast<const Args*>(args), shape);
    };
  }
  void record(bool on) { on_ = on; }
  bool on() const { return on_; }
  u64 size() const { return launches_.size(); }
  void replay(u64 first, u64 last) const {
    for (u64 i = first; i < last; ++i) launches_[i]();
  }

 private:
  using Other = std::function<void(const void* args, const LaunchShape& shape)>;
  bool on_ = false;
  std::vector<std::function<void()>> launches_;
  std::map<std::type_index, Other> others_;
};

// What a rank's fault record says; `kind` is kNone while there is none.
struct Fault {
  FaultKind kind = FaultKind::kNone;
  WaitPhase phase = WaitPhase::kNone;
  u32 peer = 0;
  DetailWord detail{};
  u64 expected = 0, seen = 0;
};

class World {
 public:
  explicit World(const WorldShape& shape);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // body(rank) on a thread each, for these ranks (all of this process by default). The first exception ends every
  // other wait and is thrown again once all have returned.
  void run(const std::function<void(u32)>& body) { run(all_, body); }
  void run(const std::vector<u32>& ranks, const std::function<void(u32)>& body);

  const WorldShape& shape() const { return shape_; }
  u32 num_ranks() const { return shape_.num_ranks(); }
  const RankContext& context(u32 rank) const { return ranks_[rank]->context; }
  // For the kernels that this rank launches from now on; a test that waits for a deadline makes it short only then.
  void set_timeout(u32 rank, u64 timeout_ns) { ranks_[rank]->context.timeout_ns = timeout_ns; }
  u8* data(u32 rank) const { return ranks_[rank]->data.data(); }
  u8* control(u32 rank) const { return ranks_[rank]->control.data(); }
  u8* zero_copy(u32 rank) const { return ranks_[rank]->zero_copy.data(); }
  u64 zero_copy_offset() const { return plan.zero_copy_offset; }
  // What row_in_memory is given: the zero-copy regions of a rank's node; of a world that has none, all that there is.
  const u8* const* memories(u32 rank) const { return ranks_[rank]->memories.data(); }
  const u8* memory(u32 rank) const { return shape_.zero_copy_bytes != 0 ? zero_copy(rank) : nullptr; }
  u32* mask(u32 rank) const { return ranks_[rank]->mask.data(); }
  const std::vector<PeerCounters>& peer_counters(u32 rank) const { return ranks_[rank]->peer_counters; }
  const std::vector<WorkerCounters>& worker_counters(u32 rank) const { return ranks_[rank]->worker_counters; }
  std::vector<QueueCounters> queue_counters(u32 rank) const;
  Fault fault(u32 rank) const;
  bool aborted(u32 rank) const;
  bool rings_idle(u32 rank) const;  // every command so far is complete at its receiver
  u64 word(const u8* base, u64 offset) const;

  const GroupShape group;
  const RegionPlan plan;
  const LowLatencyLayout& low_latency = plan.low_latency;
  const ThroughputLayout& throughput = plan.throughput;
  const u32 num_nodes = group.num_nodes, num_cells = group.num_cells, max_readers = group.max_readers;

 private:
  struct Rank {
    Rank(const World& world, u32 index);
    Poisoned<u8> data, control, rings, zero_copy;
    Poisoned<u32> mask;
    Poisoned<u64> peer_stats;
    std::vector<const u8*> memories;
    std::vector<WorkerCounters> worker_counters;
    std::vector<PeerCounters> peer_counters;
    std::unique_ptr<Transport> transport;
    std::unique_ptr<RankTables> tables;
    RankContext context{};
    std::unique_ptr<Engine> engine;
  };
  void make_tables(u32 rank);
  void start_engine(u32 rank, const std::vector<std::string>& addresses);
  AddressSpace flat_space(const Rank& rank) const;

  WorldShape shape_;
  std::vector<u32> all_;  // of this process
  std::vector<std::unique_ptr<Rank>> ranks_;  // null: another process's
};

// Throws check::Failure that names what a fault record of this rank says.
void check_no_fault(const World& world, u32 rank, const char* during);

}  // namespace uccl::testing

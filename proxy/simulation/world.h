// The ranks of one simulated run: their memory, the tables that kernels are told about, and the real engine's parts.
// No thread: workers are stepped (driver.h). Laid out by
// kernels/launch, as every rank is; built the way uccl_ep/session/session.py builds one.
#pragma once
#include <memory>
#include <vector>

#include "engine/worker.h"
#include "kernels/launch/rank_tables.h"
#include "kernels/launch/region_plan.h"
#include "kernels/layout/throughput.h"
#include "simulation/arena.h"
#include "simulation/case.h"
#include "transport/simulated/lane.h"

namespace uccl::simulation {

class World {
 public:
  // Memory comes from `arena`, which outlives the world; the network's time is every clock.
  World(const WorldShape& shape, std::shared_ptr<SimulatedNetwork> network, Arena& arena);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const WorldShape& shape() const { return shape_; }
  u32 num_ranks() const { return shape_.num_ranks(); }
  u32 num_workers() const { return num_nodes > 1 ? shape_.num_workers : 0; }
  SimulatedNetwork& network() { return *network_; }
  const RankContext& context(u32 rank) const { return ranks_[rank]->tables->context(); }
  u8* data(u32 rank) const { return ranks_[rank]->data; }
  u8* control(u32 rank) const { return ranks_[rank]->control; }
  u8* zero_copy(u32 rank) const { return ranks_[rank]->zero_copy; }
  // What row_in_memory is given (kernels/layout/access.h). All ranks are of one process: every memory begins at address 0.
  const u8* const* memories(u32 rank) const { return ranks_[rank]->memories.data(); }
  u64 zero_copy_offset() const { return plan.zero_copy_offset; }
  Worker& worker(u32 rank, u32 index) { return *ranks_[rank]->workers[index]; }
  Membership& membership(u32 rank) { return ranks_[rank]->membership; }
  const std::vector<WorkerCounters>& worker_counters(u32 rank) const { return ranks_[rank]->worker_counters; }
  const std::vector<PeerCounters>& peer_counters(u32 rank) const { return ranks_[rank]->peer_counters; }

  // The rank's fault record; `kind` is kNone while there is none.
  FaultRecord fault(u32 rank) const;
  bool aborted(u32 rank) const;
  void raise_abort(u32 rank);
  void raise_timeout(u32 rank);  // a host-side wait of the rank expired; nothing when it has failed before
  u64 commands(u32 rank) const;  // tickets that producers of the rank's rings have taken
  bool masked(u32 rank, u32 peer) const;
  void leave_out(u32 rank, u32 peer);  // as uccl_ep/session/session.py: for its kernels and its proxy
  u64 exclusions(u32 rank) const;  // changes of whom the rank leaves out
  bool departed(u32 rank, u32 peer) const;  // the rank knows that nothing more will come
  void lose_process(u32 rank, u32 peer);  // its process watch says so
  bool rings_idle(u32 rank) const;  // every command so far is complete at its receiver

  const GroupShape group;
  const RegionPlan plan;
  const LowLatencyLayout& low_latency = plan.low_latency;
  const ThroughputLayout& throughput = plan.throughput;
  const u32 num_nodes = group.num_nodes, num_cells = group.num_cells, max_readers = group.max_readers;

 private:
  struct Rank {
    Rank(World& world, u32 index, Arena& arena);
    World* world;
    u8 *data, *control, *rings, *zero_copy;
    std::vector<const u8*> memories;
    std::vector<WorkerCounters> worker_counters;
    std::vector<PeerCounters> peer_counters;
    EngineSettings settings;
    Faults faults;
    Membership membership;
    std::unique_ptr<RankTables> tables;
    std::vector<std::unique_ptr<SimulatedLane>> lanes;
    std::vector<std::unique_ptr<Worker>> workers;  // end before the lanes, which they use
  };
  void make_tables(u32 rank, Arena& arena);
  void make_engine(u32 rank);
  static int flush(void* rank);  // a Rank
  void age(Rank& rank);
  AddressSpace flat_space(const Rank& rank) const;

  WorldShape shape_;
  std::shared_ptr<SimulatedNetwork> network_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace uccl::simulation

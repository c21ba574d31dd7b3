// Offsets, tables and engines of the simulated ranks.
#include "simulation/world.h"

#include <algorithm>

#include "engine/departures.h"
#include "engine/settings.h"
#include "engine/words.h"

namespace uccl::simulation {
namespace {

RegionSizes sizes_of(const WorldShape& shape) {
  RegionSizes s;
  s.num_channels = shape.num_channels;
  s.max_local_experts = shape.max_local_experts;
  s.unit_bytes = shape.unit_bytes;
  s.low_latency.max_tokens = shape.max_tokens;
  s.low_latency.hidden = shape.hidden;
  s.low_latency.max_topk = shape.max_topk;
  s.low_latency.staging_rows = shape.staging_rows;
  return s;
}

}  // namespace

World::Rank::Rank(World& w, u32, Arena& arena)
    : world(&w),
      data(arena.take(w.plan.data_bytes)),
      control(arena.take(w.plan.control.bytes())),
      rings(arena.take(w.shape_.num_rings * ring_bytes(w.shape_.ring_capacity))),
      zero_copy(arena.take(w.shape_.zero_copy_bytes)),
      worker_counters(w.shape_.num_workers, WorkerCounters{}),
      peer_counters(w.num_ranks(), PeerCounters{}),
      faults(control, peer_counters.data(), w.num_ranks()),
      membership(w.num_ranks(), peer_counters.data(), faults) {}

World::World(const WorldShape& shape, std::shared_ptr<SimulatedNetwork> network, Arena& arena)
    : group(GroupShape::of(shape.node_of, shape.cell_of)),
      plan(group, sizes_of(shape)),
      shape_(shape),
      network_(std::move(network)) {
  for (u32 r = 0; r < num_ranks(); ++r) ranks_.push_back(std::make_unique<Rank>(*this, r, arena));
  for (auto& rank : ranks_) age(*rank);
  if (shape_.rows != Rows::kHost) network_->set_device(plan.data_bytes);
  for (u32 r = 0; r < num_ranks(); ++r) make_tables(r, arena);
  for (u32 r = 0; num_nodes > 1 && r < num_ranks(); ++r) make_engine(r);
}

World::~World() { network_->end_all(); }

// A rank that has been at it for long: all its words are counters, but for the fault and for who has left.
void World::age(Rank& rank) {
  if (shape_.age == 0) return;
  for (u64 at = 0; at < plan.signals.bytes(); at += 8) *reinterpret_cast<u64*>(rank.data + at) = shape_.age;
  const u64 tables_end = plan.control.departed(0);
  for (u64 at = ControlLayout::kTables; at < tables_end; at += 8) control_word(rank.control, at) = shape_.age;
  control_word(rank.control, ControlLayout::kBarrier) = shape_.age;
  control_word(rank.control, ControlLayout::kLocalBarrier) = shape_.age;
  // Empty slots say "lap before an even one", so a ring is as old as a multiple of two laps.
  const u64 tickets = shape_.age / (2 * shape_.ring_capacity) * (2 * shape_.ring_capacity);
  for (u32 i = 0; i < shape_.num_rings; ++i) {
    auto* header = reinterpret_cast<RingHeader*>(rank.rings + i * ring_bytes(shape_.ring_capacity));
    header->tail = header->done = header->head = header->cached_tail = tickets;
  }
}

AddressSpace World::flat_space(const Rank& rank) const {
  AddressSpace space;
  space.add(Span{0, plan.data_bytes, rank.data});
  space.add(Span{plan.control_offset, plan.control.bytes(), rank.control});
  if (shape_.zero_copy_bytes != 0) space.add(Span{plan.zero_copy_offset, shape_.zero_copy_bytes, rank.zero_copy});
  return space;
}

void World::make_tables(u32 rank, Arena& arena) {
  Rank& me = *ranks_[rank];
  const auto mates =
      static_cast<std::size_t>(std::count(shape_.node_of.begin(), shape_.node_of.end(), shape_.node_of[rank]));
  me.memories.assign(mates, nullptr);
  me.memories.resize(2 * mates, reinterpret_cast<const u8*>(low_bits(48)));
  RankTablesSettings s;
  s.rank = rank;
  s.node_of = shape_.node_of;
  s.cell_of = shape_.cell_of;
  s.shrink = shape_.shrink;
  for (u32 r = 0; r < num_ranks(); ++r) {
    if (shape_.node_of[r] != shape_.node_of[rank]) continue;
    s.data.push_back(reinterpret_cast<u64>(data(r)));
    s.control.push_back(reinterpret_cast<u64>(control(r)));
  }
  s.rings = reinterpret_cast<u64>(me.rings);
  s.num_rings = shape_.num_rings;
  s.ring_capacity = shape_.ring_capacity;
  s.mask = reinterpret_cast<u64>(arena.take(num_ranks() * sizeof(u32)));
  s.peer_stats = reinterpret_cast<u64>(arena.take(u64{num_ranks()} * kPeerStats * sizeof(u64)));
  s.timeout_ns = shape_.timeout_ns;
  s.control_offset = plan.control_offset;
  s.num_channels = shape_.num_channels;
  me.tables = std::make_unique<RankTables>(s);
}

int World::flush(void* rank) {
  const Rank& me = *static_cast<const Rank*>(rank);
  me.world->network_->flush_device(me.settings.rank);
  return 0;
}

void World::make_engine(u32 rank) {
  Rank& me = *ranks_[rank];
  EngineSettings& e = me.settings;
  e.rank = rank;
  e.num_ranks = num_ranks();
  e.num_workers = shape_.num_workers;
  for (u32 i = 0; i < shape_.num_rings; ++i) e.rings.push_back(me.rings + i * ring_bytes(shape_.ring_capacity));
  e.ring_capacity = shape_.ring_capacity;
  e.local = flat_space(me);
  e.peer_bytes.assign(num_ranks(), 0);
  for (u32 r = 0; r < num_ranks(); ++r)
    if (shape_.node_of[r] != shape_.node_of[rank]) e.peer_bytes[r] = plan.zero_copy_offset + shape_.zero_copy_bytes;
  e.control = me.control;
  e.control_layout = plan.control;
  e.losses_are_absences = shape_.shrink;
  e.max_in_flight = shape_.max_in_flight;
  e.max_in_flight_bytes = shape_.max_in_flight_bytes;
  if (shape_.rows == Rows::kFlushed) e.flush = {flush, &me};
  check_settings(e, me.worker_counters.data(), me.peer_counters.data());
  for (u32 w = 0; w < shape_.num_workers; ++w) {
    const u32 end = rank * shape_.num_workers + w;
    network_->set_local(end, e.local);
    for (u32 r = 0; r < num_ranks(); ++r)
      if (e.peer_bytes[r] != 0) network_->open(end, r);
    me.lanes.push_back(std::make_unique<SimulatedLane>(network_, end));
    me.workers.push_back(
        std::make_unique<Worker>(WorkerShared{me.settings, me.peer_counters.data(), me.membership, me.faults}, w,
                                 *me.lanes[w], me.worker_counters[w]));
  }
}

FaultRecord World::fault(u32 rank) const {
  auto& record = *reinterpret_cast<FaultRecord*>(control(rank) + ControlLayout::kFault);
  // Pairs with the release of whoever filled the record.
  return std::atomic_ref<u32>(record.ready).load(std::memory_order_acquire) != 0 ? record : FaultRecord{};
}

bool World::aborted(u32 rank) const { return read_word(control_word(control(rank), ControlLayout::kAbort)) != 0; }
void World::raise_abort(u32 rank) { publish_word(control(rank), ControlLayout::kAbort, 1); }

void World::raise_timeout(u32 rank) {
  if (!aborted(rank)) ranks_[rank]->faults.raise({.kind = FaultKind::kTimeout, .phase = WaitPhase::kRing});
}

bool World::masked(u32 rank, u32 peer) const {
  return __atomic_load_n(&context(rank).mask[peer], __ATOMIC_ACQUIRE) != 0;
}

void World::leave_out(u32 rank, u32 peer) {
  __atomic_store_n(&context(rank).mask[peer], 1u, __ATOMIC_RELEASE);
  publish_word(control(rank), plan.control.excluded(peer), 1);
  std::atomic_ref<u64>(control_word(control(rank), ControlLayout::kExclusions)).fetch_add(1, std::memory_order_release);
}

u64 World::exclusions(u32 rank) const { return read_word(control_word(control(rank), ControlLayout::kExclusions)); }

bool World::departed(u32 rank, u32 peer) const {
  return read_word(control_word(control(rank), plan.control.departed(peer))) != 0;
}

// As engine.cpp's watch has it.
void World::lose_process(u32 rank, u32 peer) {
  if (shape_.shrink) {
    Departures(control(rank), plan.control).lost(peer);
    membership(rank).dismiss(peer);
  }
  membership(rank).lose(peer, PeerFault::kLost, 0);
}

u64 World::commands(u32 rank) const {
  u64 sum = 0;
  for (u32 i = 0; i < shape_.num_rings; ++i) sum += read_word(*context(rank).rings[i].head);
  return sum;
}

bool World::rings_idle(u32 rank) const {
  for (u32 i = 0; i < shape_.num_rings; ++i)
    if (read_word(*context(rank).rings[i].done) != read_word(*context(rank).rings[i].head)) return false;
  return true;
}

}  // namespace uccl::simulation

// Builds the ranks of a World the way uccl_ep/session/session.py does; kernels/launch lays their memory out.
#include "kernels/world.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "native/check.h"
#include "transport/transport.h"

namespace uccl::testing {
namespace {

// The cell of each rank; empty: a cell is a node.
std::vector<u32> cells_of(const WorldShape& shape) {
  std::vector<u32> cells;
  const bool apart = shape.apart && *std::max_element(shape.node_of.begin(), shape.node_of.end()) != 0;
  for (u32 r = 0; apart && r < shape.num_ranks(); ++r) cells.push_back(r);
  return cells;
}

RegionSizes sizes_of(const WorldShape& shape) {
  RegionSizes s;
  s.num_channels = shape.num_channels;
  s.max_local_experts = shape.max_local_experts;
  s.unit_bytes = shape.unit_bytes;
  s.low_latency.max_tokens = shape.max_tokens;
  s.low_latency.hidden = shape.hidden;
  s.low_latency.max_topk = shape.max_topk;
  s.low_latency.staging_rows = shape.staging_rows;
  s.low_latency.reduces = shape.reduces;
  return s;
}

std::atomic<u64> next_session{0x5eed0000};

u64 acquire(const u8* base, u64 offset) {
  return __atomic_load_n(reinterpret_cast<const u64*>(base + offset), __ATOMIC_ACQUIRE);
}

}  // namespace

World::Rank::Rank(const World& w, u32)
    : data(Poisoned<u8>(w.plan.data_bytes).zeroed()),
      control(Poisoned<u8>(w.plan.control.bytes()).zeroed()),
      rings(Poisoned<u8>(w.shape_.num_rings * ring_bytes(w.shape_.ring_capacity)).zeroed()),
      zero_copy(Poisoned<u8>(w.shape_.zero_copy_bytes).zeroed()),
      mask(Poisoned<u32>(w.num_ranks()).zeroed()),
      peer_stats(Poisoned<u64>(u64{w.num_ranks()} * kPeerStats).zeroed()),
      worker_counters(w.shape_.num_workers, WorkerCounters{}),
      peer_counters(w.num_ranks(), PeerCounters{}) {}

World::World(const WorldShape& shape)
    : group(GroupShape::of(shape.node_of, cells_of(shape))), plan(group, sizes_of(shape)), shape_(shape) {
  all_ = shape_.here;
  for (u32 r = 0; shape_.here.empty() && r < num_ranks(); ++r) all_.push_back(r);
  ranks_.resize(num_ranks());
  for (const u32 r : all_) ranks_[r] = std::make_unique<Rank>(*this, r);
  for (const u32 r : all_) make_tables(r);
  if (num_nodes == 1) return;  // nobody to talk to through a proxy
  const u64 session = next_session.fetch_add(1);
  std::vector<std::string> addresses(num_ranks());
  for (const u32 r : all_) {
    TransportSettings t;
    t.rank = r;
    t.num_ranks = num_ranks();
    t.num_lanes = shape_.num_workers;
    t.session = session;
    t.secret.assign(32, 's');
    t.local = flat_space(*ranks_[r]);
    t.max_in_flight = 2 * shape_.max_in_flight;
    t.in_process.shuffle_seed = shape_.shuffle_seed;
    t.fabric = shape_.fabric;
    for (u32 p = 0; p < num_ranks(); ++p)
      if (p != r && shape_.node_of[p] == shape_.node_of[r]) t.unreached.push_back(p);
    ranks_[r]->transport = make_transport(shape_.family, t);
    addresses[r] = ranks_[r]->transport->local_address();
  }
  if (shape_.exchange) addresses = shape_.exchange(addresses);
  run([&](u32 r) { start_engine(r, addresses); });
}

AddressSpace World::flat_space(const Rank& rank) const {
  AddressSpace space;
  space.add(Span{0, plan.data_bytes, rank.data.data()});
  space.add(Span{plan.control_offset, plan.control.bytes(), rank.control.data()});
  if (shape_.zero_copy_bytes != 0)
    space.add(Span{plan.zero_copy_offset, shape_.zero_copy_bytes, rank.zero_copy.data()});
  return space;
}

void World::make_tables(u32 rank) {
  Rank& me = *ranks_[rank];
  RankTablesSettings s;
  s.rank = rank;
  s.node_of = shape_.node_of;
  s.cell_of = cells_of(shape_);
  for (u32 r = 0; r < num_ranks(); ++r) {
    if (shape_.node_of[r] != shape_.node_of[rank]) continue;
    s.data.push_back(reinterpret_cast<u64>(data(r)));
    s.control.push_back(reinterpret_cast<u64>(control(r)));
    me.memories.push_back(memory(r));
  }
  const u64 bytes = shape_.zero_copy_bytes != 0 ? shape_.zero_copy_bytes : low_bits(48);
  me.memories.resize(2 * me.memories.size(), reinterpret_cast<const u8*>(bytes));
  s.rings = reinterpret_cast<u64>(me.rings.data());
  s.num_rings = shape_.num_rings;
  s.ring_capacity = shape_.ring_capacity;
  s.mask = reinterpret_cast<u64>(me.mask.data());
  s.peer_stats = reinterpret_cast<u64>(me.peer_stats.data());
  s.shrink = shape_.shrink;
  s.timeout_ns = shape_.timeout_ns;
  s.control_offset = plan.control_offset;
  s.num_channels = shape_.num_channels;
  me.tables = std::make_unique<RankTables>(s);
  me.context = me.tables->context();
}

void World::start_engine(u32 rank, const std::vector<std::string>& addresses) {
  Rank& me = *ranks_[rank];
  EngineSettings e;
  e.rank = rank;
  e.num_ranks = num_ranks();
  e.num_workers = shape_.num_workers;
  for (u32 i = 0; i < shape_.num_rings; ++i) e.rings.push_back(me.rings.data() + i * ring_bytes(shape_.ring_capacity));
  e.ring_capacity = shape_.ring_capacity;
  e.local = flat_space(me);
  std::vector<std::string> wanted(num_ranks());
  e.peer_bytes.assign(num_ranks(), 0);
  for (u32 r = 0; r < num_ranks(); ++r) {
    if (shape_.node_of[r] == shape_.node_of[rank]) continue;
    wanted[r] = addresses[r];
    e.peer_bytes[r] = plan.zero_copy_offset + shape_.zero_copy_bytes;
  }
  me.transport->connect(wanted);
  e.control = me.control.data();
  e.control_layout = plan.control;
  e.max_in_flight = shape_.max_in_flight;
  me.engine = std::make_unique<Engine>(std::move(e), std::move(me.transport), me.worker_counters.data(),
                                       me.peer_counters.data());
  me.engine->start();
}

World::~World() {
  for (auto& rank : ranks_)  // all stop before any memory goes away
    if (rank && rank->engine) rank->engine->stop(0);
}

void World::run(const std::vector<u32>& ranks, const std::function<void(u32)>& body) {
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (const u32 rank : ranks)
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (!first) first = std::current_exception();
        for (const u32 r : all_)
          __atomic_store_n(reinterpret_cast<u64*>(control(r) + ControlLayout::kAbort), 1, __ATOMIC_RELEASE);
      }
    });
  for (std::thread& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}

u64 World::word(const u8* base, u64 offset) const { return acquire(base, offset); }
bool World::aborted(u32 rank) const { return acquire(control(rank), ControlLayout::kAbort) != 0; }

Fault World::fault(u32 rank) const {
  const auto& record = *reinterpret_cast<const FaultRecord*>(control(rank) + ControlLayout::kFault);
  if (__atomic_load_n(&record.ready, __ATOMIC_ACQUIRE) == 0) return {};
  return Fault{static_cast<FaultKind>(record.kind),
               static_cast<WaitPhase>(record.phase),
               record.peer,
               DetailWord::of(record.detail),
               record.expected,
               record.seen};
}

std::vector<QueueCounters> World::queue_counters(u32 rank) const { return ranks_[rank]->engine->queue_counters(); }

bool World::rings_idle(u32 rank) const {
  for (u32 i = 0; i < shape_.num_rings; ++i) {
    const auto* h =
        reinterpret_cast<const RingHeader*>(ranks_[rank]->rings.data() + i * ring_bytes(shape_.ring_capacity));
    if (__atomic_load_n(&h->done, __ATOMIC_ACQUIRE) != __atomic_load_n(&h->head, __ATOMIC_RELAXED)) return false;
  }
  return true;
}

void check_no_fault(const World& world, u32 rank, const char* during) {
  const Fault f = world.fault(rank);
  if (f.kind == FaultKind::kNone && !world.aborted(rank)) return;
  throw check::Failure("rank " + std::to_string(rank) + " failed during " + during + ": kind " +
                       std::to_string(static_cast<u32>(f.kind)) + ", phase " +
                       std::to_string(static_cast<u32>(f.phase)) + ", peer " +
                       std::to_string(static_cast<int>(f.peer)) + ", detail " + std::to_string(f.detail.word) +
                       ", expected " + std::to_string(f.expected) + ", seen " + std::to_string(f.seen));
}

}  // namespace uccl::testing

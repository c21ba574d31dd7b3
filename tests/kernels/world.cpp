// Builds the ranks of a World the way uccl_ep/session/session.py and uccl_ep/layout/plan.py do.
#include "kernels/world.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "native/check.h"
#include "transport/transport.h"

namespace uccl::testing {
namespace {

std::atomic<u64> next_session{0x5eed0000};

u64 acquire(const u8* base, u64 offset) {
  return __atomic_load_n(reinterpret_cast<const u64*>(base + offset), __ATOMIC_ACQUIRE);
}

}  // namespace

World::Rank::Rank(const World& w, u32)
    : data(Poisoned<u8>(w.data_bytes_).zeroed()),
      control(Poisoned<u8>(w.control_layout_.bytes()).zeroed()),
      rings(Poisoned<u8>(w.shape_.num_rings * ring_bytes(w.shape_.ring_capacity)).zeroed()),
      zero_copy(Poisoned<u8>(w.shape_.zero_copy_bytes).zeroed()),
      mask(Poisoned<u32>(w.num_ranks()).zeroed()),
      peer_stats(Poisoned<u64>(u64{w.num_ranks()} * kPeerStats).zeroed()),
      worker_counters(w.shape_.num_workers, WorkerCounters{}),
      peer_counters(w.num_ranks(), PeerCounters{}) {}

World::World(const WorldShape& shape) : shape_(shape) {
  all_ = shape_.here;
  for (u32 r = 0; shape_.here.empty() && r < num_ranks(); ++r) all_.push_back(r);
  plan();
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

// Signals, throughput part, low-latency part; then control; then zero copy (memory.py's MemoryPlan).
void World::plan() {
  const u32 ranks = num_ranks();
  num_nodes = *std::max_element(shape_.node_of.begin(), shape_.node_of.end()) + 1;
  u32 smallest = ~0u;
  for (u32 n = 0; n < num_nodes; ++n) {
    const u32 size = static_cast<u32>(std::count(shape_.node_of.begin(), shape_.node_of.end(), n));
    max_readers = std::max(max_readers, size);
    smallest = std::min(smallest, size);
  }
  const bool apart = shape_.apart && num_nodes > 1;
  num_cells = apart ? num_ranks() : num_nodes;
  const u32 fan = static_cast<u32>(ceil_div(max_readers, apart ? 1u : smallest));
  const u32 num_landing_slots = num_nodes > 1 ? num_nodes * fan : 0;
  signals_.num_ranks = ranks;
  signals_.num_channels = shape_.num_channels;
  signals_.max_readers = max_readers;
  control_layout_ = ControlLayout{ranks, shape_.num_channels};
  u64 end = align_up(signals_.bytes(), 4096);
  if (shape_.unit_bytes != 0) {
    throughput.base = end;
    throughput.num_ranks = ranks;
    throughput.num_cells = num_cells;
    throughput.num_landing_slots = num_landing_slots;
    throughput.max_readers = max_readers;
    throughput.max_local_experts = shape_.max_local_experts;
    throughput.unit_bytes = shape_.unit_bytes;
    end = align_up(end + throughput.bytes(), 128);
  }
  if (shape_.hidden != 0) {
    low_latency.max_tokens = shape_.max_tokens;
    low_latency.hidden = shape_.hidden;
    low_latency.max_topk = shape_.max_topk;
    low_latency.num_landing_slots = num_landing_slots;
    low_latency.staging_rows = num_nodes > 1 ? shape_.staging_rows : 0;
    low_latency.num_ranks = ranks;
    low_latency.base = end;
    low_latency.reduces = shape_.reduces;
    end += low_latency.bytes();
  }
  data_bytes_ = align_up(end, 16) + kRegionSlackBytes;
  control_offset_ = align_up(data_bytes_, 4096);
  zero_copy_offset_ = align_up(control_offset_ + control_layout_.bytes(), 4096);
}

AddressSpace World::flat_space(const Rank& rank) const {
  AddressSpace space;
  space.add(Span{0, data_bytes_, rank.data.data()});
  space.add(Span{control_offset_, control_layout_.bytes(), rank.control.data()});
  if (shape_.zero_copy_bytes != 0) space.add(Span{zero_copy_offset_, shape_.zero_copy_bytes, rank.zero_copy.data()});
  return space;
}

void World::make_tables(u32 rank) {
  Rank& me = *ranks_[rank];
  RankTablesSettings s;
  s.rank = rank;
  s.node_of = shape_.node_of;
  for (u32 r = 0; num_cells != num_nodes && r < num_ranks(); ++r) s.cell_of.push_back(r);
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
  s.control_offset = control_offset_;
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
    e.peer_bytes[r] = zero_copy_offset_ + shape_.zero_copy_bytes;
  }
  me.transport->connect(wanted);
  e.control = me.control.data();
  e.control_layout = control_layout_;
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
               record.channel,
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
  throw check::Failure(
      "rank " + std::to_string(rank) + " failed during " + during + ": kind " +
      std::to_string(static_cast<u32>(f.kind)) + ", phase " + std::to_string(static_cast<u32>(f.phase)) + ", peer " +
      std::to_string(static_cast<int>(f.peer)) + ", channel " + std::to_string(static_cast<int>(f.channel)) +
      ", expected " + std::to_string(f.expected) + ", seen " + std::to_string(f.seen));
}

}  // namespace uccl::testing

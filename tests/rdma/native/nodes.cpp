// rdma_nodes: real kernels and engines on several ranks, a process a node, over a network family; every row is compared.
// Prints one JSON line of what was done. The ranks of a node are threads of its process, as tests/kernels has them.
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "kernels/low_latency/calls.h"
#include "kernels/throughput/calls.h"
#include "native/check.h"
#include "rdma/native/options.h"

namespace uccl::testing {
namespace {

constexpr u32 kMostRanks = 16;
constexpr u64 kMostAddressBytes = 1 << 20;
constexpr u64 kMostQueues = 1024;  // of a rank
constexpr auto kExchangeLimit = std::chrono::seconds(120);

// Memory that all processes share: what carries addresses, and what each has to report.
struct Shared {
  std::atomic<u32> arrived[8];  // per exchange
  std::atomic<bool> failed;
  struct {
    u64 rows, writes, bytes, refused, deepest, stale;
    u64 peer_writes[kMostRanks], peer_bytes[kMostRanks];
    u64 num_queues;
    QueueCounters queues[kMostQueues];
    double seconds;
  } reports[kMostRanks];
  u64 address_bytes[kMostRanks];
  char addresses[kMostRanks][kMostAddressBytes];
};

// Waits until every process has come to exchange `number`. The acquire pairs with the release of the others' add, so
// that what they wrote before is seen.
void meet(Shared& shared, u32 number, u32 num_processes) {
  const auto end = std::chrono::steady_clock::now() + kExchangeLimit;
  shared.arrived[number].fetch_add(1, std::memory_order_release);
  while (shared.arrived[number].load(std::memory_order_acquire) < num_processes) {
    if (shared.failed.load(std::memory_order_relaxed)) throw std::runtime_error("another node has failed");
    if (std::chrono::steady_clock::now() > end) throw std::runtime_error("another node did not come");
    sched_yield();
  }
}

std::vector<std::string> exchange(Shared& shared, const std::vector<std::string>& own, u32 num_processes) {
  for (u32 r = 0; r < own.size(); ++r) {
    if (own[r].empty()) continue;
    if (own[r].size() > kMostAddressBytes) throw std::runtime_error("an address is too large for this test");
    std::memcpy(shared.addresses[r], own[r].data(), own[r].size());
    shared.address_bytes[r] = own[r].size();
  }
  meet(shared, 0, num_processes);
  std::vector<std::string> all;
  for (u32 r = 0; r < own.size(); ++r) all.emplace_back(shared.addresses[r], shared.address_bytes[r]);
  return all;
}

WorldShape shape_of(const Options& o) {
  WorldShape shape;
  shape.node_of.clear();
  for (u32 r = 0; r < o.small("nodes") * o.small("ranks"); ++r) shape.node_of.push_back(r / o.small("ranks"));
  shape.num_workers = o.small("lanes");
  shape.num_rings = o.small("lanes");
  shape.ring_capacity = 64;
  shape.max_in_flight = o.small("in_flight");
  shape.timeout_ns = o.number("timeout_s") * 1'000'000'000ull;
  shape.max_tokens = o.small("tokens");
  shape.hidden = o.small("hidden");
  shape.max_topk = 8;
  shape.unit_bytes = 1 << 15;
  shape.family = o.text("family");
  return shape;
}

u64 rounds_of(World& world, const Options& o, const std::string& mode, u32 me) {
  u64 rows = 0;
  const u64 rounds = o.number("rounds");
  if (mode == "low_latency") {
    LowLatencyCase c;
    c.seed = o.number("seed");
    c.num_experts = 2 * world.num_ranks();
    LowLatencyRank rank(world, me, c);
    for (u64 i = 0; i < rounds; ++i) rows += low_latency_round(world, rank, c, i, me);
  } else if (mode == "throughput") {
    ThroughputCase c;
    c.seed = o.number("seed");
    c.num_experts = 2 * world.num_ranks();
    c.max_tokens = o.small("tokens");
    c.max_hidden = 1024;
    ThroughputRank rank(world, me, c);
    for (u64 i = 0; i < rounds; ++i) rows += throughput_round(world, rank, c, i, me);
  } else {
    throw std::invalid_argument("mode=" + mode + "; there are low_latency and throughput");
  }
  return rows;
}

// One node's process: its ranks' rounds, and what they counted.
void play(const Options& o, Shared& shared, u32 node) {
  WorldShape shape = shape_of(o);
  const u32 num_nodes = o.small("nodes");
  const std::vector<std::string> devices = o.list("device");
  for (u32 r = 0; r < shape.num_ranks(); ++r)
    if (shape.node_of[r] == node) shape.here.push_back(r);
  shape.fabric = fabric_of(o, devices[node % devices.size()]);
  shape.exchange = [&](const std::vector<std::string>& own) { return exchange(shared, own, num_nodes); };
  World world(shape);
  const auto begin = std::chrono::steady_clock::now();
  world.run([&](u32 me) { shared.reports[me].rows = rounds_of(world, o, o.text("mode"), me); });
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  meet(shared, 1, num_nodes);  // nobody leaves while another still waits for his rows
  for (const u32 me : shape.here) {
    auto& report = shared.reports[me];
    report.seconds = took.count();
    for (const WorkerCounters& c : world.worker_counters(me)) {
      report.writes += c.writes;
      report.bytes += c.write_bytes;
      report.refused += c.refused;
      report.stale += c.stale;
      report.deepest = std::max(report.deepest, c.deepest_reorder);
    }
    for (u32 p = 0; p < world.num_ranks(); ++p) {
      report.peer_writes[p] = world.peer_counters(me)[p].writes;
      report.peer_bytes[p] = world.peer_counters(me)[p].write_bytes;
    }
    const std::vector<QueueCounters> queues = world.queue_counters(me);
    report.num_queues = queues.size();
    std::copy_n(queues.begin(), std::min<u64>(queues.size(), kMostQueues), report.queues);
    if (world.aborted(me) || report.refused != 0) check::fail(__FILE__, __LINE__, "a rank ended with a fault");
  }
}

int child(const Options& o, Shared& shared, u32 node) {
  alarm(o.small("limit_s"));
  try {
    play(o, shared, node);
    return 0;
  } catch (const std::exception& e) {
    shared.failed.store(true, std::memory_order_relaxed);
    std::fprintf(stderr, "node %u: %s\n", node, e.what());
    return 1;
  }
}

// from, to, lane, number, writes, bytes
std::string queue_text(u32 from, const QueueCounters& c) {
  return std::to_string(from) + ", " + std::to_string(c.peer) + ", " + std::to_string(c.lane) + ", " +
         std::to_string(c.number) + ", " + std::to_string(c.writes) + ", " + std::to_string(c.write_bytes);
}

void print(const Options& o, const Shared& shared) {
  u64 rows = 0, writes = 0, bytes = 0, deepest = 0, stale = 0;
  double seconds = 0;
  std::string peers, queues;
  const u32 num_ranks = o.small("nodes") * o.small("ranks");
  for (u32 r = 0; r < num_ranks; ++r) {
    const auto& report = shared.reports[r];
    rows += report.rows;
    writes += report.writes;
    bytes += report.bytes;
    stale += report.stale;
    deepest = std::max(deepest, report.deepest);
    seconds = std::max(seconds, report.seconds);
    for (u32 p = 0; p < num_ranks; ++p)
      if (report.peer_writes[p] != 0)
        peers += (peers.empty() ? "" : ", ") + std::string("{\"from\": ") + std::to_string(r) +
                 ", \"to\": " + std::to_string(p) + ", \"writes\": " + std::to_string(report.peer_writes[p]) +
                 ", \"bytes\": " + std::to_string(report.peer_bytes[p]) + "}";
    for (u64 i = 0; i < std::min(report.num_queues, kMostQueues); ++i)
      queues += (queues.empty() ? "[" : ", [") + queue_text(r, report.queues[i]) + "]";
  }
  std::printf(
      "{\"mode\": %s, \"ranks\": %u, \"rows\": %llu, \"writes\": %llu, \"bytes\": %llu, \"deepest\": %llu, "
      "\"stale\": %llu, \"seconds\": %.3f, \"peers\": [%s], \"queues\": [%s]}\n",
      quoted(o.text("mode")).c_str(), num_ranks, static_cast<unsigned long long>(rows),
      static_cast<unsigned long long>(writes), static_cast<unsigned long long>(bytes),
      static_cast<unsigned long long>(deepest), static_cast<unsigned long long>(stale), seconds, peers.c_str(),
      queues.c_str());
}

int run(int argc, char** argv) {
  auto defaults = fabric_defaults();
  defaults.merge(std::map<std::string, std::string>{{"nodes", "2"},
                                                    {"ranks", "2"},
                                                    {"mode", "low_latency"},
                                                    {"rounds", "3"},
                                                    {"seed", "1"},
                                                    {"lanes", "1"},
                                                    {"in_flight", "16"},
                                                    {"tokens", "8"},
                                                    {"hidden", "256"},
                                                    {"timeout_s", "30"},
                                                    {"limit_s", "120"}});
  const Options o(argc, argv, std::move(defaults));
  if (o.small("nodes") * o.small("ranks") > kMostRanks || o.list("device").empty())
    throw std::invalid_argument("at most 16 ranks, at least one device");
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no memory to share");
  Shared& shared = *new (memory) Shared;
  std::vector<pid_t> children;
  for (u32 node = 0; node < o.small("nodes"); ++node) {
    const pid_t pid = fork();
    if (pid == 0) std::_Exit(child(o, shared, node));
    children.push_back(pid);
  }
  bool good = true;
  for (std::size_t left = children.size(); left != 0; --left) {
    int status = 0;
    wait(&status);
    if (status != 0) shared.failed.store(true, std::memory_order_relaxed);
    good = good && status == 0;
  }
  if (good) print(o, shared);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace uccl::testing

int main(int argc, char** argv) {
  try {
    return uccl::testing::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rdma_nodes: %s\n", e.what());
    return 2;
  }
}

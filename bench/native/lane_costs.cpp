// What a NIC's lane does for a write, to be counted by callgrind (bench/costs.py): the real verbs and efa lanes of two
// ranks, stepped by one thread, over the fabric in memory that the tests have. As in proxy_costs.cpp each step has a
// function of its own. bench/costs.py collects inside of one step at a time and leaves out what the fabric takes, which
// stands for the driver's library and the device.
//
//   lane_costs FAMILY [batches = 100]
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/proxy/transport/efa/fake_efa.h"

using namespace uccl;

// Never inlined, and each with text of its own, so that the compiler cannot fold two of them into one.
#define STEP(name, parameters, body)                                \
  extern "C" __attribute__((noinline)) u64 step_##name parameters { \
    asm volatile("# step " #name);                                  \
    body                                                            \
  }

namespace {

u64 send(Lane& lane, std::span<const WriteRequest> requests) {
  const u64 taken = lane.post(requests);
  lane.flush();
  return taken;
}

}  // namespace

STEP(post, (Lane & lane, std::span<const WriteRequest> r), return send(lane, r);)
STEP(single_post, (Lane & lane, std::span<const WriteRequest> r), return send(lane, r);)
STEP(arrival, (Lane & lane, std::span<Arrival> out), return lane.poll_arrivals(out);)
STEP(completion, (Lane & lane, std::span<u64> out), return lane.poll_completions(out);)
STEP(idle, (Lane & lane, std::span<Arrival> arrivals, std::span<u64> ids),
     return lane.poll_arrivals(arrivals) + lane.poll_completions(ids);)

namespace {

constexpr u32 kBatch = 32;  // what a worker posts at once
constexpr u64 kBytes = 64 << 10;

void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

struct Rank {
  Rank(const std::string& family, u32 rank) : memory(kBytes) {
    TransportSettings s;
    s.rank = rank;
    s.num_ranks = 2;
    s.secret = std::string(32, 's');
    s.local.add({0, kBytes, memory.data()});
    s.fabric.nics = {{"fake" + std::to_string(rank), 1, -1}};
    VerbsTuning tuning;
    tuning.probe_ns = tuning.farewell_ns = ~0ull >> 1;  // nothing happens by the clock
    const ibv::Functions& functions = fake::Fabric::the().functions();
    if (family == "efa")
      transport = std::make_unique<EfaTransport>(s, functions, efa_test::functions(), tuning);
    else
      transport = std::make_unique<VerbsTransport>(s, functions, tuning);
  }
  std::vector<u8> memory;
  std::unique_ptr<Transport> transport;
};

void count(const std::string& family, u64 batches) {
  fake::Options o;
  o.num_devices = 2;
  o.steps = 64 * kBatch;  // a poll finds everything
  if (family == "efa") o.link_layers.assign(2, ibv::kLinkUnspecified);
  fake::Fabric::begin(o);
  Rank a(family, 0), b(family, 1);
  const std::string addresses[] = {a.transport->local_address(), b.transport->local_address()};
  std::thread other([&] { b.transport->connect({addresses[0], ""}); });  // each waits for the other
  a.transport->connect({"", addresses[1]});
  other.join();
  Lane &from = a.transport->lane(0), &to = b.transport->lane(0);
  const std::vector<WriteRequest> requests(kBatch, WriteRequest{1, 1, a.memory.data(), 0, 4096, 7});
  std::vector<Arrival> arrivals(64);
  std::vector<u64> ids(64);
  for (u64 i = 0; i < batches; ++i) {
    require(step_post(from, requests) == kBatch, "no room");
    require(step_arrival(to, arrivals) == kBatch, "not all have arrived");
    require(step_completion(from, ids) == kBatch, "not all are complete");
  }
  for (u64 i = 0; i < batches; ++i) {
    require(step_single_post(from, std::span(requests).first(1)) == 1, "no room for one");
    require(to.poll_arrivals(arrivals) == 1 && from.poll_completions(ids) == 1, "one was lost");
  }
  for (u64 i = 0; i < 16 * batches; ++i) require(step_idle(to, arrivals, ids) == 0, "something moved");
}

}  // namespace

int main(int argc, char** argv) {
  const u64 batches = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 100;
  try {
    if (argc < 2 || (std::strcmp(argv[1], "verbs") != 0 && std::strcmp(argv[1], "efa") != 0))
      throw std::runtime_error("which family: verbs or efa?");
    count(argv[1], batches);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lane_costs: %s\n", error.what());
    return 1;
  }
  const auto n = static_cast<unsigned long long>(batches);
  std::printf("{\"post\": %llu, \"single_post\": %llu, \"arrival\": %llu, \"completion\": %llu, \"idle\": %llu}\n",
              n * kBatch, n, n * kBatch, n * kBatch, n * 16);
  return 0;
}

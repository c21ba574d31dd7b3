// What a network's lane does for a write, to be counted by callgrind (bench/costs.py): the real loopback, verbs and efa
// lanes of two ranks, stepped by one thread. Those of NICs run over the fabric in memory that the tests have, so
// bench/costs.py collects inside of one step at a time and leaves out what the fabric takes, which stands for the driver's
// library and the device.
//
//   lane_costs FAMILY [batches = 100]
#include "bench/native/steps.h"
#include "bench/native/two_ranks.h"
#include "tests/proxy/transport/efa/fake_efa.h"

using namespace uccl;

namespace {

u64 send(Lane& lane, std::span<const WriteRequest> requests) {
  const u64 taken = lane.post(requests);
  lane.flush();
  return taken;
}

}  // namespace

STEP(post, (Lane & lane, std::span<const WriteRequest> r), send(lane, r))
STEP(single_post, (Lane & lane, std::span<const WriteRequest> r), send(lane, r))
STEP(arrival, (Lane & lane, std::span<Arrival> out), lane.poll_arrivals(out))
STEP(completion, (Lane & lane, std::span<u64> out), lane.poll_completions(out))
STEP(idle, (Lane & lane, std::span<Arrival> arrivals, std::span<u64> ids),
     lane.poll_arrivals(arrivals) + lane.poll_completions(ids))

namespace {

MakeTransport over_fabric(const std::string& family) {
  fake::Options o;
  o.num_devices = 2;
  o.steps = 64 * kBatch;  // a poll finds everything
  const bool efa = family == "efa";
  if (efa) o.link_layers.assign(2, ibv::kLinkUnspecified);
  fake::Fabric::begin(o);
  return [efa](TransportSettings s) -> std::unique_ptr<Transport> {
    s.secret = std::string(32, 's');
    s.fabric.nics = {{"fake" + std::to_string(s.rank), 1, -1}};
    VerbsTuning tuning;
    tuning.probe_ns = tuning.farewell_ns = ~0ull >> 1;  // nothing happens by the clock
    const ibv::Functions& functions = fake::Fabric::the().functions();
    if (efa) return std::make_unique<EfaTransport>(s, functions, efa_test::functions(), tuning);
    return std::make_unique<VerbsTransport>(s, functions, tuning);
  };
}

MakeTransport make_of(const std::string& family) {
  if (family == "loopback") return make_loopback;
  require(family == "verbs" || family == "efa", "which family: loopback, verbs or efa?");
  return over_fabric(family);
}

void count(const std::string& family, u64 batches) {
  const TwoRanks world(make_of(family));
  Lane &from = world.a.transport->lane(0), &to = world.b.transport->lane(0);
  const u64 bytes = family == "loopback" ? 16 : 4096;  // which it moves itself, and a NIC's lane does not
  const std::vector<WriteRequest> requests(kBatch, WriteRequest{1, 1, world.a.data.data(), 0, bytes, 7});
  std::vector<Arrival> arrivals(64);
  std::vector<u64> ids(64);
  for (u64 i = 0; i < batches; ++i) {
    require(cold<step_post>(from, requests) == kBatch, "no room");
    require(cold<step_arrival>(to, arrivals) == kBatch, "not all have arrived");
    require(cold<step_completion>(from, ids) == kBatch, "not all are complete");
  }
  for (u64 i = 0; i < batches; ++i) {
    require(cold<step_single_post>(from, std::span(requests).first(1)) == 1, "no room for one");
    require(to.poll_arrivals(arrivals) == 1 && from.poll_completions(ids) == 1, "one was lost");
  }
  for (u64 i = 0; i < 16 * batches; ++i) require(cold<step_idle>(to, arrivals, ids) == 0, "something moved");
  const auto n = static_cast<unsigned long long>(batches);
  std::printf("{\"post\": %llu, \"single_post\": %llu, \"arrival\": %llu, \"completion\": %llu, \"idle\": %llu}\n",
              n * kBatch, n, n * kBatch, n * kBatch, n * 16);
}

}  // namespace

int main(int argc, char** argv) {
  return run_steps("lane_costs", argc > 2 ? argv[2] : nullptr,
                   [&](u64 batches) { count(argc > 1 ? argv[1] : "", batches); });
}

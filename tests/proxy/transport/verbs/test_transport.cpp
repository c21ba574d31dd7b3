// The contract of transport.h over verbs on the fake fabric: with and without extended verbs and shared receive queues,
// with several queue pairs and NICs; then what only set-up decides: budgets, mismatches, late ranks.
#include <thread>

#include "native/check.h"
#include "proxy/transport/contract.h"
#include "proxy/transport/verbs/family.h"
#include "transport/verbs/transport.h"

using namespace uccl;
using contract::Shape;

namespace {

contract::Family plain() {  // neither ibv_wr_* nor extended polling nor a shared receive queue
  fake::Options o;
  o.extended = false;
  o.max_srq = 0;
  return verbs_test::on_fake(o);
}
contract::Family wide() {  // two NICs, three queue pairs each: six orders to one peer
  fake::Options o;
  o.num_devices = 2;
  o.seed = 5;
  return verbs_test::on_fake(o, [](TransportSettings& s) {
    s.fabric.nics.push_back({"fake1", 1, -1});
    s.fabric.queue_pairs = 3;
  });
}
contract::Family usual() { return verbs_test::on_fake({}); }

}  // namespace

#define OVER_FAKES(name, call)          \
  TEST(transport_verbs_fake_##name) {   \
    const contract::Family f = usual(); \
    call;                               \
  }                                     \
  TEST(transport_verbs_plain_##name) {  \
    const contract::Family f = plain(); \
    call;                               \
  }                                     \
  TEST(transport_verbs_wide_##name) {   \
    const contract::Family f = wide();  \
    call;                               \
  }

OVER_FAKES(random_small_writes_of_two, contract::random_writes(f, Shape{.num_ranks = 2}, 2000, 64, 1))
OVER_FAKES(random_writes_of_three_on_two_lanes,
           contract::random_writes(f, Shape{.num_ranks = 3, .num_lanes = 2}, 300, 3000, 2))
OVER_FAKES(random_writes_of_five, contract::random_writes(f, Shape{.num_ranks = 5, .max_in_flight = 7}, 100, 9000, 3))
OVER_FAKES(random_large_writes, contract::random_writes(f, Shape{.num_ranks = 2}, 60, 300000, 4))
OVER_FAKES(window_of_one, contract::random_writes(f, Shape{.num_ranks = 2, .max_in_flight = 1}, 300, 100, 5))
OVER_FAKES(zero_bytes, contract::zero_bytes(f))
OVER_FAKES(largest_write, contract::largest_write(f))
OVER_FAKES(full_queue, contract::full_queue(f))
OVER_FAKES(lanes_do_not_mix, contract::lanes_do_not_mix(f))
OVER_FAKES(close_peer, contract::close_peer(f))
OVER_FAKES(peer_destroyed, contract::peer_destroyed(f))
OVER_FAKES(last_words, contract::last_words(f))
OVER_FAKES(out_of_bounds, contract::out_of_bounds(f))
OVER_FAKES(refused_requests, contract::refused_requests(f))
OVER_FAKES(connect_times_out, contract::connect_times_out(f))
OVER_FAKES(connect_twice, contract::connect_twice(f))
OVER_FAKES(stranger_rank, contract::stranger_rank(f))

namespace {

std::string refusal(const fake::Options& o, const verbs_test::Change& change, const contract::Shape& shape = {}) {
  auto segment = Segment::create("verbs", shape.region_bytes);
  try {
    verbs_test::on_fake(o, change).make(contract::settings_for(shape, 0, *segment));
  } catch (const std::invalid_argument& e) { return e.what(); } catch (const std::runtime_error& e) {
    return e.what();
  }
  return "";
}

// What rank 0 says when it is shown rank 1's address, after `change` of rank 1.
std::string mismatch(const fake::Options& o, const verbs_test::Change& change) {
  Shape shape;
  shape.connect_timeout_ns = 100'000'000;
  const contract::Family f =
      verbs_test::on_fake(o, [&change](TransportSettings& s) { s.rank == 1 ? change(s) : (void)0; });
  auto a = Segment::create("verbs", shape.region_bytes), b = Segment::create("verbs", shape.region_bytes);
  auto first = f.make(contract::settings_for(shape, 0, *a)), second = f.make(contract::settings_for(shape, 1, *b));
  try {
    first->connect({"", second->local_address()});
  } catch (const std::runtime_error& e) { return e.what(); }
  return "";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST(transport_verbs_transport_refuses_settings_by_name) {
  CHECK_EQ(refusal({}, {}), std::string());
  CHECK(has(refusal({}, [](TransportSettings& s) { s.fabric.nics.clear(); }), "0 NICs"));
  CHECK(has(refusal({}, [](TransportSettings& s) { s.secret = "x"; }), "1 bytes, 32"));
  CHECK(has(refusal({}, [](TransportSettings& s) { s.fabric.queue_pairs = 0; }), "queue_pairs is 0"));
  CHECK(has(refusal({}, [](TransportSettings& s) { s.fabric.retries = 8; }), "retries is 8"));
  CHECK(has(refusal({}, [](TransportSettings& s) { s.fabric.timeout = 0; }), "timeout is 0"));
  CHECK(has(refusal({}, [](TransportSettings& s) { s.fabric.udp_source_port = 5; }), "udp_source_port is 5"));
  CHECK(has(refusal({}, [](TransportSettings& s) { s.fabric.nics[0].device = "gone"; }), "there are: fake0"));
}

TEST(transport_verbs_transport_counts_queue_pairs) {
  fake::Options o;
  o.max_qp = 20;
  Shape shape;
  shape.num_ranks = 6;
  shape.num_lanes = 4;
  CHECK_EQ(refusal(o, {}, shape), std::string());
  shape.num_lanes = 5;
  const std::string e = refusal(o, {}, shape);
  CHECK(has(e, "5 peers") && has(e, "need 25 queue pairs") && has(e, "allows 20"));
}

TEST(transport_verbs_transport_says_that_a_driver_is_too_old) {
  fake::Options o;
  o.vendor = fake::kIntel;
  o.old_intel = true;
  const contract::Family f = verbs_test::on_fake(o);
  const Shape shape{.connect_timeout_ns = 2'000'000'000};  // what who has spoken waits for
  std::vector<std::shared_ptr<Segment>> segments;
  std::vector<std::unique_ptr<Transport>> t;
  for (u32 r = 0; r < 2; ++r) {
    segments.push_back(Segment::create("old", shape.region_bytes));
    t.push_back(f.make(contract::settings_for(shape, r, *segments.back())));
  }
  CHECK(has(contract::connect_all(t)[1], "rdma-core 52"));
}

TEST(transport_verbs_transport_mismatch_says_whose) {
  fake::Options o;
  o.num_devices = 2;
  o.link_layers = {ibv::kLinkEthernet, ibv::kLinkInfiniband};
  CHECK(has(mismatch(o, [](TransportSettings& s) { s.num_lanes = 2; }), "rank 1 says num_lanes 2, this rank 1"));
  CHECK(has(mismatch(o, [](TransportSettings& s) { s.fabric.queue_pairs = 3; }), "rank 1 says queue_pairs 3"));
  CHECK(has(mismatch(o, [](TransportSettings& s) { s.session = 1; }), "rank 1 is of another session"));
  CHECK(has(mismatch(o, [](TransportSettings& s) { s.fabric.nics = {{"fake1", 1, -1}}; }), "rank 1 is on InfiniBand"));
  CHECK(has(mismatch(o, [](TransportSettings& s) { s.fabric.nics = {{"fake0", 1, -1}}; }), "could not connect"));
}

TEST(transport_verbs_transport_the_smaller_mtu_is_used_and_said) {
  fake::Options o;
  o.num_devices = 2;
  o.mtus = {ibv::kMtu4096, ibv::kMtu1024};
  const contract::Family f =
      verbs_test::on_fake(o, [](TransportSettings& s) { s.fabric.nics[0].device = "fake" + std::to_string(s.rank); });
  contract::Group g(f, Shape{});
  std::string all;
  for (const Note& n : g.transports[0]->notes()) all += n.choice + ": " + n.reason + "\n";
  CHECK(has(all, "MTU 1024 to rank 1: its fake1 has 1024, fake0 here 4096"));
  CHECK(has(all, "1 queue pairs a NIC"));
}

// Ranks of a node read each other's memory: nothing is made for them, and their address is refused.
TEST(transport_verbs_transport_unreached_ranks_get_no_queue_pairs) {
  fake::Options o;
  o.max_qp = 40;  // of all ranks together, rank 0 twice; with queue pairs inside the nodes it would be 60
  const contract::Family f = verbs_test::on_fake(o, [](TransportSettings& s) {
    s.fabric.queue_pairs = 2;
    s.unreached = {s.rank ^ 1};  // nodes of two
  });
  Shape shape;
  shape.num_ranks = 4;
  shape.num_lanes = 2;
  std::vector<std::shared_ptr<Segment>> memory;
  std::vector<std::unique_ptr<Transport>> ranks;
  std::vector<std::string> addresses;
  for (u32 r = 0; r < shape.num_ranks; ++r) {
    memory.push_back(Segment::create("verbs", shape.region_bytes));
    ranks.push_back(f.make(contract::settings_for(shape, r, *memory.back())));
    addresses.push_back(ranks.back()->local_address());
    const std::vector<QueueCounters> queues = ranks[r]->queue_counters();
    CHECK_EQ(queues.size(), 8u);  // two peers, two lanes, two queue pairs
    for (const QueueCounters& q : queues) CHECK(q.peer != r && q.peer != (r ^ 1));
  }
  std::string refused;
  try {
    ranks[0]->connect({"", addresses[1], "", ""});
  } catch (const std::runtime_error& e) { refused = e.what(); }
  CHECK(has(refused, "rank 1 has an address, and rank 0 has no queue pair for it"));

  std::vector<std::thread> threads;
  ranks[0] = f.make(contract::settings_for(shape, 0, *memory[0]));  // connect() is called once
  addresses[0] = ranks[0]->local_address();
  for (u32 r = 0; r < shape.num_ranks; ++r) {
    threads.emplace_back([&, r] {
      std::vector<std::string> wanted = addresses;
      wanted[r] = wanted[r ^ 1] = "";
      ranks[r]->connect(wanted);
    });
  }
  for (std::thread& t : threads) t.join();
  const WriteRequest far{3, 7, contract::random_bytes(), contract::Group::kBase, 64, 5};
  CHECK_EQ(ranks[0]->lane(1).post(std::span(&far, 1)), 1u);
  ranks[0]->lane(1).flush();
  CHECK(contract::poll_until([&] {
    Arrival a{};
    u64 wr_id = 0;
    ranks[0]->lane(1).poll_completions(std::span(&wr_id, 1));
    return ranks[3]->lane(1).poll_arrivals(std::span(&a, 1)) == 1 && a.peer == 0 && a.immediate == 7;
  }));
}

// Every request is counted on the queue pair that carried it, and on no other.
TEST(transport_verbs_transport_counts_by_queue_pair) {
  const contract::Family f = verbs_test::on_fake({}, [](TransportSettings& s) { s.fabric.queue_pairs = 2; });
  contract::Group g(f, Shape{.num_ranks = 3});
  for (const QueueCounters& q : g.transports[0]->queue_counters()) CHECK_EQ(q.writes + q.write_bytes, 0u);
  std::vector<WriteRequest> writes(10, WriteRequest{1, 1, contract::random_bytes(), contract::Group::kBase, 100, 1});
  writes.resize(14, WriteRequest{2, 1, contract::random_bytes(), contract::Group::kBase, 7, 1});
  CHECK_EQ(g.lane(0).post(writes), writes.size());
  g.lane(0).flush();
  u64 by_peer[3] = {}, bytes[3] = {}, numbers = 0;
  for (const QueueCounters& q : g.transports[0]->queue_counters()) {
    CHECK_EQ(q.writes, q.peer == 1 ? 5u : 2u);  // the least outstanding is next: in turns
    by_peer[q.peer] += q.writes;
    bytes[q.peer] += q.write_bytes;
    numbers += q.number != 0;
  }
  CHECK_EQ(by_peer[1], 10u);
  CHECK_EQ(bytes[1], 1000u);
  CHECK_EQ(by_peer[2], 4u);
  CHECK_EQ(bytes[2], 28u);
  CHECK_EQ(numbers, 4u);
  std::size_t done = 0;
  CHECK(contract::poll_until([&] {
    u64 t[16];
    Arrival a[16];
    g.lane(1).poll_arrivals(a);
    g.lane(2).poll_arrivals(a);
    return (done += g.lane(0).poll_completions(t)) == writes.size();
  }));
}

TEST(transport_verbs_says_how_long_a_peer_may_be_silent) {
  for (const bool soft : {false, true}) {
    fake::Options o;
    o.vendor = soft ? 0xffffff : 0x02c9;
    contract::Group g(verbs_test::on_fake(o), contract::Shape{});
    std::string all;
    for (const Note& n : g.transports[0]->notes()) all += n.choice + ": " + n.reason + "\n";
    const char* const said =
        soft ? "timeout 20, 6 retries on fake0:1: a peer that does not answer is lost after 30064 ms"
             : "timeout 20, 7 retries on fake0:1: a peer that does not answer is lost after 34359 ms";
    CHECK(all.find(said) != std::string::npos);
    CHECK_EQ(all.find("for ever") != std::string::npos, soft);
    for (const auto& [number, qp] : fake::Fabric::the().qps_) CHECK_EQ(qp->retries, soft ? 6u : 7u);
  }
}

// The contract over verbs on a device of this machine: UCCL_EP_TEST_VERBS_DEVICE names it ("rxe0"; tests/rdma does so in
// a guest with soft-RoCE). Without one the same tests run on the fake fabric. Sizes suit an emulated processor.
#include <chrono>
#include <cstdlib>
#include <thread>

#include "native/check.h"
#include "proxy/transport/contract.h"
#include "proxy/transport/verbs/family.h"
#include "transport/verbs/errors.h"

using namespace uccl;
using contract::Shape;

namespace {

const char* real_device() { return std::getenv("UCCL_EP_TEST_VERBS_DEVICE"); }

contract::Family device(bool extended = true, const verbs_test::Change& change = {}) {
  VerbsTuning tuning;
  tuning.extended = extended;
  const char* name = real_device();
  fake::Options options;
  options.seed = 11;
  options.extended = extended;
  if (!extended) options.max_srq = 0;  // a device without shared receive queues either
  return name != nullptr ? verbs_test::on_device(name, change, tuning) : verbs_test::on_fake(options, change, tuning);
}

}  // namespace

#define OVER_DEVICE(name, call)               \
  TEST(verbs_real_##name) {                   \
    const contract::Family f = device();      \
    call;                                     \
  }                                           \
  TEST(verbs_real_plain_##name) {             \
    const contract::Family f = device(false); \
    call;                                     \
  }

OVER_DEVICE(random_small_writes_of_two, contract::random_writes(f, Shape{.num_ranks = 2}, 1000, 64, 1))
OVER_DEVICE(random_writes_of_three_on_two_lanes,
            contract::random_writes(f, Shape{.num_ranks = 3, .num_lanes = 2}, 100, 3000, 2))
OVER_DEVICE(random_writes_of_five, contract::random_writes(f, Shape{.num_ranks = 5, .max_in_flight = 7}, 40, 9000, 3))
OVER_DEVICE(random_large_writes, contract::random_writes(f, Shape{.num_ranks = 2}, 40, 300000, 4))
OVER_DEVICE(window_of_one, contract::random_writes(f, Shape{.num_ranks = 2, .max_in_flight = 1}, 100, 100, 5))
OVER_DEVICE(zero_bytes, contract::zero_bytes(f))
OVER_DEVICE(largest_write, contract::largest_write(f))
OVER_DEVICE(full_queue, contract::full_queue(f))
OVER_DEVICE(lanes_do_not_mix, contract::lanes_do_not_mix(f))
OVER_DEVICE(close_peer, contract::close_peer(f))
OVER_DEVICE(peer_destroyed, contract::peer_destroyed(f))
OVER_DEVICE(last_words, contract::last_words(f))
OVER_DEVICE(out_of_bounds, contract::out_of_bounds(f))
OVER_DEVICE(refused_requests, contract::refused_requests(f))
OVER_DEVICE(connect_times_out, contract::connect_times_out(f))
OVER_DEVICE(connect_twice, contract::connect_twice(f))
OVER_DEVICE(stranger_rank, contract::stranger_rank(f))

// Several queue pairs: no order between them may be relied upon.
TEST(verbs_real_random_writes_on_four_queue_pairs) {
  const contract::Family f = device(true, [](TransportSettings& s) { s.fabric.queue_pairs = 4; });
  contract::random_writes(f, Shape{.num_ranks = 2}, 400, 5000, 6);
}

// A lane's read of its own memory, on a queue pair that is connected to itself, before arrivals are told.
TEST(verbs_real_random_writes_with_a_read_before_arrivals) {
  const contract::Family f = device(true, [](TransportSettings& s) { s.fabric.flushed_span = 0; });
  contract::random_writes(f, Shape{.num_ranks = 2}, 400, 5000, 7);
}

// A rank that comes later than the retries last: its peer's queue pair is made anew and greets again.
void late_rank(bool extended) {
  const contract::Family f = device(extended, [](TransportSettings& s) {
    s.fabric.timeout = 8;  // 4.096 us * 2^8: retries are used up within milliseconds
    s.fabric.retries = 1;
  });
  Shape shape;
  std::vector<std::shared_ptr<Segment>> segments;
  std::vector<std::unique_ptr<Transport>> t;
  std::vector<std::string> addresses;
  for (u32 r = 0; r < 2; ++r) {
    segments.push_back(Segment::create("late", shape.region_bytes));
    t.push_back(f.make(contract::settings_for(shape, r, *segments.back())));
    addresses.push_back(t.back()->local_address());
  }
  std::string errors[2];
  std::thread early([&] {
    try {
      t[0]->connect(addresses);
    } catch (const std::exception& e) { errors[0] = e.what(); }
  });
  const auto begin = std::chrono::steady_clock::now();
  const bool late = contract::poll_until([begin] {
    if (real_device() == nullptr) return fake::Fabric::the().num_unanswered() != 0;
    return std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(400);  // a device does not tell
  });
  t[1]->connect(addresses);
  early.join();
  CHECK(late);
  CHECK_EQ(errors[0], std::string());
  bool again = false;
  for (const Note& n : t[0]->notes()) again |= n.choice.find("greeted again") != std::string::npos;
  CHECK(again);
  for (u32 from = 0; from < 2; ++from) {  // and both ways still work
    const WriteRequest w{1 - from, 40 + from, contract::random_bytes(), contract::Group::kBase, 64, 1};
    CHECK_EQ(t[from]->lane(0).post(std::span(&w, 1)), 1u);
    t[from]->lane(0).flush();
    Arrival a{};
    CHECK(contract::poll_until([&] {
      u64 wr_id;
      t[from]->lane(0).poll_completions(std::span(&wr_id, 1));
      return t[1 - from]->lane(0).poll_arrivals(std::span(&a, 1)) == 1;
    }));
    CHECK_EQ(a.immediate, 40 + from);
  }
}
TEST(verbs_real_a_late_rank_is_waited_for) { late_rank(true); }
TEST(verbs_real_plain_a_late_rank_is_waited_for) { late_rank(false); }

// A rank that ends without a farewell: who writes nothing to it still learns it, and third ranks work on.
TEST(verbs_real_a_peer_whose_queue_pairs_are_gone_is_lost_by_a_probe) {
  VerbsTuning tuning;
  tuning.probe_ns = 20'000'000;
  tuning.farewell_ns = 0;  // rank 1 ends without a word
  const char* name = real_device();
  fake::Options options;
  options.seed = 12;
  const verbs_test::Change quick = [](TransportSettings& s) {
    s.fabric.timeout = 10;
    s.fabric.retries = 2;
  };
  const contract::Family f =
      name != nullptr ? verbs_test::on_device(name, quick, tuning) : verbs_test::on_fake(options, quick, tuning);
  Shape shape;
  shape.num_ranks = 3;
  contract::Group g(f, shape);
  // An unfinished write makes its end abrupt.
  std::vector<WriteRequest> many(32, WriteRequest{2, 1, contract::random_bytes(), g.kBase, 4096, 1});
  CHECK_EQ(g.lane(1).post(many), many.size());
  g.lane(1).flush();
  g.transports[1].reset();
  PeerEvent e{};
  CHECK(contract::poll_until([&] {
    Arrival a[8];
    u64 wr_ids[8];
    g.lane(0).poll_completions(wr_ids);
    g.lane(0).poll_arrivals(a);
    return g.lane(0).poll_events(std::span(&e, 1)) == 1;
  }));
  CHECK_EQ(e.peer, 1u);
  CHECK(e.fault == PeerFault::kLost);
  const WriteRequest w{2, 9, contract::random_bytes(), contract::Group::kBase, 64, 5};
  CHECK_EQ(g.lane(0).post(std::span(&w, 1)), 1u);
  g.lane(0).flush();
  u64 wr_id = 0;
  CHECK(contract::poll_until([&] {
    Arrival a[8];
    g.lane(2).poll_arrivals(a);
    return g.lane(0).poll_completions(std::span(&wr_id, 1)) == 1;
  }));
  CHECK_EQ(wr_id, 5u);
}

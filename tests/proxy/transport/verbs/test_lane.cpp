// A verbs lane's economy and its cuts: doorbells, signals, inline data, pieces at chunk borders, never a queue overrun.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "native/check.h"
#include "proxy/transport/contract.h"
#include "proxy/transport/verbs/family.h"
#include "transport/verbs/lane.h"

using namespace uccl;

namespace {

constexpr u64 kBase = contract::Group::kBase;

void drain(contract::Group& g, u32 from, u32 to, std::size_t tokens_wanted, std::size_t arrivals_wanted) {
  std::size_t wr_ids = 0, arrivals = 0;
  CHECK(contract::poll_until([&] {
    u64 t[64];
    Arrival a[64];
    wr_ids += g.lane(from).poll_completions(t);
    arrivals += g.lane(to).poll_arrivals(a);
    return wr_ids == tokens_wanted && arrivals == arrivals_wanted;
  }));
}

}  // namespace

TEST(transport_verbs_lane_one_doorbell_a_flush_and_few_signals) {
  for (const bool extended : {true, false}) {
    fake::Options o;
    o.extended = extended;
    contract::Shape shape;
    shape.num_ranks = 3;
    shape.max_in_flight = 200;
    contract::Group g(verbs_test::on_fake(o), shape);
    fake::Fabric& f = fake::Fabric::the();
    std::vector<WriteRequest> requests(100, WriteRequest{1, 1, contract::random_bytes(), kBase, 64, 1});
    requests.resize(200, WriteRequest{2, 1, contract::random_bytes(), kBase, 65, 1});
    const u32 doorbells = f.num_doorbells(), signalled = f.num_signalled(), inlined = f.num_inlined();
    CHECK_EQ(g.lane(0).post(requests), 200u);
    CHECK_EQ(f.num_doorbells(), doorbells);
    g.lane(0).flush();
    CHECK_EQ(f.num_doorbells() - doorbells, 2u);  // one a queue pair
    CHECK_EQ(f.num_signalled() - signalled, 8u);  // 32, 64, 96 and the last, of each
    CHECK_EQ(f.num_inlined() - inlined, 100u);  // 64 bytes are, 65 are not
    g.lane(0).flush();
    CHECK_EQ(f.num_doorbells() - doorbells, 2u);
    drain(g, 0, 1, 200, 100);
  }
}

TEST(transport_verbs_lane_cuts_at_chunks_and_at_the_largest_message) {
  for (u64 seed = 1; seed <= 12; ++seed) {
    fake::Options o;
    o.seed = seed;
    o.steps = 1;  // so that an immediate that came too early would be seen alone
    o.max_message = seed % 2 ? 20000 : 1u << 30;
    VerbsTuning tuning;
    tuning.chunk_bytes = 32 << 10;
    contract::Group g(verbs_test::on_fake(o, {}, tuning), contract::Shape{});
    const u64 bytes = 100000 + contract::mix(seed, 1) % 5000, offset = contract::mix(seed, 2) % 70000;
    const WriteRequest r{1, 9, contract::random_bytes() + seed, kBase + offset, bytes, 5};
    for (int i = 0; i < 5; ++i) CHECK_EQ(g.lane(0).post(std::span(&r, 1)), 1u);
    g.lane(0).flush();
    std::size_t arrivals = 0, wr_ids = 0;
    CHECK(contract::poll_until([&] {
      u64 t[8];
      Arrival a[8];
      wr_ids += g.lane(0).poll_completions(t);
      const std::size_t n = g.lane(1).poll_arrivals(a);
      if (n != 0 && arrivals == 0) CHECK(std::memcmp(g.memory(1) + offset, r.source, bytes) == 0);
      arrivals += n;
      return arrivals == 5 && wr_ids == 5;
    }));
    CHECK_EQ(g.memory(1)[offset + bytes] | g.memory(1)[offset ? offset - 1 : offset + bytes], 0);
  }
}

TEST(transport_verbs_lane_refuses_what_is_not_registered) {
  contract::Group g(verbs_test::on_fake({}), contract::Shape{});
  static u8 stranger[64];
  const WriteRequest r{1, 1, stranger, kBase, 64, 1};
  CHECK_EQ(g.lane(0).post(std::span(&r, 1)), 1u);
  PeerEvent e{};
  CHECK_EQ(g.lane(0).poll_events(std::span(&e, 1)), 1u);
  CHECK_EQ(e.code, EFAULT);
  CHECK(e.fault == PeerFault::kProtocol);
}

// Small completion and receive queues: posts wait for room, receivers that are not ready are tried again.
TEST(transport_verbs_lane_never_overruns_small_queues) {
  fake::Options o;
  o.max_cqe = 40;
  o.max_srq_wr = 16;
  const contract::Family f = verbs_test::on_fake(o);
  contract::random_writes(f, contract::Shape{.num_ranks = 4, .max_in_flight = 64}, 150, 200, 3);
  CHECK_EQ(fake::Fabric::the().num_overruns(), 0u);
  CHECK(fake::Fabric::the().num_not_ready() > 0);
}

// Everything that peers may have open, three times over, while the receiver does not look.
TEST(transport_verbs_lane_receives_last_for_windows_of_lag) {
  contract::Shape shape;
  shape.num_ranks = 3;
  contract::Group g(verbs_test::on_fake({}), shape);
  const std::vector<WriteRequest> window(shape.max_in_flight,
                                         WriteRequest{2, 1, contract::random_bytes(), kBase, 8, 1});
  for (int round = 0; round < 3; ++round) {
    for (const u32 from : {0u, 1u}) {
      CHECK_EQ(g.lane(from).post(window), window.size());
      g.lane(from).flush();
      std::size_t wr_ids = 0;
      CHECK(contract::poll_until([&] {
        u64 t[64];
        return (wr_ids += g.lane(from).poll_completions(t)) == window.size();
      }));
    }
  }
  CHECK_EQ(fake::Fabric::the().num_not_ready(), 0u);
  std::size_t arrivals = 0;
  CHECK(contract::poll_until([&] {
    Arrival a[64];
    return (arrivals += g.lane(2).poll_arrivals(a)) == 6 * window.size();
  }));
  CHECK_EQ(fake::Fabric::the().num_overruns(), 0u);
}

// Broadcom's provider: chains by ibv_post_send, and no inline data.
TEST(transport_verbs_lane_posts_as_its_vendor_allows) {
  fake::Options o;
  o.vendor = fake::kBroadcom;
  const contract::Family f = verbs_test::on_fake(o);
  contract::random_writes(f, contract::Shape{.num_ranks = 3}, 300, 200, 4);
  CHECK_EQ(fake::Fabric::the().num_inlined(), 0u);
  std::string notes;
  auto segment = Segment::create("vendor", 1 << 20);
  for (const Note& n : f.make(contract::settings_for(contract::Shape{}, 0, *segment))->notes())
    notes += n.choice + "\n";
  CHECK(notes.find("ibv_post_send on fake0:1") != std::string::npos);
}

TEST(transport_verbs_lane_polls_as_its_vendor_allows) {
  fake::Options o;
  o.vendor = fake::kIntel;
  contract::random_writes(verbs_test::on_fake(o), contract::Shape{.num_ranks = 3}, 300, 200, 5);
}

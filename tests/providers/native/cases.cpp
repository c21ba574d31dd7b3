// The contract of the transports over a provider's own library, and what the box has to say about it.
#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "native/check.h"
#include "providers/native/box.h"
#include "providers/native/findings.h"
#include "providers/native/under_test.h"
#include "proxy/transport/contract.h"
#include "proxy/transport/verbs/family.h"
#include "transport/efa/transport.h"
#include "transport/libfabric/transport.h"

using namespace uccl;
using contract::Shape;

namespace {

contract::Family over_verbs(const verbs_test::Change& change, const VerbsTuning& tuning = {}) {
  const verbs_test::Change all = [change](TransportSettings& s) {
    s.fabric.nics[0].device = device_under_test(s.rank);
    change(s);
  };
  return verbs_test::on_device("", all, tuning);
}

contract::Family family() {
  if (libfabric_under_test()) {
    return {"libfabric",
            [](TransportSettings s) -> std::unique_ptr<Transport> {
              verbs_test::add_sources(s);
              s.fabric.provider = "efa";
              s.connect_timeout_ns = 100'000'000'000;  // it is slow where threads wait for a CPU
              s.fabric.nics = {{device_under_test(s.rank), 1, -1}};
              return std::make_unique<LibfabricTransport>(s);
            },
            true};
  }
  if (datagrams_under_test()) {
    return {"efa",
            [](TransportSettings s) -> std::unique_ptr<Transport> {
              verbs_test::add_sources(s);
              s.fabric.nics = {{device_under_test(s.rank), 1, -1}};
              return std::make_unique<EfaTransport>(s);
            },
            true};
  }
  return over_verbs([](TransportSettings&) {});
}

void none_found() {
  std::string all;
  for (const std::string& f : box::take_findings())  // libfabric counts what is open; the box only looks at sizes
    if (!libfabric_under_test() || !f.starts_with("overrun")) all += f + "\n";
  CHECK_EQ(all, std::string());
}

}  // namespace

const std::string& provider_under_test() {
  static const std::string name = [] {
    const char* asked = std::getenv("UCCL_EP_TEST_PROVIDER");
    if (asked == nullptr) throw check::Failure("UCCL_EP_TEST_PROVIDER names no driver");
    // Else libfabric's efa provider takes its shared memory between two ranks of a machine.
    setenv("FI_EFA_ENABLE_SHM_TRANSFER", "0", 1);
    box::begin(asked == std::string("libfabric") ? "efa" : asked, 2);
    return std::string(asked);
  }();
  return name;
}

bool libfabric_under_test() { return provider_under_test() == "libfabric"; }
bool datagrams_under_test() { return provider_under_test() == "efa" || libfabric_under_test(); }

std::string device_under_test(unsigned index) { return box::device_name(index % 2); }

const std::string& refusal() {
  static const std::string text = [] {
    const Shape shape{.connect_timeout_ns = 5'000'000'000};
    std::vector<std::shared_ptr<Segment>> segments;
    std::vector<std::unique_ptr<Transport>> two;
    try {
      for (u32 r = 0; r < 2; ++r) {
        segments.push_back(Segment::create("refusal", shape.region_bytes));
        two.push_back(family().make(contract::settings_for(shape, r, *segments.back())));
      }
      for (const std::string& error : contract::connect_all(two))  // what shows only when something arrives
        if (error.find("rdma-core") != std::string::npos) throw std::runtime_error(error);
    } catch (const std::runtime_error& e) {
      if (std::string(e.what()).find("rdma-core") == std::string::npos) throw;
      std::printf("refused: %s\n", e.what());
      return std::string(e.what());
    }
    return std::string();
  }();
  return text;
}

#define OVER_PROVIDER(name, call)        \
  TEST(provider_##name) {                \
    if (!refusal().empty()) return;      \
    const contract::Family f = family(); \
    call;                                \
    none_found();                        \
  }

OVER_PROVIDER(random_small_writes_of_two, contract::random_writes(f, Shape{.num_ranks = 2}, 1000, 64, 1))
OVER_PROVIDER(random_writes_of_three_on_two_lanes,
              contract::random_writes(f, Shape{.num_ranks = 3, .num_lanes = 2}, 100, 3000, 2))
OVER_PROVIDER(random_writes_of_five, contract::random_writes(f, Shape{.num_ranks = 5, .max_in_flight = 7}, 40, 9000, 3))
OVER_PROVIDER(random_large_writes, contract::random_writes(f, Shape{.num_ranks = 2}, 40, 300000, 4))
OVER_PROVIDER(window_of_one, contract::random_writes(f, Shape{.num_ranks = 2, .max_in_flight = 1}, 100, 100, 5))
OVER_PROVIDER(zero_bytes, contract::zero_bytes(f))
OVER_PROVIDER(largest_write, contract::largest_write(f))
OVER_PROVIDER(full_queue, contract::full_queue(f))
OVER_PROVIDER(lanes_do_not_mix, contract::lanes_do_not_mix(f))
OVER_PROVIDER(close_peer, contract::close_peer(f))
OVER_PROVIDER(peer_destroyed, contract::peer_destroyed(f))
OVER_PROVIDER(last_words, contract::last_words(f))
OVER_PROVIDER(out_of_bounds, contract::out_of_bounds(f))
OVER_PROVIDER(refused_requests, contract::refused_requests(f))
OVER_PROVIDER(connect_times_out, contract::connect_times_out(f))
OVER_PROVIDER(connect_twice, contract::connect_twice(f))
OVER_PROVIDER(stranger_rank, contract::stranger_rank(f))

TEST(provider_plain_posting_and_polling) {
  if (datagrams_under_test() || !refusal().empty()) return;
  VerbsTuning tuning;
  tuning.extended = false;
  contract::random_writes(over_verbs([](TransportSettings&) {}, tuning), Shape{.num_ranks = 3}, 200, 3000, 6);
  none_found();
}

TEST(provider_four_queue_pairs) {
  if (datagrams_under_test() || !refusal().empty()) return;
  const contract::Family f = over_verbs([](TransportSettings& s) { s.fabric.queue_pairs = 4; });
  contract::random_writes(f, Shape{.num_ranks = 2}, 400, 5000, 7);
  none_found();
}

// A lane's read of its own memory, on a queue pair that is connected to itself, before arrivals are told.
TEST(provider_read_before_arrivals) {
  if (datagrams_under_test() || !refusal().empty()) return;
  const contract::Family f = over_verbs([](TransportSettings& s) {
    s.fabric.flush_by_read = true;
    s.fabric.flushed_span = 0;
  });
  contract::random_writes(f, Shape{.num_ranks = 2}, 400, 5000, 8);
  none_found();
}

// Memory that only sends is written from as far as it was admitted, and further once more is.
TEST(provider_late_memory_is_written_from) {
  if (!refusal().empty()) return;
  constexpr u64 kFar = 1ull << 40, kLate = 1 << 20;
  const auto late = Segment::create("late", kLate);
  u8* const rows = static_cast<u8*>(late->data());
  const contract::Family f = family();
  contract::Family with_late = f;
  with_late.make = [&](TransportSettings s) {
    s.fabric.late_span = static_cast<int>(s.local.spans().size());
    s.local.add(Span{kFar, kLate, rows});
    return f.make(s);
  };
  contract::Group g(with_late, Shape{});
  u64 id = 0;
  Arrival a[4];
  for (const u64 at : {u64{0}, u64{128} << 10, kLate - 64}) {
    std::memset(rows + at, static_cast<int>(at >> 10) + 1, 64);
    g.transports[0]->admit({at + 64, 0, {}});
    const WriteRequest w{1, 5, rows + at, contract::Group::kBase, 64, 1};
    CHECK_EQ(g.lane(0).post(std::span(&w, 1)), 1u);
    g.lane(0).flush();
    CHECK(contract::poll_until([&] {
      for (u32 r = 0; r < 2; ++r) g.lane(r).poll_arrivals(a);
      return g.lane(0).poll_completions(std::span(&id, 1)) == 1;
    }));
    CHECK_EQ(std::memcmp(g.memory(1), rows + at, 64), 0);
  }
  none_found();
}

// A device acknowledges before software polls, so many windows may have come by then; all of them are told.
TEST(provider_a_receiver_that_lags_loses_nothing) {
  if (!refusal().empty()) return;
  constexpr u32 kWrites = 1500, kIdle = 20000;  // polls until the receiver is what its sender waits for
  contract::Group g(family(), Shape{});
  const WriteRequest w{1, 5, contract::random_bytes(), contract::Group::kBase, 64, 1};
  u32 posted = 0, done = 0, arrived = 0;
  Arrival a[16];
  const auto send = [&] {
    u64 ids[16];
    for (u32 i = 0; i < 16 && posted < kWrites; ++i) posted += static_cast<u32>(g.lane(0).post(std::span(&w, 1)));
    g.lane(0).flush();
    g.lane(0).poll_arrivals(a);
    return static_cast<u32>(g.lane(0).poll_completions(ids));
  };
  for (u32 idle = 0; done != kWrites && idle != kIdle; ++idle) {
    const u32 n = send();
    done += n;
    if (n != 0) idle = 0;
    sched_yield();
  }
  CHECK(contract::poll_until([&] {
    done += send();
    arrived += static_cast<u32>(g.lane(1).poll_arrivals(a));
    return done == kWrites && arrived == kWrites;
  }));
  none_found();
}

// Of memory that no NIC knows, behind a write that may have begun a doorbell's session: the session ends all the same.
TEST(provider_a_refused_write_ends_no_session_half_way) {
  if (!refusal().empty()) return;
  if (libfabric_under_test() && fi::library().release < fi::version(2, 1)) return;  // it takes memory of any kind
  static std::vector<u8> unknown(Shape{}.region_bytes);
  contract::Group g(family(), Shape{});
  const WriteRequest both[] = {{1, 5, contract::random_bytes(), contract::Group::kBase, 64, 1},
                               {1, 6, unknown.data(), contract::Group::kBase, unknown.size(), 2}};
  u64 ids[4];
  Arrival a[4];
  g.lane(0).post(std::span(both).first(1));
  g.lane(0).flush();
  CHECK(contract::poll_until([&] { return g.lane(1).poll_arrivals(a) == 1; }));  // so a completion waits, too
  g.lane(0).post(both);
  g.lane(0).flush();
  PeerEvent e{};
  CHECK(contract::poll_until([&] {
    for (u32 r = 0; r < 2; ++r) g.lane(r).poll_arrivals(a);
    g.lane(0).poll_completions(ids);
    return g.lane(0).poll_events(std::span(&e, 1)) == 1;
  }));
  CHECK_EQ(e.peer, 1u);
  none_found();
}

// From libfabric 2.1 on its efa provider has a form that hands each write to the device as it is, and offers it first.
TEST(provider_libfabric_takes_the_direct_form) {
  if (!libfabric_under_test()) return;
  const auto segment = Segment::create("form", Shape{}.region_bytes);
  const auto transport = family().make(contract::settings_for(Shape{}, 0, *segment));
  const std::string said = transport->notes().at(0).choice;
  CHECK_EQ(said.find("provider efa-direct") != std::string::npos, fi::library().release >= fi::version(2, 1));
}

// Who comes late has been greeted by then, and is greeted again: each rank hears one write of the other's, and no more.
TEST(provider_a_late_rank_is_greeted_once) {
  if (!refusal().empty()) return;
  const contract::Family f = family();
  const Shape shape;
  std::vector<std::shared_ptr<Segment>> segments;
  std::vector<std::unique_ptr<Transport>> two;
  std::vector<std::string> addresses;
  std::string error;
  for (u32 r = 0; r < 2; ++r) {
    segments.push_back(Segment::create("late", shape.region_bytes));
    two.push_back(f.make(contract::settings_for(shape, r, *segments.back())));
    addresses.push_back(two.back()->local_address());
  }
  std::thread early([&] {
    try {
      two[0]->connect(addresses);
    } catch (const std::exception& e) { error = e.what(); }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(400));  // it has lost patience twice
  two[1]->connect(addresses);
  early.join();
  CHECK_EQ(error, std::string());
  std::vector<u32> heard[2];
  u32 done = 0;
  for (u32 r = 0; r < 2; ++r) {
    const WriteRequest w{1 - r, 1000 + r, contract::random_bytes(), contract::Group::kBase, 64, 1};
    CHECK_EQ(two[r]->lane(0).post(std::span(&w, 1)), 1u);
    two[r]->lane(0).flush();
  }
  CHECK(contract::poll_until([&] {
    for (u32 r = 0; r < 2; ++r) {
      Arrival a[4];
      u64 ids[4];
      done += static_cast<u32>(two[r]->lane(0).poll_completions(ids));
      for (std::size_t n = two[r]->lane(0).poll_arrivals(a); n != 0; --n) heard[r].push_back(a[n - 1].immediate);
    }
    return done == 2 && !heard[0].empty() && !heard[1].empty();
  }));
  for (u32 r = 0; r < 2; ++r) CHECK(heard[r] == std::vector<u32>{1001 - r});
  none_found();
}

// Writes end in errors: their queue pair is flushed, by the device or by the library, and others go on.
TEST(provider_a_lost_peer_takes_nobody_along) {
  if (!refusal().empty()) return;
  contract::Group g(family(), Shape{.num_ranks = 3});
  g.transports[1].reset();
  PeerEvent e{};
  u64 wr_id = 0;
  bool done = false;
  const WriteRequest to_both[] = {{1, 1, contract::random_bytes(), g.kBase, 64, 1},
                                  {2, 2, contract::random_bytes(), g.kBase, 64, 2}};
  CHECK_EQ(g.lane(0).post(to_both), 2u);
  g.lane(0).flush();
  CHECK(contract::poll_until([&] {
    Arrival a[4];
    u64 ids[4];
    g.lane(2).poll_completions(ids);
    g.lane(2).poll_arrivals(a);
    g.lane(0).poll_arrivals(a);
    done |= g.lane(0).poll_completions(std::span(&wr_id, 1)) == 1;
    return g.lane(0).poll_events(std::span(&e, 1)) == 1 || (done && e.peer == 1);
  }));
  CHECK_EQ(e.peer, 1u);
  CHECK(contract::poll_until([&] {
    Arrival a[4];
    g.lane(2).poll_arrivals(a);
    done |= g.lane(0).poll_completions(std::span(&wr_id, 1)) == 1;
    return done;
  }));
  CHECK_EQ(wr_id, 2u);
}

// The probe over families that need no other process: it counts, it checks what arrived, and it ends in time.
#include <stdexcept>
#include <thread>

#include "native/check.h"
#include "transport/probe.h"

using namespace uccl;

namespace {

ProbeSettings probe_settings(const std::string& family, u32 rank, u64 session) {
  ProbeSettings s;
  s.family = family;
  s.rank = rank;
  s.session = session;
  s.secret = std::string(32, 'p');
  s.most_bytes = 70000;
  s.timeout_ns = 10'000'000'000;
  return s;
}

struct Pair {
  Pair(const std::string& family, u64 session)
      : a(probe_settings(family, 0, session)), b(probe_settings(family, 1, session)) {
    const std::vector<std::string> addresses = {a.local_address(), b.local_address()};
    std::thread other([&] { b.connect(addresses); });
    a.connect(addresses);
    other.join();
  }
  // What rank 0 returns; errors of either as text.
  template <class F>
  double run(F&& measure) {
    std::thread other([&] {
      try {
        measure(b);
      } catch (const std::runtime_error& e) { error += e.what(); }
    });
    double seconds = 0;
    try {
      seconds = measure(a);
    } catch (const std::runtime_error& e) { error += e.what(); }
    other.join();
    return seconds;
  }
  TransportProbe a, b;
  std::string error;
};

}  // namespace

TEST(transport_probe_measures_every_family_alike) {
  u64 session = 900;
  for (const std::string family : {"loopback", "shared_memory", "tcp"}) {
    Pair p(family, ++session);
    for (const u64 bytes : {0ull, 8ull, 777ull, 70000ull}) {
      for (const u32 count : {1u, 63u, 500u}) {
        CHECK(p.run([&](TransportProbe& probe) { return probe.stream(bytes, count); }) > 0.0);
        CHECK_EQ(p.error, std::string());
      }
      CHECK(p.run([&](TransportProbe& probe) { return probe.round_trips(bytes, 20); }) > 0.0);
      CHECK_EQ(p.error, std::string());
    }
  }
}

TEST(transport_probe_refuses_longer_writes_than_it_was_made_for) {
  Pair p("loopback", 950);
  CHECK_THROWS(std::invalid_argument, p.a.stream(70001, 1));
  CHECK_THROWS(std::invalid_argument, p.a.round_trips(70001, 1));
}

// Rank 1 waits for more than rank 0 sends: both end, and say so.
TEST(transport_probe_ends_at_its_deadline) {
  ProbeSettings short_time = probe_settings("loopback", 0, 951);
  short_time.timeout_ns = 200'000'000;
  TransportProbe a(short_time);
  short_time.rank = 1;
  TransportProbe b(short_time);
  const std::vector<std::string> addresses = {a.local_address(), b.local_address()};
  std::thread other([&] { b.connect(addresses); });
  a.connect(addresses);
  other.join();
  CHECK_THROWS(std::runtime_error, b.stream(8, 1));
  CHECK_THROWS(std::runtime_error, a.round_trips(8, 1));
}

TEST(transport_probe_says_when_the_peer_leaves) {
  ProbeSettings s = probe_settings("loopback", 0, 952);
  TransportProbe a(s);
  s.rank = 1;
  auto b = std::make_unique<TransportProbe>(s);
  const std::vector<std::string> addresses = {a.local_address(), b->local_address()};
  std::thread other([&] { b->connect(addresses); });
  a.connect(addresses);
  other.join();
  b.reset();
  std::string error;
  try {
    a.round_trips(8, 5);
  } catch (const std::runtime_error& e) { error = e.what(); }
  CHECK(error.find("lost") != std::string::npos);
}

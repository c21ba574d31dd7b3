// Greetings over a provider that the test plays: both ways are proven, strangers count for nothing, misfits are named.
#include <cerrno>
#include <thread>

#include "native/check.h"
#include "proxy/transport/libfabric/fake_port.h"
#include "transport/libfabric/handshake.h"

using namespace uccl;

namespace {

TransportSettings settings(u32 rank, u32 num_ranks = 2) {
  TransportSettings s;
  s.rank = rank;
  s.num_ranks = num_ranks;
  s.session = 5;
  s.secret = fake::secret();
  s.connect_timeout_ns = 200'000'000;
  return s;
}

// One thread plays both: each lane is a handshake's of its own, run in turns by giving each a short time.
struct Pair {
  Pair() : group(2, LaneShape{}, false) {
    for (u32 r = 0; r < 2; ++r) {
      lanes[r].push_back(std::move(group.lanes[r]));
      given[r] = settings(r);
      given[r].connect_timeout_ns = 2'000'000;
    }
  }
  // Alternates until both are through or `turns` are over; the last errors.
  void run(int turns = 100) {
    LibfabricHandshake a(given[0], lanes[0], {1}), b(given[1], lanes[1], {0});
    LibfabricHandshake* all[] = {&a, &b};
    for (int i = 0; i < turns; ++i) {
      for (int r = 0; r < 2; ++r) {
        try {
          all[r]->run();
          errors[r].clear();
        } catch (const std::runtime_error& e) { errors[r] = e.what(); }
      }
      if (errors[0].empty() && errors[1].empty()) break;
    }
    strangers = a.counters().strangers;
    retries = a.counters().retries;
  }

  fake::Group group;
  std::vector<std::unique_ptr<LibfabricLane>> lanes[2];
  TransportSettings given[2];
  std::string errors[2];
  u64 strangers = 0, retries = 0;
};

Greeting hello_from(u32 rank) {
  Greeting g{};
  g.magic = kGreetingMagic;
  g.version = kGreetingVersion;
  g.kind = static_cast<u16>(GreetingKind::kHello);
  g.session = 5;
  g.source = rank;
  g.destination = 1 - rank;
  g.num_ranks = 2;
  g.num_lanes = 1;
  g.nonce = {47, 11};
  g.tag = 99;
  return g;
}

}  // namespace

TEST(libfabric_handshake_proves_both_ways) {
  Pair p;
  p.run();
  CHECK_EQ(p.errors[0], std::string());
  CHECK_EQ(p.errors[1], std::string());
  for (u32 r = 0; r < 2; ++r) p.lanes[r][0]->open(1 - r);
  const WriteRequest w = fake::request(1, 3, 64, 8);
  CHECK_EQ(p.lanes[0][0]->post(std::span(&w, 1)), 1u);
  p.lanes[0][0]->flush();
  p.lanes[0][0]->poll_arrivals({});
  Arrival a{};
  CHECK_EQ(p.lanes[1][0]->poll_arrivals(std::span(&a, 1)), 1u);  // so each has the other's tag
  CHECK_EQ(a.peer, 0u);
}

TEST(libfabric_handshake_tries_again_after_a_failed_greeting) {
  Pair p;
  p.group.port(0).impossible = ECONNREFUSED;
  p.run();
  CHECK_EQ(p.errors[0], std::string());
  CHECK_EQ(p.errors[1], std::string());
  CHECK_EQ(p.retries, 1u);
}

// A hello that is heard is not enough: the answer must carry this life's nonce.
TEST(libfabric_handshake_is_not_satisfied_with_an_old_answer) {
  Pair p;
  Greeting hello = hello_from(1), answer = hello_from(1);
  answer.kind = static_cast<u16>(GreetingKind::kAnswer);
  answer.echo = {1};
  seal(hello, fake::secret());
  seal(answer, fake::secret());
  p.group.mailboxes[0][1].hello = hello;
  p.group.mailboxes[0][1].answer = answer;
  LibfabricHandshake a(p.given[0], p.lanes[0], {1});
  std::string error;
  try {
    a.run();
  } catch (const std::runtime_error& e) { error = e.what(); }
  CHECK(error.find("rank(s) 1") != std::string::npos);
  CHECK(error.find("somebody else's greeting") != std::string::npos);
}

TEST(libfabric_handshake_names_what_does_not_fit) {
  const struct {
    std::function<void(Greeting&)> change;
    const char* says;
    bool with_seal;
  } cases[] = {{[](Greeting& g) { g.num_ranks = 3; }, "3 ranks", true},
               {[](Greeting& g) { g.num_lanes = 7; }, "7 lanes", true},
               {[](Greeting& g) { g.source = 5; }, "as rank 5", true},
               {[](Greeting& g) { g.session = 6; }, "secret and session", true},
               {[](Greeting& g) { g.version = 9; }, "another version", true},
               {[](Greeting& g) { g.nonce[0] ^= 1; }, "secret and session", false}};
  for (const auto& x : cases) {
    Pair p;
    Greeting g = hello_from(1);
    if (!x.with_seal) seal(g, fake::secret());
    x.change(g);
    if (x.with_seal) seal(g, fake::secret());
    p.group.mailboxes[0][1].hello = g;
    LibfabricHandshake a(p.given[0], p.lanes[0], {1});
    std::string error;
    try {
      a.run();
    } catch (const std::runtime_error& e) { error = e.what(); }
    CHECK(error.find("rank(s) 1 within 2 ms") != std::string::npos);
    CHECK(error.find(x.says) != std::string::npos);
    const bool stranger = std::string(x.says).find("secret") != std::string::npos || x.says[0] == 'a';
    if (std::string(x.says) != "as rank 5") CHECK_EQ(a.counters().strangers, stranger ? 1u : 0u);
  }
}

TEST(libfabric_handshake_ends_at_its_deadline) {
  fake::Group g(3, LaneShape{}, false);
  std::vector<std::unique_ptr<LibfabricLane>> lanes;
  lanes.push_back(std::move(g.lanes[0]));
  const TransportSettings s = settings(0, 3);
  LibfabricHandshake h(s, lanes, {1, 2});
  const auto begin = std::chrono::steady_clock::now();
  std::string error;
  try {
    h.run();
  } catch (const std::runtime_error& e) { error = e.what(); }
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
  CHECK(error.find("rank 0 could not connect to rank(s) 1 2 within 200 ms") != std::string::npos);
  CHECK(error.find("nothing came from it") != std::string::npos);
}

TEST(libfabric_handshake_alone_is_ready_at_once) {
  std::vector<std::unique_ptr<LibfabricLane>> lanes;
  const TransportSettings s = settings(0);
  LibfabricHandshake(s, lanes, {}).run();
}

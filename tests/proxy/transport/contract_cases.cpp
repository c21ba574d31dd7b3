// The single rules of the contract, one function each: sizes at their limits, full queues, peers that leave, requests
// that must be refused, connections that must not come about.
#include <sched.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "native/check.h"
#include "proxy/transport/contract.h"
#include "wire/limits.h"

namespace contract {

using namespace uccl;

namespace {

// Polls a lane as its worker would, and keeps what came.
struct Seen {
  explicit Seen(Lane& l) : lane(l) {}
  void poll() {
    Arrival a[32];
    u64 t[32];
    PeerEvent e[8];
    const std::size_t na = lane.poll_arrivals(a);
    arrivals.insert(arrivals.end(), a, a + na);
    const std::size_t nt = lane.poll_completions(t);
    wr_ids.insert(wr_ids.end(), t, t + nt);
    const std::size_t ne = lane.poll_events(e);
    events.insert(events.end(), e, e + ne);
  }
  Lane& lane;
  std::vector<Arrival> arrivals;
  std::vector<u64> wr_ids;
  std::vector<PeerEvent> events;
};

WriteRequest write_to(u32 peer, u32 immediate, u64 offset, u64 bytes, u64 wr_id = 0) {
  return WriteRequest{peer, immediate, random_bytes(), Group::kBase + offset, bytes, wr_id};
}

std::size_t post_one(Lane& lane, const WriteRequest& r) {
  const std::size_t n = lane.post(std::span(&r, 1));
  lane.flush();
  return n;
}

// Everything quiet: what would be a second report of the same thing has the time to appear.
void poll_some(std::initializer_list<Seen*> all) {
  for (int i = 0; i < 200; ++i) {
    for (Seen* s : all) s->poll();
  }
}

}  // namespace

void zero_bytes(const Family& family) {
  Group g(family, Shape{});
  Seen a(g.lane(0)), b(g.lane(1));
  // Without bytes the offset means nothing, so an impossible one does not matter.
  const WriteRequest requests[] = {
      {1, 7, nullptr, 0, 0, 100}, {1, 0, nullptr, ~0ull, 0, 101}, {1, ~0u, nullptr, 0, 0, 102}};
  CHECK_EQ(g.lane(0).post(requests), 3u);
  g.lane(0).flush();
  CHECK(poll_until([&] {
    a.poll();
    b.poll();
    return a.wr_ids.size() == 3 && b.arrivals.size() == 3;
  }));
  u64 wr_ids = 0, immediates = 0;
  for (const u64 t : a.wr_ids) wr_ids += t;
  for (const Arrival& x : b.arrivals) {
    immediates += x.immediate;
    CHECK_EQ(x.peer, 0u);
  }
  CHECK_EQ(wr_ids, 303u);
  CHECK_EQ(immediates, 7ull + ~0u);
  CHECK(a.events.empty() && b.events.empty());
}

void largest_write(const Family& family) {
  Shape shape;
  shape.region_bytes = kMaxWriteBytes + 5;
  Group g(family, shape);
  u8* const source = source_bytes();
  for (u64 i = 0; i < kMaxWriteBytes; i += 8) {
    const u64 r = mix(i, 9);
    std::memcpy(&source[i], &r, 8);
  }
  Seen a(g.lane(0)), b(g.lane(1));
  WriteRequest r{1, 3, source, Group::kBase + 5, kMaxWriteBytes, 11};  // ends on the region's last byte
  CHECK_EQ(post_one(g.lane(0), r), 1u);
  CHECK(poll_until([&] {
    a.poll();
    b.poll();
    return !b.arrivals.empty() && !a.wr_ids.empty();
  }));
  CHECK(std::memcmp(g.memory(1) + 5, source, kMaxWriteBytes) == 0);
  for (int i = 0; i < 5; ++i) CHECK_EQ(static_cast<int>(g.memory(1)[i]), 0);
  CHECK(a.events.empty() && b.events.empty());

  r.bytes = kMaxWriteBytes + 16;  // one unit more than the wire can say
  CHECK_EQ(post_one(g.lane(0), r), 1u);
  poll_some({&a, &b});
  CHECK_EQ(g.lane(0).counters().refused, 1u);
  CHECK_EQ(a.events.size(), 1u);
  CHECK_EQ(a.events[0].code, EMSGSIZE);
  CHECK_EQ(b.arrivals.size(), 1u);
}

void full_queue(const Family& family) {
  for (const u32 window : {1u, 3u, 64u}) {
    Shape shape;
    shape.num_ranks = 3;
    shape.max_in_flight = window;
    Group g(family, shape);
    std::vector<WriteRequest> requests;
    for (u32 i = 0; i < window + 5; ++i) requests.push_back(write_to(1, i, i * 16, 16, i));
    CHECK_EQ(g.lane(0).post(requests), window);  // nobody polls: not one more
    g.lane(0).flush();
    CHECK_EQ(g.lane(0).post(std::span(requests).subspan(window)), 0u);
    CHECK_EQ(post_one(g.lane(0), write_to(2, 1, 0, 8, 999)), 1u);  // another peer has its own window
    Seen a(g.lane(0)), b(g.lane(1)), c(g.lane(2));
    std::size_t posted = window;
    CHECK(poll_until([&] {
      posted += g.lane(0).post(std::span(requests).subspan(posted));
      g.lane(0).flush();
      a.poll();
      b.poll();
      c.poll();
      return a.wr_ids.size() == requests.size() + 1 && b.arrivals.size() == requests.size() && c.arrivals.size() == 1;
    }));
    poll_some({&a, &b, &c});
    CHECK_EQ(a.wr_ids.size(), requests.size() + 1);
    CHECK_EQ(b.arrivals.size(), requests.size());
  }
}

void lanes_do_not_mix(const Family& family) {
  Shape shape;
  shape.num_lanes = 3;
  Group g(family, shape);
  for (u32 l = 0; l < 3; ++l) CHECK_EQ(post_one(g.lane(0, l), write_to(1, 10 + l, 64 * l, 32, 20 + l)), 1u);
  for (const u32 l : {2u, 0u, 1u}) {
    Seen a(g.lane(0, l)), b(g.lane(1, l));
    CHECK(poll_until([&] {
      a.poll();
      b.poll();
      return !a.wr_ids.empty() && !b.arrivals.empty();
    }));
    poll_some({&a, &b});
    CHECK_EQ(a.wr_ids.size(), 1u);
    CHECK_EQ(a.wr_ids[0], 20ull + l);
    CHECK_EQ(b.arrivals.size(), 1u);
    CHECK_EQ(b.arrivals[0].immediate, 10 + l);
  }
}

void close_peer(const Family& family) {
  Shape shape;
  shape.num_ranks = 3;
  Group g(family, shape);
  Seen a(g.lane(0)), b(g.lane(1)), c(g.lane(2));
  g.lane(0).close_peer(1);
  g.lane(0).close_peer(1);
  CHECK(poll_until([&] {
    a.poll();
    b.poll();
    return !b.events.empty();
  }));
  poll_some({&a, &b, &c});
  CHECK_EQ(b.events.size(), 1u);
  CHECK_EQ(b.events[0].peer, 0u);
  CHECK(b.events[0].fault == PeerFault::kLost);
  CHECK_EQ(b.events[0].code, 0);
  CHECK(a.events.empty());  // who closed is not told about it
  // Requests between the two are taken and dropped; the third rank notices nothing.
  std::vector<WriteRequest> many(500, write_to(1, 1, 0, 64));
  CHECK_EQ(g.lane(0).post(many), many.size());
  many.assign(500, write_to(0, 1, 0, 64));
  CHECK_EQ(g.lane(1).post(many), many.size());
  CHECK_EQ(post_one(g.lane(0), write_to(2, 5, 0, 64, 1)), 1u);
  CHECK_EQ(post_one(g.lane(1), write_to(2, 6, 64, 64, 2)), 1u);
  CHECK(poll_until([&] {
    a.poll();
    b.poll();
    c.poll();
    return c.arrivals.size() == 2 && a.wr_ids.size() == 1 && b.wr_ids.size() == 1;
  }));
  poll_some({&a, &b, &c});
  CHECK(a.arrivals.empty() && b.arrivals.empty());
  CHECK(a.events.empty() && c.events.empty());
  CHECK_EQ(b.events.size(), 1u);
}

// One rank's process ends in order while others write to it from their own threads.
void peer_destroyed(const Family& family) {
  Shape shape;
  shape.num_ranks = 3;
  Group g(family, shape);
  std::vector<std::string> errors(2);
  std::vector<std::thread> threads;
  for (u32 r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      Seen s(g.lane(r));
      const bool told = poll_until([&] {
        WriteRequest w{2, 1, source_bytes(), Group::kBase, 1ull << (r * 10), 5};
        post_one(g.lane(r), w);
        s.poll();
        return !s.events.empty();
      });
      for (int i = 0; i < 200; ++i) s.poll();
      if (!told)
        errors[r] = "was not told";
      else if (s.events.size() != 1 || s.events[0].peer != 2)
        errors[r] = "was told " + std::to_string(s.events.size());
      else if (s.events[0].fault != PeerFault::kLost)
        errors[r] = "was told something else";
    });
  }
  Seen c(g.lane(2));
  const bool heard = poll_until([&] {
    c.poll();
    return c.arrivals.size() > 20;
  });
  g.transports[2].reset();
  for (auto& t : threads) t.join();
  CHECK(heard);
  for (const std::string& e : errors) CHECK_EQ(e, std::string());
}

// What was complete before a rank left is delivered before its end is reported.
void last_words(const Family& family) {
  Group g(family, Shape{});
  Seen a(g.lane(0)), b(g.lane(1));
  for (u32 i = 0; i < 40; ++i) CHECK_EQ(post_one(g.lane(0), write_to(1, i, i * 8, 8, i)), 1u);
  CHECK(poll_until([&] {
    a.poll();
    b.poll();
    return a.wr_ids.size() == 40;
  }));
  g.transports[0].reset();
  CHECK(poll_until([&] {
    b.poll();
    return !b.events.empty();
  }));
  CHECK_EQ(b.arrivals.size(), 40u);
  CHECK_EQ(b.events.size(), 1u);
  CHECK_EQ(b.events[0].code, 0);
}

void out_of_bounds(const Family& family) {
  const u64 size = Shape{}.region_bytes;
  const struct {
    u64 offset, bytes;
  } bad[] = {
      {Group::kBase + size - 15, 16}, {Group::kBase - 1, 16}, {~0ull - 7, 16}, {0, 16}, {Group::kBase + size, 1}};
  for (const auto& x : bad) {
    Group g(family, Shape{});
    Seen a(g.lane(0)), b(g.lane(1));
    WriteRequest r{1, 3, random_bytes(), x.offset, x.bytes, 1};
    CHECK_EQ(post_one(g.lane(0), r), 1u);
    Seen& judge = family.sender_checks_bounds ? a : b;
    Seen& other = family.sender_checks_bounds ? b : a;
    CHECK(poll_until([&] {
      a.poll();
      b.poll();
      return !a.events.empty() && !b.events.empty();
    }));
    CHECK(judge.events[0].fault == PeerFault::kProtocol);
    CHECK_EQ(judge.events[0].code, ERANGE);
    CHECK_EQ(judge.lane.counters().refused, 1u);
    CHECK(other.events[0].fault == PeerFault::kLost);
    CHECK_EQ(other.events[0].code, EPROTO);
    CHECK(b.arrivals.empty() && a.wr_ids.empty());
    for (u64 i = 0; i < size; ++i) CHECK_EQ(static_cast<int>(g.memory(1)[i]), 0);
  }
}

void refused_requests(const Family& family) {
  Shape shape;
  shape.num_ranks = 3;
  std::vector<std::shared_ptr<Segment>> segments;
  std::vector<std::unique_ptr<Transport>> transports;
  for (u32 r = 0; r < 2; ++r) {  // rank 2 is reached by something else
    segments.push_back(Segment::create("contract", shape.region_bytes));
    transports.push_back(family.make(settings_for(shape, r, *segments.back())));
  }
  transports.emplace_back();
  for (const std::string& error : connect_all(transports)) CHECK_EQ(error, std::string());
  Lane& lane = transports[0]->lane(0);
  Seen a(lane), b(transports[1]->lane(0));
  const WriteRequest bad[] = {write_to(2, 1, 0, 8), write_to(3, 1, 0, 8), write_to(~0u, 1, 0, 8), write_to(0, 1, 0, 8)};
  CHECK_EQ(lane.post(bad), 4u);
  CHECK_EQ(lane.counters().refused, 4u);
  CHECK_EQ(post_one(lane, write_to(1, 1, 0, 8, 4)), 1u);
  CHECK(poll_until([&] {
    a.poll();
    b.poll();
    return a.wr_ids.size() == 1 && b.arrivals.size() == 1;
  }));
  CHECK_EQ(a.events.size(), 2u);  // about rank 2 and about itself: neither is connected
  CHECK_EQ(a.events[0].peer, 2u);
  CHECK_EQ(a.events[0].code, ENOTCONN);
  CHECK_EQ(a.events[1].peer, 0u);
  CHECK_EQ(lane.counters().refused, 4u);
}

void connect_times_out(const Family& family) {
  Shape shape;
  shape.num_ranks = 3;
  shape.connect_timeout_ns = 1500ull * 1000 * 1000;  // ranks 0 and 1 need each other within it, on busy cores too
  std::vector<std::shared_ptr<Segment>> segments;
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<std::string> addresses;
  for (u32 r = 0; r < 3; ++r) {
    segments.push_back(Segment::create("contract", shape.region_bytes));
    transports.push_back(family.make(settings_for(shape, r, *segments.back())));
    addresses.push_back(transports.back()->local_address());
  }
  std::string errors[2];  // rank 2 never calls connect
  std::vector<std::thread> threads;
  for (u32 r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      try {
        transports[r]->connect(addresses);
      } catch (const std::runtime_error& e) { errors[r] = e.what(); }
    });
  }
  const auto begin = std::chrono::steady_clock::now();
  for (auto& t : threads) t.join();
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
  for (u32 r = 0; r < 2; ++r) {
    CHECK(errors[r].find(" 2") != std::string::npos);
    CHECK(errors[r].find("rank(s) " + std::to_string(1 - r)) == std::string::npos);
  }
}

void connect_twice(const Family& family) {
  Group g(family, Shape{});
  CHECK_THROWS(std::runtime_error, g.transports[0]->connect({"", ""}));
  auto segment = Segment::create("contract", 4096);
  Shape shape;
  shape.region_bytes = 4096;
  TransportSettings s = settings_for(shape, 0, *segment);
  s.session = 78;
  CHECK_THROWS(std::runtime_error, family.make(s)->connect({"", "", ""}));
}

void stranger_rank(const Family& family) {
  Shape shape;
  shape.connect_timeout_ns = 300ull * 1000 * 1000;
  for (const bool other_secret : {true, false}) {
    std::vector<std::shared_ptr<Segment>> segments;
    std::vector<std::unique_ptr<Transport>> transports;
    for (u32 r = 0; r < 2; ++r) {
      segments.push_back(Segment::create("contract", shape.region_bytes));
      TransportSettings s = settings_for(shape, r, *segments.back());
      if (r == 1 && other_secret) s.secret.back() = 't';  // differs in the last byte only
      if (r == 1 && !other_secret) s.session ^= 1ull << 63;
      transports.push_back(family.make(s));
    }
    for (const std::string& e : connect_all(transports)) CHECK(!e.empty());
  }
}

}  // namespace contract

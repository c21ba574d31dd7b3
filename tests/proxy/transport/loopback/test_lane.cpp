// What only loopback does: it shuffles, and it never reads the memory of a sender that has left.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "native/check.h"
#include "proxy/transport/contract.h"
#include "transport/loopback/lane.h"

namespace {

using namespace uccl;

contract::Family seeded(u64 seed) {
  return {"loopback", [seed](TransportSettings s) {
            s.in_process.shuffle_seed = seed;
            return make_transport("loopback", s);
          }};
}

struct Orders {
  std::vector<u32> arrivals;
  std::vector<u64> wr_ids;
  u32 polls = 0;  // until the last arrival
};
Orders deliver(u64 seed, u32 count) {
  contract::Shape shape;
  shape.max_in_flight = count;
  contract::Group g(seeded(seed), shape);
  std::vector<WriteRequest> requests;
  for (u32 i = 0; i < count; ++i) requests.push_back({1, i, contract::random_bytes(), g.kBase, 8, i});
  CHECK_EQ(g.lane(0).post(requests), count);
  Orders o;
  Arrival a[64];
  u64 t[64];
  while (o.arrivals.size() < count && o.polls < 1000) {
    ++o.polls;
    const std::size_t n = g.lane(1).poll_arrivals(a);
    for (std::size_t i = 0; i < n; ++i) o.arrivals.push_back(a[i].immediate);
  }
  for (int i = 0; i < 1000 && o.wr_ids.size() < count; ++i) {
    const std::size_t n = g.lane(0).poll_completions(t);
    o.wr_ids.insert(o.wr_ids.end(), t, t + n);
  }
  return o;
}

template <class T>
bool is_sorted_whole(std::vector<T> v, u32 count, bool* sorted) {
  *sorted = std::is_sorted(v.begin(), v.end());
  std::sort(v.begin(), v.end());
  if (v.size() != count) return false;
  for (u32 i = 0; i < count; ++i) {
    if (v[i] != i) return false;
  }
  return true;
}

}  // namespace

TEST(transport_loopback_keeps_order_without_a_seed) {
  bool sorted = false;
  const Orders o = deliver(0, 50);
  CHECK(is_sorted_whole(o.arrivals, 50, &sorted) && sorted);
  CHECK(is_sorted_whole(o.wr_ids, 50, &sorted) && sorted);
  CHECK_EQ(o.polls, 1u);
}

TEST(transport_loopback_shuffles_arrivals_and_completions) {
  std::vector<std::vector<u32>> seen;
  for (u64 seed = 1; seed <= 20; ++seed) {
    const Orders o = deliver(seed, 50);
    bool sorted = true;
    CHECK(is_sorted_whole(o.arrivals, 50, &sorted));
    CHECK(!sorted);
    CHECK(is_sorted_whole(o.wr_ids, 50, &sorted));
    CHECK(!sorted);
    CHECK(o.polls > 1);   // some were held back
    CHECK(o.polls <= 18);  // but none for ever: 16 polls and the one that takes it
    CHECK(std::find(seen.begin(), seen.end(), o.arrivals) == seen.end());
    seen.push_back(o.arrivals);
  }
  CHECK(deliver(3, 50).arrivals == seen[2]);  // the same seed gives the same order
}

// Every order of three writes appears: the tests above it meet what a network may do.
TEST(transport_loopback_shuffle_reaches_every_order) {
  std::vector<std::vector<u32>> seen;
  for (u64 seed = 1; seed <= 300 && seen.size() < 6; ++seed) {
    const Orders o = deliver(seed, 3);
    if (std::find(seen.begin(), seen.end(), o.arrivals) == seen.end()) seen.push_back(o.arrivals);
  }
  CHECK_EQ(seen.size(), 6u);
}

// The receiver polls while the sender leaves and at once unmaps what it was sending: the address sanitizer or a
// segmentation fault would tell.
TEST(transport_loopback_sender_may_free_its_memory_after_it_left) {
  for (int round = 0; round < 12; ++round) {
    contract::Shape shape;
    shape.max_in_flight = 200;
    contract::Group g(seeded(round % 2 ? 5 : 0), shape);
    auto source = std::make_unique<std::vector<u8>>(1 << 20, 3);
    std::vector<WriteRequest> requests(200, WriteRequest{1, 1, source->data(), g.kBase, source->size(), 0});
    CHECK_EQ(g.lane(0).post(requests), 200u);
    bool lost = false;
    std::atomic<bool> polling{false};
    std::thread receiver([&] {
      Arrival a[200];  // one poll may take a while, and the sender leaves in the middle of it
      PeerEvent e;
      lost = contract::poll_until([&] {
        polling = true;
        g.lane(1).poll_arrivals(a);
        return g.lane(1).poll_events(std::span(&e, 1)) != 0;
      });
    });
    while (!polling) sched_yield();
    const auto leave = std::chrono::steady_clock::now() + std::chrono::microseconds(round * 500);
    while (std::chrono::steady_clock::now() < leave) sched_yield();
    g.transports[0].reset();
    std::fill(source->begin(), source->end(), 4);
    source.reset();
    receiver.join();
    CHECK(lost);
    for (int i = 0; i < 1 << 20; ++i) CHECK(g.memory(1)[i] != 4);  // not one byte of after it left
  }
}

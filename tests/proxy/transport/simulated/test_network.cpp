// Delivery: bytes before their immediate, any order for srd and the order of posting for rc, one run for one seed, time
// that only the driver moves, and perturbations that can be left out one by one.
#include <algorithm>

#include "native/check.h"
#include "proxy/transport/simulated/links.h"
#include "transport/simulated/network.h"

namespace {

using namespace uccl;
using testing::Links;

struct Seen {
  std::vector<u32> order;
  u64 trace = 0;
  NetworkTotals totals;
};

// 40 writes 0 -> 1, each to a place of its own; checks their bytes as their immediates come.
Seen forty_writes(const NetworkSettings& settings) {
  Links l(settings);
  std::vector<u8> source(40 * 64);
  for (u32 i = 0; i < source.size(); ++i) source[i] = static_cast<u8>(i / 64 + 1);
  for (u32 i = 0; i < 40; ++i) CHECK(l.post(0, 1, i, i * 64, 64, &source[i * 64]));
  CHECK_EQ(l.network->undelivered(0), 40u);
  Seen seen;
  u64 completed = 0;
  while (l.network->next_ns() != SimulatedNetwork::kNever) {
    l.network->run_until(l.network->next_ns());
    for (const Arrival& a : l.arrivals(1)) {
      seen.order.push_back(a.immediate);
      for (u32 i = 0; i < 64; ++i) CHECK_EQ(static_cast<u32>(l.memory[1][a.immediate * 64 + i]), a.immediate + 1);
    }
    completed += l.wr_ids(0).size();
    CHECK(completed <= seen.order.size());  // nothing is complete that has not arrived
  }
  CHECK_EQ(completed, 40u);
  CHECK_EQ(l.network->undelivered(0), 0u);
  seen.totals = l.network->totals();
  seen.trace = seen.totals.trace;
  return seen;
}

}  // namespace

TEST(simulated_network_srd_delivers_in_any_order) {
  u32 orders = 0;
  for (u64 seed = 1; seed <= 20; ++seed) {
    const Seen s = forty_writes(testing::ranks(2, seed, "srd"));
    CHECK_EQ(s.order.size(), 40u);
    orders += !std::is_sorted(s.order.begin(), s.order.end());
    CHECK(s.totals.overtakes > 0 && s.totals.deepest > 0);
    CHECK(s.order == forty_writes(testing::ranks(2, seed, "srd")).order);
    CHECK_EQ(s.trace, forty_writes(testing::ranks(2, seed, "srd")).trace);
    CHECK(s.trace != forty_writes(testing::ranks(2, seed + 1, "srd")).trace);
  }
  CHECK_EQ(orders, 20u);
}

TEST(simulated_network_rc_delivers_as_posted) {
  for (u64 seed = 1; seed <= 20; ++seed) {
    const Seen s = forty_writes(testing::ranks(2, seed, "rc"));
    CHECK(std::is_sorted(s.order.begin(), s.order.end()));
    CHECK_EQ(s.totals.overtakes, 0u);
  }
}

TEST(simulated_network_a_calm_bucket_leaves_the_others_as_they_were) {
  NetworkSettings settings = testing::ranks(2, 5, "srd");
  const auto perturbed = [&] {
    Links l(settings);
    l.network->record();
    for (u32 i = 0; i < 40; ++i) l.post(0, 1, i);
    return l.network->recorded();
  };
  const auto all = perturbed();
  CHECK(all.size() > 20);
  settings.calm.set(all[3].bucket);
  const auto fewer = perturbed();
  u64 gone = 0, at = 0;
  for (const auto& r : all) {
    if (r.bucket == all[3].bucket) {
      ++gone;
      continue;
    }
    CHECK(at < fewer.size() && fewer[at].position == r.position && fewer[at].what.delay_ns == r.what.delay_ns);
    ++at;
  }
  CHECK(gone >= 1 && at == fewer.size());
  settings.calm.set();
  CHECK(perturbed().empty());
}

TEST(simulated_network_bandwidth_takes_its_time) {
  NetworkSettings settings = testing::ranks(2, 1, "rc");
  settings.profile.jitter_ns = settings.profile.straggler_ns = 0;
  settings.profile.bytes_per_us = 1;
  Links l(settings);
  const std::vector<u8> source(1000);
  const u64 begin = l.network->now_ns();
  l.post(0, 1, 1, 0, 1000, source.data());
  l.post(0, 1, 2, 0, 1000, source.data());
  while (l.arrivals(1).empty()) l.network->run_until(l.network->next_ns());
  CHECK(l.network->now_ns() - begin >= 1'000'000);
  while (l.arrivals(1).empty()) l.network->run_until(l.network->next_ns());
  CHECK(l.network->now_ns() - begin >= 2'000'000);
}

TEST(simulated_network_news_are_told_once) {
  Links l(testing::ranks(3, 1, "rc"));
  l.post(0, 2, 9);
  CHECK(l.network->news().empty() && !l.network->has_news(2));
  l.network->run_until(l.network->now_ns() + 1'000'000'000);
  CHECK(l.network->has_news(2) && l.network->has_news(0) && !l.network->has_news(1));
  CHECK_EQ(l.network->news().size(), 2u);
  l.network->clear_news();
  CHECK_EQ(l.arrivals(2).size(), 1u);
  CHECK(!l.network->has_news(2) && l.network->news().empty());
}

// A GPU's memory: the immediate comes first, the bytes by themselves later or at a flush, to that rank only.
TEST(simulated_network_bytes_in_a_gpu_are_seen_late_or_at_a_flush) {
  const std::vector<u8> source(64, 7);
  const auto received = [&](u64 seed, bool flushes) {
    NetworkSettings s = testing::ranks(3, seed, "rc");
    s.lag_ns = 50'000;
    Links l(s);
    l.network->set_device(1024);
    CHECK(l.post(0, 1, 1, 0, 64, source.data()) && l.post(0, 1, 2, 1024, 64, source.data()));
    CHECK(l.post(0, 2, 3, 0, 64, source.data()));
    for (std::size_t n = 0; n != 2; n += l.arrivals(1).size()) l.network->run_until(l.network->next_ns());
    CHECK_EQ(l.memory[1][1024], 7);  // the host's
    const u8 elsewhere = l.memory[2][0];
    if (flushes) l.network->flush_device(1);
    const bool seen = l.memory[1][0] == 7;
    CHECK_EQ(l.memory[2][0], elsewhere);
    l.network->run_until(l.network->now_ns() + 100'000);
    CHECK(l.memory[1][0] == 7 && l.memory[1][63] == 7 && l.memory[2][0] == 7);
    return seen;
  };
  u32 late = 0;
  for (u64 seed = 1; seed <= 20; ++seed) {
    late += !received(seed, false);
    CHECK(received(seed, true));
  }
  CHECK(late > 5);
}

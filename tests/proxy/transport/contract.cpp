// Groups for the contract, and its main check: many random writes in all directions, one thread per rank and lane.
#include "proxy/transport/contract.h"

#include <sched.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>

#include "native/check.h"

namespace contract {

using namespace uccl;

u64 mix(u64 a, u64 b) {
  u64 z = a * 0x9e3779b97f4a7c15ull + b + 0x7f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

const u8* random_bytes() {
  static const std::vector<u8> bytes = [] {
    std::vector<u8> v(kRandomBytes);
    for (u64 i = 0; i < v.size(); i += 8) {
      const u64 r = mix(i, 42);
      std::memcpy(&v[i], &r, 8);
    }
    return v;
  }();
  return bytes.data();
}

u8* source_bytes() {
  static std::vector<u8> bytes(kSourceBytes);
  return bytes.data();
}

namespace {

// What a thread does after a poll that brought nothing: it leaves the core to its peers, then for longer.
void rest(u32 idle_polls) {
  constexpr u32 kYields = 32;
  if (idle_polls < kYields)
    sched_yield();
  else
    std::this_thread::sleep_for(std::chrono::microseconds(30));
}

}  // namespace

bool poll_until(const std::function<bool()>& done) {
  const auto worked = [] {  // a busy machine gives each thread little of it
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec);
  };
  const auto most = worked() + std::chrono::seconds(10);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(50);
  for (u32 idle_polls = 0; !done(); rest(idle_polls++)) {
    if (worked() > most || std::chrono::steady_clock::now() > deadline) return false;
  }
  return true;
}

TransportSettings settings_for(const Shape& shape, u32 rank, const Segment& segment) {
  TransportSettings s;
  s.rank = rank;
  s.num_ranks = shape.num_ranks;
  s.num_lanes = shape.num_lanes;
  s.session = 77;
  s.secret = std::string(32, 's');
  s.local.add(Span{Group::kBase, shape.region_bytes, static_cast<u8*>(segment.data())});
  s.shared_memory.span_fds = {segment.fd()};
  s.max_in_flight = shape.max_in_flight;
  s.connect_timeout_ns = shape.connect_timeout_ns;
  return s;
}

std::vector<std::string> connect_all(std::vector<std::unique_ptr<Transport>>& transports) {
  std::vector<std::string> addresses, errors(transports.size());
  for (auto& t : transports) addresses.push_back(t ? t->local_address() : "");
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < transports.size(); ++r) {
    if (!transports[r]) continue;
    threads.emplace_back([&, r] {
      try {
        transports[r]->connect(addresses);
      } catch (const std::exception& e) { errors[r] = e.what(); }
    });
  }
  for (auto& t : threads) t.join();
  return errors;
}

Group::Group(const Family& family, const Shape& s) : shape(s) {
  for (u32 r = 0; r < shape.num_ranks; ++r) {
    segments.push_back(Segment::create("contract", shape.region_bytes));
    transports.push_back(family.make(settings_for(shape, r, *segments.back())));
    CHECK_EQ(std::string(transports.back()->family()), family.name);
  }
  for (const std::string& error : connect_all(transports)) CHECK_EQ(error, std::string());
}

namespace {

// One write of the random exchange.
struct Plan {
  u64 seed, max_bytes, slot_bytes;
  u32 writes_per_pair;
  u32 num_lanes;

  u64 key(u32 source, u32 target, u32 lane, u32 i) const { return mix(mix(mix(seed, source << 16 | target), lane), i); }
  u64 bytes(u64 k) const { return k % 8 == 0 ? 0 : (k >> 3) % (max_bytes + 1); }
  const u8* source(u64 k) const { return random_bytes() + (k >> 24) % (kRandomBytes - max_bytes); }
  // Each write has a place of its own at the receiver, at any alignment within it.
  u64 offset(u32 source, u32 lane, u32 i, u64 k) const {
    return ((static_cast<u64>(source) * num_lanes + lane) * writes_per_pair + i) * slot_bytes + k % 16;
  }
};

// One rank's lane, run by one thread.
class Worker {
 public:
  Worker(Group& group, const Plan& plan, u32 rank, u32 lane)
      : group_(group),
        plan_(plan),
        rank_(rank),
        lane_idx_(lane),
        lane_(group.lane(rank, lane)),
        random_(mix(rank, lane)) {
    const std::size_t n = static_cast<std::size_t>(group.shape.num_ranks) * plan.writes_per_pair;
    completed_.resize(n);
    arrived_.resize(n);
    expected_ = n - plan.writes_per_pair;
    for (u32 i = 0; i < plan.writes_per_pair; ++i) {
      for (u32 p = 0; p < group.shape.num_ranks; ++p) {
        if (p != rank) order_.push_back({p, i});
      }
    }
    for (std::size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[next() % i]);
  }

  // After its own work it goes on polling until all are done: peers need its acknowledgements.
  void run(std::atomic<u32>& running) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(40);
    bool counted = false;
    while (error.empty() && running.load() != 0) {
      step();
      if (!counted && num_completed_ == expected_ && num_arrived_ == expected_) {
        counted = true;
        --running;
      }
      if (std::chrono::steady_clock::now() > deadline) {
        error = "deadline: " + std::to_string(num_completed_) + " completed, " + std::to_string(num_arrived_) +
                " arrived of " + std::to_string(expected_);
      }
    }
    if (!counted && error.empty()) error = "left early";
    if (!error.empty()) running = 0;
  }
  const LaneCounters& counters() const { return lane_.counters(); }
  u64 expected() const { return expected_; }

  std::string error;
  u64 sent_bytes = 0;

 private:
  u64 next() { return random_ = mix(random_, 1); }

  void step() {
    WriteRequest batch[16];
    std::size_t n = 0;
    const std::size_t want = next() % 17;
    while (n < want && posted_ + n < order_.size()) {
      const auto [peer, i] = order_[posted_ + n];
      const u64 k = plan_.key(rank_, peer, lane_idx_, i);
      batch[n++] = WriteRequest{peer,
                                static_cast<u32>(i ^ 0x80000000u),
                                plan_.source(k),
                                Group::kBase + plan_.offset(rank_, lane_idx_, i, k),
                                plan_.bytes(k),
                                static_cast<u64>(peer) * plan_.writes_per_pair + i};
    }
    const std::size_t taken = lane_.post(std::span(batch, n));
    if (taken > n) error = "post took more than there was";
    for (std::size_t j = 0; j < taken && j < n; ++j) sent_bytes += batch[j].bytes;
    posted_ += taken;
    if (next() % 3 != 0 || posted_ == order_.size()) lane_.flush();

    u64 wr_ids[24];
    const std::size_t num_tokens = lane_.poll_completions(std::span(wr_ids, next() % 25));
    for (std::size_t j = 0; j < num_tokens; ++j) {
      if (wr_ids[j] >= completed_.size() || completed_[wr_ids[j]]++) error = "a wr_id twice, or an unknown one";
    }
    num_completed_ += num_tokens;
    Arrival arrivals[24];
    const std::size_t num_arrivals = lane_.poll_arrivals(std::span(arrivals, next() % 25));
    for (std::size_t j = 0; j < num_arrivals; ++j) check_arrival(arrivals[j]);
    num_arrived_ += num_arrivals;
    PeerEvent event;
    if (lane_.poll_events(std::span(&event, 1)) != 0) {
      // A peer that is done with everything may leave; until then nothing may happen to it.
      error = "event about rank " + std::to_string(event.peer) + ", code " + std::to_string(event.code);
    }
    if (taken + num_tokens + num_arrivals != 0)
      idle_polls_ = 0;
    else
      rest(idle_polls_++);
  }

  void check_arrival(const Arrival& a) {
    const u32 i = a.immediate ^ 0x80000000u;
    if (a.peer >= group_.shape.num_ranks || a.peer == rank_ || i >= plan_.writes_per_pair) {
      error = "an arrival that nobody sent";
      return;
    }
    if (arrived_[static_cast<std::size_t>(a.peer) * plan_.writes_per_pair + i]++) error = "an immediate twice";
    const u64 k = plan_.key(a.peer, rank_, lane_idx_, i);
    const u8* at = group_.memory(rank_) + plan_.offset(a.peer, lane_idx_, i, k);
    if (std::memcmp(at, plan_.source(k), plan_.bytes(k)) != 0) error = "an immediate before its data";
    if (at[plan_.bytes(k)] != 0) error = "a byte behind the write was touched";
  }

  Group& group_;
  const Plan& plan_;
  u32 rank_, lane_idx_;
  Lane& lane_;
  u64 random_;
  std::vector<std::pair<u32, u32>> order_;
  std::vector<u8> completed_, arrived_;
  std::size_t posted_ = 0, num_completed_ = 0, num_arrived_ = 0, expected_ = 0;
  u32 idle_polls_ = 0;
};

}  // namespace

void random_writes(const Family& family, const Shape& given, u32 writes_per_pair, u64 max_bytes, u64 seed) {
  const Plan plan{seed, max_bytes, align_up(max_bytes + 17, 16), writes_per_pair, given.num_lanes};
  Shape shape = given;
  shape.region_bytes = static_cast<u64>(shape.num_ranks) * shape.num_lanes * writes_per_pair * plan.slot_bytes;
  random_bytes();
  Group group(family, shape);
  std::vector<std::unique_ptr<Worker>> workers;
  for (u32 r = 0; r < shape.num_ranks; ++r) {
    for (u32 l = 0; l < shape.num_lanes; ++l) workers.push_back(std::make_unique<Worker>(group, plan, r, l));
  }
  std::atomic<u32> running{static_cast<u32>(workers.size())};
  std::vector<std::thread> threads;
  for (auto& w : workers) threads.emplace_back([&running, &w] { w->run(running); });
  for (auto& t : threads) t.join();
  u64 out = 0, in = 0;
  for (auto& w : workers) {
    CHECK_EQ(w->error, std::string());
    CHECK_EQ(w->counters().writes, w->expected());
    CHECK_EQ(w->counters().arrivals, w->expected());
    CHECK_EQ(w->counters().write_bytes, w->sent_bytes);
    CHECK_EQ(w->counters().refused, 0u);
    out += w->counters().write_bytes;
    in += w->counters().arrival_bytes;
  }
  // Elsewhere the receiver never learns the sizes, or (libfabric) only from some providers.
  if (family.name != "shared_memory" && family.name != "libfabric") CHECK_EQ(in, out);
}

}  // namespace contract

// Ranks of one process that play rounds while an adversary overwrites words that one of them reads of others: headers,
// counts, marks, tails, heads, flags. Every rank must end with exact rows or a fault; nothing may be read or written
// outside (AddressSanitizer says so), and nobody may wait beyond its deadline (the test's own limit says so).
//
// Input: [0] ranks and mode, [1] form, [2..3] the rounds' seed; then words of 12 bytes: [0] which call, [1] whose, [2..3]
// which place, [4..5] which word of it, [6] how, [7] how often, [8..11] a value.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>

#include "fuzz/memory_words.h"
#include "fuzz/targets.h"
#include "native/check.h"

namespace uccl::fuzz {

using namespace uccl::testing;

namespace {

constexpr u64 kTimeoutNs = 250'000'000;
constexpr u64 kRounds = 2;
constexpr i64 kNear = 1024;  // more than a ring has chunks
constexpr std::size_t kHead = 4, kEach = 12, kMostChanges = 8;

// How ranks ended, by what their fault says; reported when the program ends.
struct Ends {
  std::atomic<u64> exact{0}, bad_arrivals{0}, mismatches{0}, timeouts{0}, others{0}, unprovable{0}, worlds{0};
  ~Ends() {
    if (worlds == 0 || std::getenv("UCCL_EP_FUZZ_TARGET") == nullptr) return;
    std::fprintf(
        stderr,
        "memory: %llu worlds; ranks: %llu exact, %llu bad arrivals, %llu mismatches, %llu timeouts, %llu other "
        "faults, %llu wrong by a word that cannot be told from the truth\n",
        static_cast<unsigned long long>(worlds), static_cast<unsigned long long>(exact),
        static_cast<unsigned long long>(bad_arrivals), static_cast<unsigned long long>(mismatches),
        static_cast<unsigned long long>(timeouts), static_cast<unsigned long long>(others),
        static_cast<unsigned long long>(unprovable));
  }
};
Ends ends;

struct Change {
  u32 call, victim, place, word, how, times, value;
};

// The calls of a round, in order; low latency has no counts, and sums in their stead.
enum Call : u32 { kCounting = 0, kDispatching, kCombining, kNumCalls };

class Adversary {
 public:
  Adversary(Input input, u32 num_ranks) {
    for (std::size_t at = kHead; at + kEach <= input.size() && changes_.size() < kMostChanges; at += kEach) {
      const u8* b = &input[at];
      u32 value;
      std::memcpy(&value, b + 8, 4);
      changes_.push_back({b[0] % static_cast<u32>(kRounds * kNumCalls), b[1] % num_ranks, b[2] | b[3] * 256u,
                          b[4] | b[5] * 256u, b[6] % 7u, b[7] % 8u, value});
    }
  }
  ~Adversary() {
    for (std::thread& t : busy_) t.join();
  }
  // The victim's turn: everybody else has had the time to write what it will read.
  template <class Find>
  void strike(u64 round, Call call, u32 me, Find find) {
    const u32 now = static_cast<u32>(round) * kNumCalls + call;
    bool late = false;
    for (const Change& c : changes_) {
      if (c.call != now || c.victim != me) continue;
      if (!late) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      late = true;
      const Places places = find();
      if (places.empty()) continue;
      const Words& p = places[c.place % places.size()];
      if (p.proof == Proof::kNone) unprovable = true;
      u32* const word = reinterpret_cast<u32*>(p.at) + c.word % (p.bytes / 4);
      change(word, c, p);
      if (c.times == 0) continue;
      const std::lock_guard<std::mutex> lock(mutex_);
      busy_.emplace_back([word, c, p, this] {
        for (u32 i = 0; i < c.times; ++i) {
          std::this_thread::sleep_for(std::chrono::microseconds(40));
          change(word, c, p);
        }
      });
    }
  }
  std::atomic<bool> unprovable{false};
  std::atomic<u64> words{0};

 private:
  // ThreadSanitizer does not look here: whoever corrupts memory keeps to no order.
  [[gnu::no_sanitize("thread")]] void change(u32* word, const Change& c, const Words& of) {
    ++words;
    const u32 seen = __atomic_load_n(word, __ATOMIC_RELAXED);
    const u32 made[] = {seen ^ 1u << c.value % 32, seen + 1, seen - 1, c.value, 0, ~0u, seen ^ c.value};
    __atomic_store_n(word, made[c.how], __ATOMIC_RELEASE);
    const bool low = reinterpret_cast<u8*>(word) == of.at;  // half of a counter
    const i64 moved = static_cast<i64>(made[c.how]) - static_cast<i64>(seen);
    if (of.proof == Proof::kCounter && low && moved > -kNear && moved < kNear) unprovable = true;
  }
  std::vector<Change> changes_;
  std::mutex mutex_;
  std::vector<std::thread> busy_;
};

enum class End { kExact, kFault, kWrong };

// Whether a check holds.
template <class Body>
bool holds(Body body) {
  try {
    body();
    return true;
  } catch (const check::Failure& f) {
    if (std::getenv("UCCL_EP_FUZZ_VERBOSE") != nullptr) std::fprintf(stderr, "%s\n", f.what());
    return false;
  }
}

struct Player {
  World& world;
  Adversary& adversary;
  u32 me;
  bool failed() const { return world.aborted(me) || world.fault(me).kind != FaultKind::kNone; }

  End throughput(ThroughputRank& rank, const ThroughputCase& c, u64 round) {
    const RoundPlan plan = round_plan(world, c, round);
    const RankInput in = throughput_input(world, c, round, me);
    Routing routing(world, c, in, plan.channels);
    rank.layout(in, &routing);
    adversary.strike(round, kCounting, me, [&] { return count_words(world, c, round, me); });
    rank.counts(plan, in, &routing);
    if (failed()) return End::kFault;
    if (!holds([&] { check_counts(world, c, round, me, routing); })) return End::kWrong;
    Dispatched got(routing.recv_total[0], plan.hidden, plan.scale_words, plan.topk);
    adversary.strike(round, kDispatching, me, [&] { return stream_words(world, c, round, me, Direction::kDispatch); });
    rank.dispatch(plan, in, plan.topk, routing, &got, false);
    if (failed()) return End::kFault;
    if (!holds([&] { check_dispatched(world, c, round, me, got, plan.topk); })) return End::kWrong;
    const CombineInput mine(world, c, round, me);
    const bool in_arena = c.arenas && mine.x.size() * sizeof(u16) <= world.shape().zero_copy_bytes;
    const u16* x = mine.x.data();
    if (in_arena && !mine.x.empty()) std::memcpy(world.zero_copy(me), x, mine.x.size() * sizeof(u16));
    if (in_arena) x = reinterpret_cast<const u16*>(world.zero_copy(me));
    Poisoned<u16> out(u64{in.num_tokens} * plan.combine_hidden);
    Poisoned<float> weights(u64{in.num_tokens} * plan.combine_topk);
    adversary.strike(round, kCombining, me, [&] { return stream_words(world, c, round, me, Direction::kCombine); });
    rank.combine(plan, in.num_tokens, routing,
                 {x, mine.weights.data(), got.src_idx.data(), plan.biases > 0 ? mine.bias[0].data() : nullptr,
                  plan.biases > 1 ? mine.bias[1].data() : nullptr, out.data(), weights.data(), in_arena});
    if (failed()) return End::kFault;
    return holds([&] { check_combined(world, c, round, me, out, weights); }) ? End::kExact : End::kWrong;
  }

  End low_latency(LowLatencyRank& rank, const LowLatencyCase& c, u64 round) {
    const TokenInput in = low_latency_input(world, c, round, me);
    Received got(world, c);
    rank.dispatch_send(in);
    adversary.strike(round, kDispatching, me, [&] { return received_words(world, round + 1, me); });
    rank.dispatch_recv(&got);
    if (failed()) return End::kFault;
    if (!holds([&] { check_received(world, c, round, me, got); })) return End::kWrong;
    Poisoned<u16> x(c.zero_copy ? 0 : u64{c.num_experts} * world.shape().max_tokens * rank.row_stride());
    fill_combine_rows(world, c, round, got, me, c.zero_copy ? rank.zero_copy_rows() : x.data(), rank.row_stride());
    rank.combine_send(got, x.data(), &in);
    adversary.strike(round, kCounting, me, [&] { return combined_words(world, c, round + 1, me); });
    if (c.reduces) rank.combine_reduce();
    adversary.strike(round, kCombining, me, [&] { return combined_words(world, c, round + 1, me); });
    Poisoned<u16> out(u64{world.shape().max_tokens} * world.shape().hidden);
    rank.combine_recv(in, &out);
    if (failed()) return End::kFault;
    return holds([&] { check_combined(world, c, round, me, out); }) ? End::kExact : End::kWrong;
  }
};

void count_end(End end, const Fault& fault) {
  if (end == End::kExact)
    ++ends.exact;
  else if (end == End::kWrong)
    ++ends.unprovable;
  else
    ++(fault.kind == FaultKind::kBadArrival ? ends.bad_arrivals
       : fault.kind == FaultKind::kMismatch ? ends.mismatches
       : fault.kind == FaultKind::kTimeout  ? ends.timeouts
                                            : ends.others);
}

WorldShape shape_of(u8 which, u8 form) {
  static const std::vector<u32> kNodes[] = {{0, 0}, {0, 1}, {0, 0, 1}, {0, 0, 1, 1}};
  WorldShape shape;
  shape.node_of = kNodes[which % 4];
  shape.timeout_ns = kTimeoutNs;
  shape.num_channels = 2;
  shape.shuffle_seed = form & 64 ? 5 : 0;
  if (which & 4) {
    shape.max_tokens = 6;
    shape.max_topk = 3;
    shape.hidden = 512;
    shape.reduces = (form & 3) == 3;
    shape.zero_copy_bytes = 3 * align_up(2ull * shape.num_ranks() * shape.max_tokens * (512 + 8) * 2, 128);
  } else {
    shape.unit_bytes = 1024;
    shape.zero_copy_bytes = form & 1 ? 64 << 10 : 0;
  }
  return shape;
}

}  // namespace

void memory(Input input) {
  if (input.size() < kHead) return;
  const WorldShape shape = shape_of(input[0], input[1]);
  World world(shape);
  Adversary adversary(input, world.num_ranks());
  LowLatencyCase low;
  low.seed = input[2] | input[3] * 256u;
  low.num_experts = 2 * world.num_ranks();
  low.back = (input[1] & 3) == 2 ? RowFormat::kLogfmt : RowFormat::kBf16;
  low.reduces = shape.reduces;
  low.zero_copy = low.in_place = (input[1] & 3) == 1 || shape.reduces;
  ThroughputCase high;
  high.seed = low.seed;
  high.num_experts = low.num_experts;
  high.max_channels = shape.num_channels;
  high.arenas = input[1] & 1;
  std::vector<End> last(world.num_ranks(), End::kExact);
  world.run([&](u32 me) {
    Player player{world, adversary, me};
    std::optional<LowLatencyRank> low_rank;
    std::optional<ThroughputRank> high_rank;
    if (input[0] & 4)
      low_rank.emplace(world, me, low);
    else
      high_rank.emplace(world, me, high);
    for (u64 round = 0; round < kRounds && last[me] == End::kExact; ++round)
      last[me] = low_rank ? player.low_latency(*low_rank, low, round) : player.throughput(*high_rank, high, round);
  });
  ++ends.worlds;
  count_work(adversary.words);
  for (u32 r = 0; r < world.num_ranks(); ++r) {
    if (last[r] == End::kWrong && !adversary.unprovable)
      check::fail(__FILE__, __LINE__, "rank " + std::to_string(r) + " has wrong rows or counts, and no error");
    count_end(last[r], world.fault(r));
  }
}

std::vector<std::vector<u8>> memory_seeds() {
  std::vector<std::vector<u8>> all;
  for (u8 which = 0; which < 8; ++which)
    for (u8 form = 0; form < 4; ++form)
      for (u8 call = 0; call < kNumCalls; ++call)
        all.push_back({which, form, static_cast<u8>(7 * which + form), 1, static_cast<u8>(kNumCalls + call), 1, form, 0,
                       call, 0, 0, static_cast<u8>(which % 2 * 3), 3, 0, 0, 0});
  return all;
}

}  // namespace uccl::fuzz

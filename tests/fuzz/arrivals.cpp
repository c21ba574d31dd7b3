// Immediates and headers of any content into a worker: no word but those of the tables is written, arrivals are all
// counted, and what is refused raises the fault.
//
// Input: steps of 9 bytes. [0] even: an immediate (u32) from a peer (u8); odd: bytes of a header land, at a place.
#include <cstring>

#include "fuzz/allowance.h"
#include "fuzz/targets.h"
#include "native/check.h"
#include "proxy/engine/rank_memory.h"

namespace uccl::fuzz {

using namespace uccl::testing;

namespace {

// Hands in what is queued; FakeLane's room for 65,536 entries would cost more than the rest of a run.
class QueueLane final : public Lane {
 public:
  std::size_t post(std::span<const WriteRequest> requests) override { return requests.size(); }
  void flush() override {}
  std::size_t poll_completions(std::span<u64>) override { return 0; }
  std::size_t poll_arrivals(std::span<Arrival> out) override {
    std::size_t n = 0;
    for (; n < out.size() && next < queued.size(); ++n) out[n] = queued[next++];
    return n;
  }
  std::size_t poll_events(std::span<PeerEvent>) override { return 0; }
  void close_peer(u32) override {}
  const LaneCounters& counters() const override { return counters_; }

  std::vector<Arrival> queued;
  std::size_t next = 0;

 private:
  LaneCounters counters_;
};

}  // namespace

void arrivals(Input input) {
  RankMemory rank(Shape{.num_ranks = 3, .num_channels = 3, .capacity = 2});
  QueueLane lane;
  Faults faults(rank.control(), rank.peer_counters.data(), 3);
  Membership membership(3, rank.peer_counters.data(), faults);
  Worker worker(WorkerShared{rank.settings, rank.peer_counters.data(), membership, faults}, 0, lane,
                rank.worker_counters[0]);
  const u64 headers = rank.layout.expect(static_cast<Phase>(0), 0, 0);
  const u64 headers_end = rank.layout.tail(Direction::kDispatch, 0, 0);
  u64 delivered = 0;
  lane.queued.reserve(512);
  const Allowance nothing(0);
  for (std::size_t at = 0; at + 9 <= input.size() && delivered < 512; at += 9) {
    if (input[at] & 1) {
      const u64 place = headers + (input[at + 1] * 8ull) % (headers_end - headers);
      u64 word = 0;
      std::memcpy(&word, &input[at + 2], 7);
      rank.set_word(place, input[at] & 2 ? ~word : word);
    } else {
      u32 immediate;
      std::memcpy(&immediate, &input[at + 1], 4);
      lane.queued.push_back({immediate, input[at + 5] % 5u});
      ++delivered;
      if (input[at] & 4) worker.turn();
    }
  }
  for (u64 i = 0; i < 2 + delivered / 64; ++i) worker.turn();
  nothing.check("a peer's immediates");
  count_work(delivered);
  const WorkerCounters& c = rank.worker_counters[0];
  CHECK_EQ(c.arrivals, delivered);
  CHECK(c.refused + c.stale <= delivered);
  CHECK_EQ(rank.aborted() != 0, c.refused != 0);
  CHECK(rank.data[0] == 0 && std::memcmp(rank.data.data(), rank.data.data() + 1, rank.data.size() - 1) == 0);
  for (u64 w = rank.layout.progress(static_cast<Phase>(kNumPhases), 0); w < rank.layout.bytes(); w += 8)
    CHECK_EQ(rank.word(w), 0ull);
  CHECK_EQ(rank.word(ControlLayout::kLocalBarrier), 0ull);
  for (u32 phase = 0; phase < kNumPhases; ++phase) {  // a rank hears nothing from itself, and no epoch from nowhere
    CHECK_EQ(rank.flag(static_cast<Phase>(phase), 0), 0ull);
    for (u32 source = 0; source < 3; ++source) CHECK(rank.flag(static_cast<Phase>(phase), source) <= delivered);
  }
  for (u32 source = 0; source < 3; ++source)
    for (u32 channel = 0; channel < 3; ++channel) CHECK(rank.tail(Direction::kDispatch, source, channel) <= delivered);
}

std::vector<std::vector<u8>> arrivals_seeds() {
  std::vector<std::vector<u8>> all;
  std::vector<u8> s;
  const auto immediate = [&](ImmediateKind kind, u32 source, u32 key) {
    const u32 word = pack(Immediate{kind, source, key});
    s.push_back(4);
    const auto* p = reinterpret_cast<const u8*>(&word);
    s.insert(s.end(), p, p + 4);
    s.insert(s.end(), {static_cast<u8>(source), 0, 0, 0});
  };
  const auto done = [&] {
    all.push_back(s);
    s.clear();
  };
  for (u32 n = 0; n < 3; ++n) immediate(ImmediateKind::kSequence, 1, stream_key(Direction::kDispatch, 2, 2 - n));
  immediate(ImmediateKind::kCredit, 2, stream_key(Direction::kCombine, 0, 511));
  immediate(ImmediateKind::kBarrier, 1, 1);
  done();
  const ControlLayout layout{3, 3};
  const u64 place = (layout.expect(Phase::kDispatch, 1, 1) - layout.expect(static_cast<Phase>(0), 0, 0)) / 8;
  immediate(ImmediateKind::kArrive, 1, epoch_key(Phase::kDispatch, 1));
  for (u8 word = 0; word < 2; ++word) s.insert(s.end(), {1, static_cast<u8>(place + word), 1, 0, 0, 0, 0, 0, 0});
  immediate(ImmediateKind::kExpect, 1, epoch_key(Phase::kDispatch, 1));
  done();
  immediate(ImmediateKind::kExpect, 1, epoch_key(Phase::kCounts, 4));
  immediate(ImmediateKind::kArrive, 2, epoch_key(Phase::kSpare, 5));
  done();
  immediate(ImmediateKind::kArrive, 1, epoch_key(static_cast<Phase>(kNumPhases), 1));
  immediate(ImmediateKind::kExpect, 2, epoch_key(static_cast<Phase>((1u << kPhaseBits) - 1), 1));
  done();
  return all;
}

}  // namespace uccl::fuzz

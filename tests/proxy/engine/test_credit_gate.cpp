// Credits and chunks through a network that holds single messages back for as long as it likes: without the sender's
// windows, old ones would be taken for new ones.
#include <random>

#include "engine/credit_gate.h"
#include "native/check.h"
#include "proxy/engine/rank_memory.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

// One stream of `op` from a stepped sender to a receiver's Sequences, with a network that prefers to hold back.
struct HoldingNetwork {
  explicit HoldingNetwork(u32 seed)
      : sender(Shape{.capacity = 1024, .max_in_flight = 64}), receiver(Shape{.rank = 1}), random(seed) {}

  void pump(Sequences& sequences) {
    sender.step();
    for (const WriteRequest& r : sender.lane().take_posted()) under_way.push_back(r);
    if (under_way.empty()) return;
    // Nearly always the newest: the oldest may wait for thousands of others.
    const std::size_t i = random() % 4000 == 0 ? random() % under_way.size() : under_way.size() - 1;
    if (under_way.size() < 3 && random() % 200 != 0) return;
    const u32 key = unpack_immediate(under_way[i].immediate).key;
    const bool credit = unpack_immediate(under_way[i].immediate).kind == ImmediateKind::kCredit;
    const Verdict v = credit ? sequences.credit(0, key) : sequences.chunk(0, key);
    stale += v.outcome == Outcome::kStale;
    overtaken += v.outcome == Outcome::kOvertaken;
    sender.lane().complete(under_way[i].wr_id);
    under_way.erase(under_way.begin() + static_cast<std::ptrdiff_t>(i));
  }

  Stepper sender;
  RankMemory receiver;
  WorkerCounters counters{};
  std::vector<WriteRequest> under_way;
  std::mt19937 random;
  u64 stale = 0, overtaken = 0;
};

}  // namespace

TEST(engine_credit_gate_opens_again_when_nothing_is_on_its_way) {
  CreditGate gate(4, 4);
  const u32 s = gate.stream(2, stream_key(Direction::kCombine, 3, 0));
  CHECK(s != gate.stream(2, stream_key(Direction::kDispatch, 3, 0)));
  CHECK(gate.may_send(s, 700));  // alone: whatever it says
  gate.opened(s, 10);
  CHECK(gate.may_send(s, 511));
  CHECK(!gate.may_send(s, 512));
  gate.opened(s, 500);
  gate.completed(s);
  CHECK(!gate.may_send(s, 512));  // one is still open
  gate.completed(s);
  CHECK(gate.may_send(s, 512));
  gate.opened(s, 512);
  CHECK(gate.may_send(s, 1011));
  CHECK(!gate.may_send(s, 1012));  // 512 from 500, the last that is known to be there
}

TEST(engine_credit_gate_no_held_back_credit_is_ever_taken_for_a_new_one) {
  HoldingNetwork net(3);
  Sequences sequences(net.receiver.control(), net.receiver.layout, net.counters);
  u64 head = 0, pushed = 0;
  for (u32 turn = 0; turn < 60'000; ++turn) {
    if (pushed - net.sender.ring_tail(0) < 1000 && turn < 50'000) {
      head += net.random() % 40;
      net.sender.push(0, {Op::kCredit, 1, stream_key(Direction::kDispatch, 2, head), 0, 0, 0});
      ++pushed;
    }
    const u64 before = net.receiver.credit(Direction::kDispatch, 0, 2);
    net.pump(sequences);
    const u64 now = net.receiver.credit(Direction::kDispatch, 0, 2);
    CHECK(now >= before && now <= head);
  }
  while (net.sender.done(0) != pushed) net.pump(sequences);
  CHECK_EQ(net.receiver.credit(Direction::kDispatch, 0, 2), head);
  CHECK(head > 20 * 1024 && net.overtaken > 0);
  CHECK_EQ(net.stale, 0ull);
  CHECK(net.sender.counters().stalls > 0);
}

TEST(engine_credit_gate_no_chunk_leaves_the_window_behind_a_held_back_one) {
  HoldingNetwork net(4);
  Sequences sequences(net.receiver.control(), net.receiver.layout, net.counters);
  u64 pushed = 0;
  for (u32 turn = 0; turn < 60'000; ++turn) {
    if (pushed - net.sender.ring_tail(0) < 1000 && turn < 50'000)
      net.sender.push(0, {Op::kSequence, 1, stream_key(Direction::kDispatch, 2, pushed++), 0, 0, 0});
    net.pump(sequences);
  }
  while (net.sender.done(0) != pushed) net.pump(sequences);
  CHECK_EQ(net.receiver.tail(Direction::kDispatch, 0, 2), pushed);
  CHECK_EQ(net.stale, 0ull);
  CHECK(pushed > 5000);
  CHECK(net.counters.deepest_reorder > 400);  // the window was really needed
}

// What each verdict does: applied and overtaken are silent, stale is counted, refused is a fault that ends every wait.
#include "native/check.h"
#include "proxy/engine/rank_memory.h"

using namespace uccl;
using namespace uccl::testing;

TEST(engine_verdict_applied_then_stale_then_refused) {
  Stepper rank(Shape{});
  const u32 key = stream_key(Direction::kDispatch, 1, 0);
  rank.deliver(ImmediateKind::kSequence, 1, key);
  rank.step();
  CHECK_EQ(rank.counters().stale + rank.counters().refused + rank.aborted(), 0ull);
  rank.deliver(ImmediateKind::kSequence, 1, key);
  rank.step();
  CHECK_EQ(rank.counters().stale, 1ull);
  CHECK_EQ(rank.counters().refused + rank.aborted(), 0ull);
  rank.deliver(ImmediateKind::kSequence, 1, stream_key(Direction::kDispatch, 4, 0));
  rank.step();
  CHECK_EQ(rank.counters().stale, 1ull);
  CHECK_EQ(rank.counters().refused, 1ull);
  CHECK_EQ(rank.aborted(), 1ull);
  CHECK_EQ(rank.fault().kind, static_cast<u32>(FaultKind::kBadArrival));
  CHECK_EQ(rank.fault().peer, 1u);
  CHECK_EQ(rank.fault().detail, DetailWord(4u).word);
  CHECK_EQ(rank.fault().expected, 4ull);
  CHECK_EQ(rank.fault().seen, 4ull);
}

TEST(engine_verdict_an_overtaken_credit_is_nothing_stale) {
  Stepper rank(Shape{});
  for (const u64 head : {3, 2, 3, 5}) {  // on two queue pairs the second may pass the first
    rank.deliver(ImmediateKind::kCredit, 1, stream_key(Direction::kDispatch, 1, head));
    rank.step();
  }
  CHECK_EQ(rank.credit(Direction::kDispatch, 1, 1), 5ull);
  CHECK_EQ(rank.counters().credits, 4ull);
  CHECK_EQ(rank.counters().stale + rank.counters().refused + rank.aborted(), 0ull);
}

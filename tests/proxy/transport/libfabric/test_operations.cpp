// The lane's queues: nothing is lost, nothing is given out twice, and limits are kept.
#include <set>

#include "native/check.h"
#include "proxy/transport/contract.h"
#include "transport/libfabric/operations.h"

using namespace uccl;

TEST(libfabric_operations_pool_gives_each_once) {
  OperationPool pool(5);
  std::set<u32> taken;
  for (int i = 0; i < 5; ++i) CHECK(taken.insert(pool.take()).second);
  CHECK_EQ(pool.take(), kNoOperation);
  CHECK_EQ(pool.free(), 0u);
  CHECK_EQ(pool.used(), 5u);
  pool[3].wr_id = 77;
  pool[3].dropped = true;
  pool.give_back(3);
  CHECK_EQ(pool.take(), 3u);
  CHECK_EQ(pool[3].wr_id, 0u);
  CHECK(!pool[3].dropped);
  CHECK_EQ(pool.take(), kNoOperation);
}

TEST(libfabric_operations_pool_knows_its_own) {
  OperationPool pool(4);
  CHECK(!pool.owns(nullptr));
  const u32 i = pool.take();
  CHECK(pool.owns(&pool[i]));
  CHECK_EQ(pool.index(&pool[i]), i);
  CHECK(!pool.owns(&pool[i] + 1));  // never given out
  int other = 0;
  CHECK(!pool.owns(&other));
}

TEST(libfabric_operations_queue_keeps_order) {
  OperationPool pool(64);
  OperationQueue q;
  std::vector<u32> expected;
  u64 state = 7;
  for (int round = 0; round < 2000; ++round) {
    state = contract::mix(state, 1);
    if (state % 3 != 0 && pool.free() != 0) {
      const u32 i = pool.take();
      if (state % 7 == 0) {
        q.push_front(pool, i);
        expected.insert(expected.begin(), i);
      } else {
        q.push(pool, i);
        expected.push_back(i);
      }
    } else if (!expected.empty()) {
      const u32 i = q.pop(pool);
      CHECK_EQ(i, expected.front());
      expected.erase(expected.begin());
      pool.give_back(i);
    }
    CHECK_EQ(q.empty(), expected.empty());
  }
}

TEST(libfabric_operations_ring_serves_in_turn) {
  PeerRing ring(3);
  for (const u32 p : {2u, 0u, 2u, 1u, 0u}) ring.push(p);
  CHECK_EQ(ring.size(), 3u);
  CHECK_EQ(ring.pop(), 2u);
  ring.push(2);
  CHECK_EQ(ring.pop(), 0u);
  CHECK_EQ(ring.pop(), 1u);
  CHECK_EQ(ring.pop(), 2u);
  CHECK_EQ(ring.size(), 0u);
}

TEST(libfabric_operations_arrivals_keep_order_when_they_grow) {
  ArrivalBuffer b(3);
  u32 in = 0, out = 0;
  for (int round = 0; round < 50; ++round) {
    while (b.room() != 0) b.push(Arrival{in++, 1});
    CHECK_EQ(b.pop().immediate, out++);
    if (round % 5 == 0) {
      b.make_room(10);
      CHECK(b.room() >= 10);
    }
  }
  while (!b.empty()) CHECK_EQ(b.pop().immediate, out++);
  CHECK_EQ(in, out);
}

// The loop: what arrives reaches the right words, impostors are refused, the gone are ignored, run() ends.
#include <thread>

#include "native/check.h"
#include "proxy/engine/rank_memory.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

void impostor(u32 immediate, u32 peer) {
  Stepper rank(Shape{.rank = 0, .num_ranks = 4});
  rank.settings.peer_bytes[3] = 0;
  rank.lane().deliver(immediate, peer);
  rank.step();
  CHECK_EQ(rank.counters().refused, 1ull);
  CHECK_EQ(rank.aborted(), 1ull);
  CHECK_EQ(rank.fault().kind, static_cast<u32>(FaultKind::kBadArrival));
  CHECK_EQ(rank.fault().peer, peer);
  for (u32 s = 0; s < 4; ++s) CHECK_EQ(rank.tail(Direction::kDispatch, s, 0), 0ull);
}

u32 first_chunk(u32 source) {
  return pack(Immediate{ImmediateKind::kSequence, source, stream_key(Direction::kDispatch, 0, 0)});
}

}  // namespace

TEST(engine_worker_routes_every_kind) {
  Stepper rank(Shape{});
  rank.land_header(Phase::kDispatch, 1, 2, 1);
  rank.deliver(ImmediateKind::kExpect, 2, epoch_key(Phase::kDispatch, 1));
  rank.deliver(ImmediateKind::kArrive, 2, epoch_key(Phase::kDispatch, 1));
  rank.deliver(ImmediateKind::kSequence, 1, stream_key(Direction::kCombine, 3, 0));
  rank.deliver(ImmediateKind::kCredit, 3, stream_key(Direction::kDispatch, 2, 9));
  const u64 before = steady_ns();
  rank.step();
  CHECK_EQ(rank.flag(Phase::kDispatch, 2), 1ull);
  CHECK(rank.word(rank.layout.flag_time(2)) >= before && rank.word(rank.layout.flag_time(2)) <= steady_ns());
  CHECK_EQ(rank.tail(Direction::kCombine, 1, 3), 1ull);
  CHECK_EQ(rank.credit(Direction::kDispatch, 3, 2), 9ull);
  const WorkerCounters& c = rank.counters();
  CHECK_EQ(c.arrivals, 4ull);
  CHECK_EQ(c.expects, 1ull);
  CHECK_EQ(c.sequences, 1ull);
  CHECK_EQ(c.credits, 1ull);
  CHECK_EQ(c.refused + c.stale, 0ull);
  CHECK_EQ(rank.peer_counters[2].arrivals, 2ull);
  CHECK(rank.peer_counters[2].last_arrival_ns >= before);
}

TEST(engine_worker_refuses_impostors) {
  impostor(first_chunk(2), 1);  // rank 1 claims to be rank 2
  impostor(first_chunk(0), 0);  // nobody hears from itself
  impostor(first_chunk(3), 3);  // not reached by this transport
  impostor(first_chunk(9), 9);  // beyond the group
  impostor(pack(Immediate{static_cast<ImmediateKind>(0), 1, 0}), 1);
  impostor(pack(Immediate{static_cast<ImmediateKind>(6), 1, 0}), 1);
  impostor(pack(Immediate{static_cast<ImmediateKind>(7), 1, 0}), 1);
}

TEST(engine_worker_drops_what_comes_from_the_gone) {
  Stepper rank(Shape{});
  rank.lane().deliver(first_chunk(1), 1);
  rank.membership.dismiss(1);
  rank.step();  // what was here before the goodbye was seen still counts
  CHECK_EQ(rank.tail(Direction::kDispatch, 1, 0), 1ull);
  rank.deliver(ImmediateKind::kSequence, 1, stream_key(Direction::kDispatch, 0, 1));
  rank.deliver(ImmediateKind::kSequence, 1, stream_key(Direction::kDispatch, 60, 1));
  rank.step();
  CHECK_EQ(rank.tail(Direction::kDispatch, 1, 0), 1ull);
  CHECK_EQ(rank.counters().stale, 2ull);
  CHECK_EQ(rank.aborted(), 0ull);
}

// A NIC says nothing of a process that was killed; another rank of this host may know.
TEST(engine_worker_hears_of_an_end_on_another_host) {
  Stepper rank(Shape{});
  rank.lane().deliver(first_chunk(1), 1);
  rank.set_word(rank.layout.ended(1), 1);
  rank.set_word(ControlLayout::kExclusions, 1);
  rank.step(64);
  CHECK_EQ(rank.tail(Direction::kDispatch, 1, 0), 1ull);  // what was here already counts
  CHECK_EQ(rank.aborted(), 1ull);
  CHECK_EQ(rank.lane().closed().size(), 1u);
}

TEST(engine_worker_takes_an_end_after_a_goodbye_for_no_fault) {
  Stepper rank(Shape{});
  rank.set_word(rank.layout.departed(1), Departed::kLeaving);
  rank.set_word(rank.layout.ended(1), 1);
  rank.set_word(ControlLayout::kExclusions, 1);
  rank.step(64);
  CHECK_EQ(rank.aborted(), 0ull);
}

// A mask may be taken away again, and a call that has ended here may have pushed rows that are still in the ring.
TEST(engine_worker_sends_what_was_pushed_before_a_peer_was_left_out) {
  Stepper rank(Shape{});
  rank.push(0, write_command(1));
  rank.set_word(rank.layout.excluded(1), 1);
  rank.set_word(ControlLayout::kExclusions, 1);
  rank.step(64);  // the words are looked at every few turns
  rank.push(0, write_command(1, 1));
  rank.step(64);
  CHECK_EQ(rank.lane().posted().size(), 2u);
  CHECK_EQ(rank.aborted(), 0ull);

  // It reads nothing: after a while it is parted with, and nobody waits behind it.
  const u64 limit = steady_ns() + 20'000'000'000ull;
  while (rank.lane().closed().empty() && steady_ns() < limit) rank.step();
  CHECK_EQ(rank.lane().closed().size(), 1u);
  CHECK_EQ(rank.word(rank.layout.parted(1)), 1ull);
  CHECK_EQ(rank.word(rank.layout.parted(2)), 0ull);
  rank.push(0, write_command(1, 2));
  rank.step(64);
  CHECK_EQ(rank.done(0), 3ull);
  CHECK_EQ(rank.aborted(), 0ull);
}

// The first arrival after a return is counted from the resume word, however far beyond the old window it is.
TEST(engine_worker_takes_resume_words_before_arrivals) {
  Stepper rank(Shape{});
  rank.step(1);
  const u64 next = (3ull << kEpochBits) + 77;
  rank.set_word(rank.layout.resume(Phase::kDispatch, 2), next - 1);
  rank.set_word(ControlLayout::kExclusions, 1);
  rank.land_header(Phase::kDispatch, next, 2, 1);
  rank.deliver(ImmediateKind::kArrive, 2, epoch_key(Phase::kDispatch, next));
  rank.deliver(ImmediateKind::kExpect, 2, epoch_key(Phase::kDispatch, next));
  rank.step(1);
  CHECK_EQ(rank.aborted(), 0ull);
  CHECK_EQ(rank.flag(Phase::kDispatch, 2), next);
}

namespace {

struct Flushes {
  const RankMemory* rank;
  u32 calls = 0;
  u64 tail_before = 0;  // what kernels could see when the last flush began
  int error = 0;
  static int call(void* self) {
    Flushes& f = *static_cast<Flushes*>(self);
    ++f.calls;
    f.tail_before = f.rank->tail(Direction::kDispatch, 1, 0);
    return f.error;
  }
};

}  // namespace

TEST(engine_worker_flushes_once_a_batch_before_it_says_anything) {
  Stepper rank(Shape{});
  Flushes flushes{&rank};
  rank.settings.flush = {Flushes::call, &flushes};
  rank.step();
  CHECK_EQ(flushes.calls, 0u);
  for (u64 n = 0; n < 5; ++n) rank.deliver(ImmediateKind::kSequence, 1, stream_key(Direction::kDispatch, 0, n));
  rank.step();
  CHECK_EQ(flushes.calls, 1u);
  CHECK_EQ(flushes.tail_before, 0ull);
  CHECK_EQ(rank.tail(Direction::kDispatch, 1, 0), 5ull);
  rank.deliver(ImmediateKind::kCredit, 3, stream_key(Direction::kDispatch, 2, 9));
  rank.step();
  CHECK_EQ(flushes.calls, 1u);  // credits announce no bytes
  CHECK_EQ(rank.credit(Direction::kDispatch, 3, 2), 9ull);
}

TEST(engine_worker_that_cannot_flush_fails_instead_of_raising_a_flag) {
  Stepper rank(Shape{});
  Flushes flushes{&rank};
  flushes.error = kFlushFailed | 719;
  rank.settings.flush = {Flushes::call, &flushes};
  rank.deliver(ImmediateKind::kSequence, 1, stream_key(Direction::kDispatch, 0, 0));
  rank.step();
  CHECK_EQ(rank.tail(Direction::kDispatch, 1, 0), 0ull);
  CHECK_EQ(rank.aborted(), 1ull);
  CHECK_EQ(rank.fault().kind, static_cast<u32>(FaultKind::kTransport));
  CHECK_EQ(rank.fault().peer, ~0u);  // nobody else has to do with it
  CHECK_EQ(rank.fault().seen, static_cast<u64>(kFlushFailed | 719));
  CHECK(explain_code("verbs", kFlushFailed | 719).find("719") != std::string::npos);
}

TEST(engine_worker_batches_longer_than_its_own) {
  Stepper rank(Shape{});
  for (u64 n = 0; n < 1000; ++n) rank.deliver(ImmediateKind::kSequence, 1, stream_key(Direction::kDispatch, 0, n));
  rank.step(1 + 1000 / 64);
  CHECK_EQ(rank.tail(Direction::kDispatch, 1, 0), 1000ull);
}

TEST(engine_worker_keeps_to_its_rings_and_lane) {
  Stepper rank(Shape{.num_rings = 5, .num_workers = 2});
  for (u32 ring = 0; ring < 5; ++ring) rank.push(ring, write_command(1, ring));
  rank.step();
  CHECK_EQ(rank.lane(0).posted().size(), 3u);
  CHECK_EQ(rank.lane(1).posted().size(), 2u);
  for (u32 w = 0; w < 2; ++w)
    for (const WriteRequest& r : rank.lane(w).posted()) CHECK_EQ(unpack_immediate(r.immediate).key % 2, w);
}

TEST(engine_worker_run_drains_what_is_committed_before_it_ends) {
  RankMemory rank(Shape{.capacity = 256});
  FakeTransport transport(1);
  transport.fake(0).set_echo(true);
  Faults faults(rank.control(), rank.peer_counters.data(), 4);
  Membership membership(4, rank.peer_counters.data(), faults);
  Worker worker(WorkerShared{rank.settings, rank.peer_counters.data(), membership, faults}, 0, transport.lane(0),
                rank.worker_counters[0]);
  for (u32 i = 0; i < 200; ++i) rank.push(0, write_command(1 + i % 3));
  std::atomic<u64> stop_at{steady_ns() + 20'000'000'000ull};  // asked to stop before it began
  std::thread thread([&] { worker.run(stop_at); });
  thread.join();
  CHECK_EQ(rank.done(0), 200ull);
}

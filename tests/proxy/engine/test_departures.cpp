// Goodbyes: an announced end is no fault, everything else is, and a goodbye on one lane leaves the others their arrivals.
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/departures.h"
#include "engine/engine.h"
#include "native/check.h"
#include "proxy/engine/rank_memory.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

u64 departed(const RankMemory& rank, u32 peer) { return rank.word(rank.layout.departed(peer)); }

u32 chunk(u32 source, u64 number) {
  return pack(Immediate{ImmediateKind::kSequence, source, stream_key(Direction::kDispatch, 0, number)});
}

pid_t spawn_sleeper() {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  alarm(50);
  for (;;) pause();
}

// Runs an engine that watches a process as rank 2, which is killed, until done().
template <class Done>
void run_with_a_killed_peer(RankMemory& rank, Done done) {
  const pid_t pid = spawn_sleeper();
  rank.settings.peer_pids = {0, 0, pid, 0};
  Engine engine(rank.settings, std::make_unique<FakeTransport>(1), rank.worker_counters.data(),
                rank.peer_counters.data());
  engine.start();
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  const u64 until = steady_ns() + 20'000'000'000ull;
  while (!done() && steady_ns() < until) usleep(1000);
  engine.stop(0);
}

// True when the end of a process became a fault.
bool end_is_a_fault(bool said_goodbye) {
  RankMemory rank(Shape{});
  if (said_goodbye) rank.set_word(rank.layout.departed(2), Departed::kLeaving);
  run_with_a_killed_peer(rank, [&] { return rank.aborted() != 0 || departed(rank, 2) == Departed::kLeft; });
  CHECK_EQ(departed(rank, 2), said_goodbye ? Departed::kLeft : 0ull);
  CHECK_EQ(rank.peer_counters[2].lost, said_goodbye ? 0ull : 1ull);
  return rank.aborted() != 0;
}

}  // namespace

TEST(engine_departures_tells_a_goodbye_from_a_loss) {
  RankMemory rank(Shape{});
  Departures d(rank.control(), rank.layout);
  CHECK(!d.connection_ended(1, PeerFault::kLost, ECONNRESET));
  CHECK(!d.connection_ended(1, PeerFault::kProtocol, 0));
  CHECK(!d.connection_ended(1, PeerFault::kNetwork, 0));
  CHECK(!d.process_ended(1));
  CHECK_EQ(departed(rank, 1), 0ull);
  CHECK_EQ(rank.word(ControlLayout::kSomeDeparted), 0ull);
  CHECK(d.connection_ended(1, PeerFault::kLost, 0));
  CHECK_EQ(departed(rank, 1), Departed::kLeft);
  CHECK_EQ(rank.word(ControlLayout::kSomeDeparted), 1ull);
  CHECK(d.process_ended(1));
  CHECK(d.connection_ended(1, PeerFault::kLost, ECONNRESET));  // of another lane, a moment later
  CHECK(!d.connection_ended(1, PeerFault::kProtocol, EPROTO));
  for (const u32 other : {0u, 2u, 3u}) CHECK_EQ(departed(rank, other), 0ull);
  CHECK(!d.connection_ended(4, PeerFault::kLost, 0));  // no such rank
  CHECK(!d.process_ended(~0u));
}

TEST(engine_departures_a_peer_of_this_host_says_it_itself) {
  RankMemory rank(Shape{});
  Departures d(rank.control(), rank.layout);
  rank.set_word(rank.layout.departed(3), Departed::kLeaving);
  CHECK(d.connection_ended(3, PeerFault::kLost, EPIPE));
  CHECK_EQ(departed(rank, 3), Departed::kLeft);
  rank.set_word(rank.layout.departed(2), Departed::kLeaving);
  CHECK(d.process_ended(2));
  CHECK_EQ(departed(rank, 2), Departed::kLeft);
}

TEST(engine_departures_silence_stands_beside_what_the_peer_said) {
  for (const u64 said : {u64{0}, Departed::kLeaving, Departed::kLeft, Departed::kVotedAgainst}) {
    RankMemory rank(Shape{});
    rank.set_word(rank.layout.departed(2), said);
    Departures(rank.control(), rank.layout).silent(2);
    CHECK_EQ(departed(rank, 2), said < Departed::kLeft ? said : said | Departed::kSilent);
    CHECK_EQ(departed(rank, 1), 0ull);
  }
}

// What a rank of another node sent may have come to a rank of this node whose proxy has not applied it.
TEST(engine_departures_only_a_lost_peer_of_the_node_is_silent) {
  for (const u64 of_the_node : {0, 1}) {
    Stepper rank(Shape{});
    rank.settings.losses_are_absences = true;
    if (of_the_node != 0) rank.settings.peer_bytes[1] = 0;  // it is no peer of the transport
    rank.step(1);
    Departures(rank.control(), rank.layout).lost(1);
    rank.membership.dismiss(1);
    CHECK_EQ(departed(rank, 1), Departed::kLeft);
    rank.step(1);
    CHECK_EQ(departed(rank, 1), Departed::kLeft | of_the_node * Departed::kSilent);
    CHECK_EQ(rank.aborted(), 0ull);
  }
}

TEST(engine_departures_a_goodbye_is_no_fault_and_ends_one_lane) {
  Stepper rank(Shape{.num_rings = 2, .num_workers = 2});
  rank.lane(0).report({1, PeerFault::kLost, 0});
  rank.lane(1).deliver(chunk(1, 0), 1);
  rank.step(16);  // events are looked for every few turns
  rank.lane(1).deliver(chunk(1, 1), 1);
  rank.step(16);
  CHECK_EQ(rank.aborted(), 0ull);
  CHECK_EQ(rank.peer_counters[1].lost, 0ull);
  CHECK_EQ(departed(rank, 1), Departed::kLeft);
  CHECK(rank.lane(0).closed() == std::vector<u32>{1});
  CHECK(rank.lane(1).closed().empty());
  CHECK_EQ(rank.tail(Direction::kDispatch, 1, 0), 2ull);
  rank.push(0, write_command(1));  // nobody will ever read it, and nothing waits for it
  rank.push(0, write_command(2));
  rank.lane(0).set_echo(true);
  rank.step(4);
  CHECK_EQ(rank.aborted(), 0ull);
  CHECK_EQ(rank.lane(0).posted().size(), 1u);
}

TEST(engine_departures_a_loss_stays_a_fault) {
  Stepper rank(Shape{});
  rank.lane().report({1, PeerFault::kLost, ECONNRESET});
  rank.step(16);
  CHECK_EQ(rank.aborted(), 1ull);
  CHECK_EQ(rank.fault().kind, static_cast<u32>(FaultKind::kPeerLost));
  CHECK_EQ(rank.fault().peer, 1u);
}

TEST(engine_departures_the_end_of_a_process_that_said_goodbye) {
  CHECK(!end_is_a_fault(true));
  CHECK(end_is_a_fault(false));
}

TEST(engine_departures_the_end_of_a_process_is_an_absence_where_losses_are) {
  RankMemory rank(Shape{});
  rank.settings.peer_bytes[2] = 0;  // of this node
  rank.settings.losses_are_absences = true;
  run_with_a_killed_peer(rank, [&] { return departed(rank, 2) >= Departed::kSilent; });
  CHECK_EQ(departed(rank, 2), Departed::kLeft | Departed::kSilent);
  CHECK_EQ(rank.aborted(), 0ull);
}

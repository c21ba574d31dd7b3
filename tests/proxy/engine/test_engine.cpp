// The whole engine with its threads: traffic, peers that die, stopping with and without something left, no allocation.
#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <system_error>
#include <thread>

#include "engine/engine.h"
#include "native/check.h"
#include "proxy/engine/count_allocations.h"
#include "proxy/engine/rank_memory.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

// An engine on a fake transport, which stays reachable for scripting.
struct Running {
  explicit Running(const Shape& shape) : rank(shape) {}
  void start() {
    auto owned = std::make_unique<FakeTransport>(rank.settings.num_workers);
    transport = owned.get();
    engine = std::make_unique<Engine>(rank.settings, std::move(owned), rank.worker_counters.data(),
                                      rank.peer_counters.data());
    engine->start();
  }
  RankMemory rank;
  FakeTransport* transport = nullptr;
  std::unique_ptr<Engine> engine;
};

template <class Condition>
bool eventually(Condition&& condition, u64 within_ns = 20'000'000'000ull) {
  const u64 until = steady_ns() + within_ns;
  while (!condition()) {
    if (steady_ns() > until) return false;
    sched_yield();
  }
  return true;
}

std::set<std::string> thread_names() {
  std::set<std::string> names;
  DIR* tasks = opendir("/proc/self/task");
  while (const dirent* entry = readdir(tasks)) {
    std::ifstream file(std::string("/proc/self/task/") + entry->d_name + "/comm");
    std::string name;
    if (std::getline(file, name)) names.insert(name);
  }
  closedir(tasks);
  return names;
}

pid_t spawn_sleeper() {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  alarm(50);
  for (;;) pause();
}

u64 word_of(u64& word) { return std::atomic_ref<u64>(word).load(std::memory_order_relaxed); }

}  // namespace

TEST(engine_threads_carry_traffic_both_ways) {
  Running run(Shape{.num_ranks = 3, .num_rings = 4, .capacity = 32, .num_workers = 2, .max_in_flight = 16});
  run.start();
  std::atomic<bool> over{false};
  std::thread network([&] {  // completes in a random order, and echoes every write as a chunk of the peer
    std::mt19937 random(3);
    std::vector<WriteRequest> open;
    u64 chunks[2][3] = {};
    while (!over.load()) {
      for (u32 w = 0; w < 2; ++w) {
        FakeLane& lane = run.transport->fake(w);
        for (const WriteRequest& r : lane.take_posted()) open.push_back(r);
        while (!open.empty()) {
          std::swap(open[random() % open.size()], open.back());
          const u32 peer = open.back().peer;
          lane.complete(open.back().wr_id);
          lane.deliver(
              pack(Immediate{ImmediateKind::kSequence, peer, stream_key(Direction::kDispatch, w, chunks[w][peer]++)}),
              peer);
          open.pop_back();
        }
      }
      sched_yield();
    }
  });
  std::vector<std::thread> producers;
  for (u32 ring = 0; ring < 4; ++ring)
    producers.emplace_back([&, ring] {
      const RingView view = ring_view(run.rank.settings.rings[ring], 32);
      for (u32 i = 0; i < 1000; ++i) {
        const Command c = i % 50 == 49 ? Command{Op::kQuiet, 0, 0, 0, 0, 0} : write_command(1 + i % 2);
        u64 ticket;
        ring_push(view, {&c, 1}, &ticket, [] { return sched_yield() == 0; });
        while (c.op == Op::kQuiet && run.rank.done(ring) <= ticket) sched_yield();
      }
    });
  for (auto& p : producers) p.join();
  bool done = true;
  for (u32 ring = 0; ring < 4; ++ring) done = eventually([&] { return run.rank.done(ring) == 1000; }) && done;
  u64 tails = 0;
  const bool heard = eventually([&] {
    tails = 0;
    for (u32 w = 0; w < 2; ++w)
      for (u32 p = 1; p < 3; ++p) tails += run.rank.tail(Direction::kDispatch, p, w);
    return tails == 4 * 980;
  });
  over = true;
  network.join();
  run.engine->stop(0);
  CHECK(done);
  CHECK(heard);
  CHECK_EQ(run.rank.aborted(), 0ull);
  CHECK_EQ(run.rank.worker_counters[0].writes + run.rank.worker_counters[1].writes, 4ull * 980);
  CHECK_EQ(run.rank.worker_counters[0].quiets + run.rank.worker_counters[1].quiets, 4ull * 20);
  for (u32 p = 1; p < 3; ++p) {
    CHECK_EQ(run.rank.peer_counters[p].in_flight, 0ull);
    CHECK_EQ(run.rank.peer_counters[p].arrivals, run.rank.peer_counters[p].writes);
  }
}

TEST(engine_hot_loop_allocates_nothing) {
  Running run(Shape{.num_rings = 2, .capacity = 1024, .max_in_flight = 512});
  run.rank.settings.peer_pids = {0, static_cast<int>(getpid()), 0, 0};
  run.start();
  FakeLane& lane = run.transport->fake(0);
  lane.set_echo(true);
  eventually([&] { return word_of(run.rank.worker_counters[0].naps) > 0; });
  const u64 before = num_allocations();
  for (u32 i = 0; i < 500; ++i) {
    run.rank.push(i % 2, write_command(1 + i % 3));
    const u32 chunk = stream_key(Direction::kCombine, 1, i ^ 3);
    for (u32 s = 1; s < 4; ++s) lane.deliver(pack(Immediate{ImmediateKind::kSequence, s, chunk}), s);
    lane.deliver(pack(Immediate{ImmediateKind::kArrive, 2, epoch_key(Phase::kDispatch, 1 + i % 4)}), 2);
  }
  run.rank.push(0, {Op::kBarrier, 0, 1, 0, 0, 0});
  for (u32 source = 1; source < 4; ++source) lane.deliver(pack(Immediate{ImmediateKind::kBarrier, source, 1}), source);
  lane.deliver(pack(Immediate{ImmediateKind::kArrive, 1, 0}), 2);  // refused
  lane.report({3, PeerFault::kLost, 104});  // ECONNRESET: 0 would be a goodbye
  const bool over = eventually([&] {
    return run.rank.word(ControlLayout::kBarrier) == 1 && run.rank.aborted() == 1 &&
           word_of(run.rank.peer_counters[3].lost) == 1;
  });
  const u64 after = num_allocations();
  run.engine->stop(1'000'000'000);
  CHECK(over);
  CHECK_EQ(after - before, 0ull);
  CHECK_EQ(run.rank.done(1), 250ull);
  CHECK(num_allocations() > 0);  // the count itself works
}

TEST(engine_names_its_threads) {
  Running run(Shape{.num_workers = 3});
  run.rank.settings.peer_pids = {0, static_cast<int>(getpid()), 0, 0};
  run.rank.settings.cpus = {0};
  run.start();
  const auto names = thread_names();
  for (const char* name : {"uccl-proxy-0", "uccl-proxy-1", "uccl-proxy-2", "uccl-watch"}) CHECK(names.contains(name));
  run.engine->stop(0);
  CHECK(!thread_names().contains("uccl-proxy-0"));
}

TEST(engine_cpu_that_does_not_exist_is_an_error_that_leaves_no_thread) {
  Running run(Shape{});
  run.rank.settings.cpus = {CPU_SETSIZE - 1};
  CHECK_THROWS(std::system_error, (run.start(), 0));
  CHECK(!thread_names().contains("uccl-proxy-0"));
}

// The fields of a worker's status in /proc.
std::string status_of(const std::string& name) {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "status");
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    if (text.find("\t" + name + "\n") != std::string::npos) return text;
  }
  return "";
}

TEST(engine_workers_that_are_not_pinned_run_near_their_nics) {
  cpu_set_t allowed;
  CHECK_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &allowed)) ++cpu;
  Running run(Shape{});
  run.rank.settings.near_cpus = {cpu};
  run.start();
  CHECK(status_of("uccl-proxy-0").find("Cpus_allowed_list:\t" + std::to_string(cpu) + "\n") != std::string::npos);
}

TEST(engine_workers_run_anywhere_where_what_is_near_is_refused) {
  Running run(Shape{});
  run.rank.settings.near_cpus = {CPU_SETSIZE - 1};
  run.start();
  CHECK(thread_names().contains("uccl-proxy-0"));
}

TEST(engine_starts_once) {
  Running run(Shape{});
  run.start();
  CHECK_THROWS(std::logic_error, (run.engine->start(), 0));
  CHECK_THROWS(std::invalid_argument, (run.engine->dismiss_peer(4), 0));
  CHECK_THROWS(std::invalid_argument,
               Engine(run.rank.settings, nullptr, run.rank.worker_counters.data(), run.rank.peer_counters.data()));
}

TEST(engine_killed_process_is_a_fault_within_half_a_second) {
  const pid_t child = spawn_sleeper();
  Running run(Shape{.num_rings = 2, .num_workers = 2});
  run.rank.settings.peer_pids = {0, 0, static_cast<int>(child), 0};
  run.start();
  run.rank.push(0, write_command(2));
  run.rank.push(1, write_command(2));
  const bool posted = eventually([&] { return run.transport->fake(0).posted().size() == 1; });
  const u64 early = run.rank.aborted();
  kill(child, SIGKILL);
  const bool in_time = eventually([&] { return run.rank.aborted() != 0; }, 500'000'000);
  waitpid(child, nullptr, 0);
  const bool settled = eventually([&] { return run.rank.done(0) == 1 && run.rank.done(1) == 1; });
  run.rank.push(1, write_command(2));  // sent to nobody, complete all the same
  const bool after = eventually([&] { return run.rank.done(1) == 2; });
  run.engine->stop(0);
  CHECK(posted && settled && after);
  CHECK_EQ(early, 0ull);
  CHECK(in_time);
  CHECK_EQ(run.rank.fault().kind, static_cast<u32>(FaultKind::kPeerLost));
  CHECK_EQ(run.rank.fault().peer, 2u);
  for (u32 w = 0; w < 2; ++w) CHECK(run.transport->fake(w).closed() == std::vector<u32>{2});
}

TEST(engine_dismissed_process_dies_in_silence) {
  const pid_t child = spawn_sleeper();
  Running run(Shape{});
  run.rank.settings.peer_pids = {0, static_cast<int>(child), 0, 0};
  run.start();
  run.engine->dismiss_peer(1);
  const bool closed = eventually([&] { return run.transport->fake(0).closed().size() == 1; });
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  usleep(100'000);
  run.engine->stop(0);
  CHECK(closed);
  CHECK_EQ(run.rank.aborted(), 0ull);
  CHECK_EQ(run.rank.fault().claimed, 0u);
  CHECK_EQ(run.rank.peer_counters[1].lost, 0ull);
}

TEST(engine_after_stop_no_death_is_a_fault) {
  const pid_t child = spawn_sleeper();
  Running run(Shape{});
  run.rank.settings.peer_pids = {0, static_cast<int>(child), 0, 0};
  run.start();
  run.engine->stop(0);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  usleep(100'000);
  CHECK_EQ(run.rank.aborted(), 0ull);
}

TEST(engine_stop_with_writes_that_never_complete_keeps_its_limit) {
  Running run(Shape{});
  run.start();
  for (int i = 0; i < 3; ++i) run.rank.push(0, write_command(1));
  run.rank.push(0, {Op::kBarrier, 0, 1, 0, 0, 0});
  const bool posted = eventually([&] { return run.transport->fake(0).posted().size() == 3; });
  const u64 before = steady_ns();
  run.engine->stop(100'000'000);
  const u64 took = steady_ns() - before;
  CHECK(posted);
  CHECK(took >= 100'000'000);
  CHECK(took < 5'000'000'000);
  CHECK_EQ(run.rank.done(0), 0ull);  // nothing was said to be complete that is not
  run.engine->stop(100'000'000'000);  // again: returns at once
}

TEST(engine_stop_drains_and_then_does_not_wait_for_its_limit) {
  Running run(Shape{.num_rings = 4, .num_workers = 2});
  run.start();
  for (u32 w = 0; w < 2; ++w) run.transport->fake(w).set_echo(true);
  for (u32 i = 0; i < 200; ++i) run.rank.push(i % 4, write_command(1 + i % 3));
  const u64 before = steady_ns();
  run.engine->stop(~0ull);
  CHECK(steady_ns() - before < 20'000'000'000ull);
  for (u32 ring = 0; ring < 4; ++ring) CHECK_EQ(run.rank.done(ring), 50ull);
}

TEST(engine_stop_before_start_and_destruction_without_stop) {
  Running never(Shape{});
  never.engine = std::make_unique<Engine>(never.rank.settings, std::make_unique<FakeTransport>(1),
                                          never.rank.worker_counters.data(), never.rank.peer_counters.data());
  never.engine->stop(1'000'000);
  never.engine.reset();
  Running run(Shape{});
  run.start();
  run.rank.push(0, write_command(1));
  const u64 before = steady_ns();
  run.engine.reset();
  CHECK(steady_ns() - before < 5'000'000'000ull);
}

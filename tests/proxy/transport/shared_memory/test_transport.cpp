// Shared memory between processes: the same exchange with a forked rank, and spans that cannot be mapped.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "native/check.h"
#include "proxy/transport/contract.h"
#include "transport/shared_memory/transport.h"

using namespace uccl;

namespace {

constexpr u32 kRounds = 2000;
constexpr u64 kSlot = 512;

// Ping-pong of kRounds writes with data; returns "" or what went wrong. Both sides run it.
std::string play(Transport& t, u32 me, const u8* memory) {
  Lane& lane = t.lane(0);
  u32 sent = 0, seen = 0, completed = 0;
  std::string error;
  const bool done = contract::poll_until([&] {
    while (sent < kRounds && sent < seen + 8) {  // at most 8 ahead, so the 16 slots are never written while read
      const u64 bytes = contract::mix(sent, me) % kSlot;
      WriteRequest r{1 - me, sent, contract::random_bytes() + sent * 7 + me, 4096 + sent % 16 * kSlot, bytes, sent};
      if (lane.post(std::span(&r, 1)) == 0) break;
      ++sent;
    }
    lane.flush();
    u64 wr_ids[16];
    completed += static_cast<u32>(lane.poll_completions(wr_ids));
    Arrival a;
    while (lane.poll_arrivals(std::span(&a, 1)) == 1) {
      const u64 bytes = contract::mix(a.immediate, 1 - me) % kSlot;
      if (a.immediate != seen) error = "out of order";
      const u8* source = contract::random_bytes() + seen * 7 + (1 - me);
      if (std::memcmp(memory + seen % 16 * kSlot, source, bytes) != 0) error = "data";
      ++seen;
    }
    return !error.empty() || (seen == kRounds && completed == kRounds);
  });
  return done ? error : "timed out at " + std::to_string(seen) + " of " + std::to_string(kRounds);
}

TransportSettings settings(u32 rank, const Segment& segment) {
  contract::Shape shape;
  shape.region_bytes = 16 * kSlot;
  return contract::settings_for(shape, rank, segment);
}

struct Pipe {
  int ends[2];
  Pipe() { CHECK_EQ(pipe(ends), 0); }
  ~Pipe() {
    close(ends[0]);
    close(ends[1]);
  }
  void put(const std::string& s) const { CHECK_EQ(write(ends[1], s.data(), s.size()), static_cast<ssize_t>(s.size())); }
  std::string get() const {
    char buffer[512];
    const ssize_t n = read(ends[0], buffer, sizeof(buffer));
    return std::string(buffer, n > 0 ? static_cast<std::size_t>(n) : 0);
  }
};

// The child's whole life. Its exit code says what happened: 0 = all was right.
int child(const Pipe& to_parent, const Pipe& to_child) {
  try {
    auto segment = Segment::create("child", 16 * kSlot);
    SharedMemoryTransport t(settings(1, *segment));
    to_parent.put(t.local_address());
    t.connect({to_child.get(), ""});
    if (!play(t, 1, static_cast<const u8*>(segment->data())).empty()) return 2;
    to_parent.put("done");
    return to_child.get() == "end" ? 0 : 3;  // the transport's end then tells the parent
  } catch (const std::exception&) { return 4; }
}

}  // namespace

TEST(transport_shared_memory_between_processes) {
  contract::random_bytes();
  Pipe to_parent, to_child;
  const pid_t pid = fork();
  if (pid == 0) _exit(child(to_parent, to_child));
  auto segment = Segment::create("parent", 16 * kSlot);
  SharedMemoryTransport t(settings(0, *segment));
  const std::string peer = to_parent.get();
  to_child.put(t.local_address());
  t.connect({"", peer});
  const std::string error = play(t, 0, static_cast<const u8*>(segment->data()));
  if (!error.empty()) kill(pid, SIGKILL);
  CHECK_EQ(error, std::string());
  CHECK_EQ(to_parent.get(), std::string("done"));
  PeerEvent e{};
  CHECK_EQ(t.lane(0).poll_events(std::span(&e, 1)), 0u);
  to_child.put("end");
  int status = 0;
  CHECK_EQ(waitpid(pid, &status, 0), pid);
  CHECK(WIFEXITED(status));
  CHECK_EQ(WEXITSTATUS(status), 0);
  Arrival a;
  CHECK_EQ(t.lane(0).poll_arrivals(std::span(&a, 1)), 0u);
  CHECK_EQ(t.lane(0).poll_events(std::span(&e, 1)), 1u);
  CHECK(e.fault == PeerFault::kLost);
  // The mapping is ours, so writing to who has gone is dropped, not a crash.
  const WriteRequest r{1, 1, contract::random_bytes(), 4096, 64, 1};
  CHECK_EQ(t.lane(0).post(std::span(&r, 1)), 1u);
}

// A killed peer says nothing: its memory stays mapped, and posting goes on until its mailbox is full.
TEST(transport_shared_memory_survives_a_killed_process) {
  Pipe to_parent, to_child;
  const pid_t pid = fork();
  if (pid == 0) {
    auto segment = Segment::create("child", 16 * kSlot);
    SharedMemoryTransport t(settings(1, *segment));
    to_parent.put(t.local_address());
    t.connect({to_child.get(), ""});
    to_parent.put("up");
    for (;;) pause();
  }
  auto segment = Segment::create("parent", 16 * kSlot);
  SharedMemoryTransport t(settings(0, *segment));
  const std::string peer = to_parent.get();
  to_child.put(t.local_address());
  t.connect({"", peer});
  CHECK_EQ(to_parent.get(), std::string("up"));
  kill(pid, SIGKILL);
  CHECK_EQ(waitpid(pid, nullptr, 0), pid);
  std::vector<WriteRequest> many(100, WriteRequest{1, 1, contract::random_bytes(), 4096, 64, 1});
  CHECK_EQ(t.lane(0).post(many), 64u);
  u64 wr_ids[100];
  CHECK_EQ(t.lane(0).poll_completions(wr_ids), 64u);
  CHECK_EQ(t.lane(0).post(many), 0u);
  t.lane(0).close_peer(1);  // the engine's part, once the pid is gone
  CHECK_EQ(t.lane(0).post(many), 100u);
  // A new rank cannot map what has gone.
  auto other = Segment::create("other", 16 * kSlot);
  SharedMemoryTransport late(settings(0, *other));
  CHECK_THROWS(std::runtime_error, late.connect({"", peer}));
}

TEST(transport_shared_memory_refuses_writes_into_unmappable_spans) {
  std::vector<std::shared_ptr<Segment>> segments;
  std::vector<std::unique_ptr<Transport>> transports;
  static u8 device[4096];
  for (u32 r = 0; r < 2; ++r) {
    segments.push_back(Segment::create("span", 16 * kSlot));
    TransportSettings s = settings(r, *segments.back());
    s.local.add(Span{1 << 20, sizeof(device), device});
    s.shared_memory.span_fds.push_back(-1);
    transports.push_back(std::make_unique<SharedMemoryTransport>(s));
  }
  for (const std::string& e : contract::connect_all(transports)) CHECK_EQ(e, std::string());
  Lane& lane = transports[0]->lane(0);
  const WriteRequest good{1, 1, contract::random_bytes(), 4096, 64, 1};
  const WriteRequest bad{1, 1, contract::random_bytes(), 1 << 20, 64, 1};
  CHECK_EQ(lane.post(std::span(&good, 1)), 1u);
  CHECK_EQ(lane.post(std::span(&bad, 1)), 1u);
  PeerEvent e{};
  CHECK_EQ(lane.poll_events(std::span(&e, 1)), 1u);
  CHECK_EQ(e.code, ERANGE);
}

// A descriptor number that by now means another file of the right process.
TEST(transport_shared_memory_refuses_a_mailbox_that_is_none) {
  auto segment = Segment::create("mine", 16 * kSlot);
  auto wrong = Segment::create("wrong", 1 << 20);
  SharedMemoryTransport t(settings(0, *segment));
  try {
    t.connect({"", "shm1 " + std::to_string(getpid()) + " " + std::to_string(wrong->fd()) + " 64 "});
    CHECK(false);
  } catch (const check::Failure&) { throw; } catch (const std::runtime_error&) {
  }
  try {
    t.connect({"", "shm1 " + std::to_string(getpid()) + " " + std::to_string(wrong->fd()) + " 64"});
    CHECK(false);
  } catch (const check::Failure&) { throw; } catch (const std::runtime_error& e) {
    CHECK(std::string(e.what()).find("rank 1 has no mailbox") != std::string::npos);
  }
}

// rdma_side: one rank's transport, driven by lines on standard input, one JSON line back for each. A test starts one a
// rank and carries addresses between them; or it speaks verbs itself (tests/rdma/inside/peer.py).
//
//   address                               {"address": hex}
//   connect HEX|- HEX|- ...               one for each rank
//   fill SEED                             the pattern that writes carry: byte i of slot memory, see `pattern`
//   write PEER COUNT BYTES FIRST LIMIT_S  posts COUNT writes of BYTES with immediates FIRST, FIRST + 1, ...
//   expect COUNT LIMIT_S                  waits until COUNT immediates have come since the last `expect`
//   event LIMIT_S                         waits for the next event about a peer
//   check BYTES SEED                      how many of the first BYTES received differ from the pattern
//   renew SESSION                         a new life: new memory and a new transport, which has to connect again
//   notes, counters, close-peer PEER
//
// The first half of its memory is what writes come from, the second is where they land. Between lines it polls, as a
// proxy's worker would.
#include <poll.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <sstream>

#include "memory/segment.h"
#include "rdma/native/options.h"

namespace uccl::testing {
namespace {

using Clock = std::chrono::steady_clock;
constexpr u64 kBase = 4096;  // of the memory in the rank's flat space
constexpr u64 kPollsBeforeNap = 64;
constexpr long kNapNs = 50'000;  // EngineSettings::nap_ns

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }
u8 pattern(u64 i, u64 seed) { return static_cast<u8>(i * 31 + (i >> 8) * 17 + seed); }

std::string hex(const std::string& bytes) {
  static const char digits[] = "0123456789abcdef";
  std::string out;
  for (const char c : bytes) {
    out += digits[static_cast<u8>(c) >> 4];
    out += digits[c & 15];
  }
  return out;
}

std::string unhex(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    out += static_cast<char>(std::stoul(text.substr(i, 2), nullptr, 16));
  return out;
}

class Side {
 public:
  explicit Side(const Options& o) : options_(o) { renew(o.number("session")); }

  // As after `Buffer.recover`: nothing of the life before is reached by who still knows its addresses.
  std::string renew(u64 session) {
    const Options& o = options_;
    transport_.reset();
    segment_ = Segment::create("rdma-side", o.number("bytes"));
    connected_ = false;
    arrived_ = sum_ = completed_ = 0;
    events_.clear();
    TransportSettings t;
    t.rank = o.small("rank");
    t.num_ranks = o.small("ranks");
    t.session = session;
    t.secret = std::string(32, o.text("secret")[0]);
    t.local.add(Span{kBase, segment_->bytes(), memory()});
    t.shared_memory.span_fds.push_back(segment_->fd());
    t.fabric = fabric_of(o, o.text("device"));
    t.max_in_flight = o.small("in_flight");
    t.connect_timeout_ns = o.number("connect_s") * 1'000'000'000ull;
    transport_ = make_transport(o.text("family"), t);
    return "{}";
  }

  std::string obey(const std::string& line) {
    std::istringstream in(line);
    std::string what;
    in >> what;
    if (what == "address") return "{\"address\": \"" + hex(transport_->local_address()) + "\"}";
    if (what == "connect") return connect(in);
    if (what == "fill") return fill(next(in));
    if (what == "write") return write(in);
    if (what == "expect") return expect(in);
    if (what == "event") return event(next(in));
    if (what == "check") return check(in);
    if (what == "renew") return renew(next(in));
    if (what == "notes") return notes();
    if (what == "counters") return counters();
    if (what == "close-peer") {
      transport_->lane(0).close_peer(static_cast<u32>(next(in)));
      return "{}";
    }
    throw std::invalid_argument("no command '" + what + "'");
  }

  // Like a proxy's worker, which naps after a while without work: on few processors, whoever spins takes them from
  // those who work.
  void poll_or_rest() {
    const u64 before = arrived_ + completed_ + events_.size();
    poll();
    if (arrived_ + completed_ + events_.size() != before) {
      idle_polls_ = 0;
    } else if (++idle_polls_ < kPollsBeforeNap) {
      sched_yield();
    } else {
      const timespec nap{0, kNapNs};
      nanosleep(&nap, nullptr);
    }
  }

  void poll() {
    if (!connected_) return;
    Lane& lane = transport_->lane(0);
    Arrival arrivals[64];
    PeerEvent events[8];
    for (std::size_t n = lane.poll_arrivals(arrivals), i = 0; i < n; ++i) {
      if (arrived_ == 0 || arrivals[i].immediate < lowest_) lowest_ = arrivals[i].immediate;
      if (arrived_ == 0 || arrivals[i].immediate > highest_) highest_ = arrivals[i].immediate;
      ++arrived_;
      sum_ += arrivals[i].immediate;
      from_ = arrivals[i].peer;
    }
    u64 wr_ids[64];
    completed_ += lane.poll_completions(wr_ids);
    for (std::size_t n = lane.poll_events(events), i = 0; i < n; ++i) events_.push_back(events[i]);
  }

 private:
  static u64 next(std::istringstream& in) {
    u64 value = 0;
    if (!(in >> value)) throw std::invalid_argument("a number is missing");
    return value;
  }
  u8* memory() { return static_cast<u8*>(segment_->data()); }
  u64 half() const { return segment_->bytes() / 2; }

  std::string connect(std::istringstream& in) {
    std::vector<std::string> addresses;
    for (std::string text; in >> text;) addresses.push_back(text == "-" ? "" : unhex(text));
    const auto begin = Clock::now();
    transport_->connect(addresses);
    connected_ = true;
    return "{\"seconds\": " + std::to_string(since(begin)) + "}";
  }

  std::string fill(u64 seed) {
    for (u64 i = 0; i < half(); ++i) memory()[i] = pattern(i, seed);
    return "{}";
  }

  std::string write(std::istringstream& in) {
    const u64 peer = next(in), count = next(in), bytes = next(in), first = next(in), limit_s = next(in);
    if (bytes > half()) throw std::invalid_argument("a write is larger than the memory");
    const u64 slots = bytes == 0 ? 1 : half() / bytes;
    Lane& lane = transport_->lane(0);
    const auto begin = Clock::now();
    completed_ = 0;
    u64 posted = 0;
    while (completed_ < count && events_.empty() && since(begin) < static_cast<double>(limit_s)) {
      WriteRequest batch[16];
      u64 n = 0;
      for (; n < 16 && posted + n < count; ++n) {
        const u64 at = (posted + n) % slots * bytes;
        batch[n] = WriteRequest{static_cast<u32>(peer),
                                static_cast<u32>(first + posted + n),
                                memory() + at,
                                kBase + half() + at,
                                bytes,
                                posted + n};
      }
      const u64 taken = n == 0 ? 0 : lane.post(std::span(batch, n));
      if (taken != 0) lane.flush();
      posted += taken;
      if (taken != 0) idle_polls_ = 0;
      poll_or_rest();
    }
    return "{\"posted\": " + std::to_string(posted) + ", \"completed\": " + std::to_string(completed_) +
           ", \"seconds\": " + std::to_string(since(begin)) + ", \"events\": " + take_events(begin) + "}";
  }

  std::string expect(std::istringstream& in) {
    const u64 count = next(in), limit_s = next(in);
    const auto begin = Clock::now();
    while (arrived_ < count && events_.empty() && since(begin) < static_cast<double>(limit_s)) { poll_or_rest(); }
    std::ostringstream out;
    out << "{\"arrived\": " << arrived_ << ", \"sum\": " << sum_ << ", \"lowest\": " << lowest_
        << ", \"highest\": " << highest_ << ", \"from\": " << from_ << ", \"seconds\": " << since(begin)
        << ", \"events\": " << take_events(begin) << "}";
    arrived_ = sum_ = 0;
    lowest_ = highest_ = from_ = 0;
    return out.str();
  }

  std::string event(u64 limit_s) {
    const auto begin = Clock::now();
    while (events_.empty() && since(begin) < static_cast<double>(limit_s)) { poll_or_rest(); }
    return "{\"seconds\": " + std::to_string(since(begin)) + ", \"events\": " + take_events(begin) + "}";
  }

  std::string take_events(Clock::time_point begin) {
    std::string out = "[";
    for (const PeerEvent& e : events_)
      out += (out.size() > 1 ? ", " : "") + std::string("{\"peer\": ") + std::to_string(e.peer) +
             ", \"fault\": " + std::to_string(static_cast<u32>(e.fault)) +
             ", \"code\": " + std::to_string(without_nic(e.code)) +
             ", \"text\": " + quoted(explain_code(options_.text("family"), e.code)) +
             ", \"after_s\": " + std::to_string(since(begin)) + "}";
    events_.clear();
    return out + "]";
  }

  std::string check(std::istringstream& in) {
    const u64 bytes = next(in), seed = next(in);
    u64 wrong = 0;
    for (u64 i = 0; i < bytes && i < half(); ++i) wrong += memory()[half() + i] != pattern(i, seed);
    std::memset(memory() + half(), 0xee, half());
    return "{\"wrong\": " + std::to_string(wrong) + "}";
  }

  std::string notes() const {
    std::string out = "[";
    for (const Note& n : transport_->notes())
      out += (out.size() > 1 ? ", " : "") + std::string("[") + quoted(n.choice) + ", " + quoted(n.reason) + "]";
    return out + "]";
  }

  // peer, number, writes, bytes of each
  std::string queues() const {
    std::string out;
    for (const QueueCounters& c : transport_->queue_counters())
      out += (out.empty() ? "[" : ", [") + std::to_string(c.peer) + ", " + std::to_string(c.number) + ", " +
             std::to_string(c.writes) + ", " + std::to_string(c.write_bytes) + "]";
    return out;
  }

  std::string counters() {
    const LaneCounters& c = transport_->lane(0).counters();
    return "{\"writes\": " + std::to_string(c.writes) + ", \"write_bytes\": " + std::to_string(c.write_bytes) +
           ", \"arrivals\": " + std::to_string(c.arrivals) + ", \"refused\": " + std::to_string(c.refused) +
           ", \"system_calls\": " + std::to_string(c.system_calls) + ", \"queues\": [" + queues() + "]}";
  }

  const Options& options_;
  std::shared_ptr<Segment> segment_;
  std::unique_ptr<Transport> transport_;
  bool connected_ = false;
  u64 arrived_ = 0, sum_ = 0, completed_ = 0, idle_polls_ = 0;
  u32 lowest_ = 0, highest_ = 0, from_ = 0;
  std::vector<PeerEvent> events_;
};

// Reads a line without blocking the poll; false at the end of the input.
bool read_line(Side& side, std::string& pending, std::string* line) {
  for (;;) {
    const std::size_t end = pending.find('\n');
    if (end != std::string::npos) {
      *line = pending.substr(0, end);
      pending.erase(0, end + 1);
      return true;
    }
    pollfd fd{STDIN_FILENO, POLLIN, 0};
    if (::poll(&fd, 1, 0) <= 0) {
      side.poll_or_rest();
      continue;
    }
    char buffer[65536];
    const ssize_t n = read(STDIN_FILENO, buffer, sizeof(buffer));
    if (n <= 0) return false;
    pending.append(buffer, static_cast<std::size_t>(n));
  }
}

int run(int argc, char** argv) {
  auto defaults = fabric_defaults();
  defaults.merge(std::map<std::string, std::string>{{"rank", "0"},
                                                    {"ranks", "2"},
                                                    {"session", "7"},
                                                    {"secret", "s"},
                                                    {"bytes", "4194304"},
                                                    {"in_flight", "64"},
                                                    {"connect_s", "30"}});
  const Options o(argc, argv, std::move(defaults));
  Side side(o);
  std::string pending, line;
  while (read_line(side, pending, &line)) {
    std::string answer;
    try {
      answer = side.obey(line);
    } catch (const std::exception& e) { answer = "{\"error\": " + quoted(e.what()) + "}"; }
    std::printf("%s\n", answer.c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace uccl::testing

int main(int argc, char** argv) {
  try {
    return uccl::testing::run(argc, argv);
  } catch (const std::exception& e) {
    std::printf("{\"error\": %s}\n", uccl::testing::quoted(e.what()).c_str());
    return 2;
  }
}

// Builds the connections of a rank: one per (peer, lane), the higher rank connects, both sides prove themselves.
// Whoever connects without the secret is dropped and counted; it costs one of a fixed number of places for at most
// `hello_timeout_ns`. Control path: one thread, one epoll instance.
#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "transport/tcp/framing.h"
#include "transport/tcp/socket.h"
#include "transport/transport.h"

namespace uccl {

struct TcpHandshakeCounters {
  u64 strangers = 0;   // wrong magic, size, proof or session
  u64 silent = 0;      // no whole hello in time
  u64 cut_short = 0;   // ended before the whole hello
  u64 duplicates = 0;  // the proof is right, but that peer's lane is connected already
  u64 misfits = 0;     // the proof is right, but ranks, lanes or version do not fit

  u64 dropped() const { return strangers + silent + cut_short; }  // without a proof
};

class TcpHandshake {
 public:
  struct Proven {
    Socket socket;
    u32 peer_window = 0;
  };

  TcpHandshake(const TransportSettings& settings, const TcpTuning& tuning, const Socket& listener,
               const std::vector<std::string>& addresses);

  // Result by peer * num_lanes + lane. Throws std::runtime_error naming the missing ranks at the deadline.
  std::vector<Proven> run();
  const TcpHandshakeCounters& counters() const { return counters_; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Step {
    kIdle,
    kConnecting,
    kSendChallenge,
    kReadChallenge,
    kSendHello,
    kReadHello,
    kSendAnswer,
    kSendConfirm,
    kReadConfirm
  };
  struct Attempt {  // ours: one per (lower peer, lane), forever; theirs: a place among max_pending
    Socket socket;
    Step step = Step::kIdle;
    bool ours = false;
    u32 peer = 0, lane = 0;
    std::size_t done = 0;  // bytes of the current message
    TcpChallenge challenge{};
    TcpHello hello{};  // theirs, once read
    TcpHello out{};
    TcpConfirm confirm{};
    Clock::time_point deadline;  // theirs: when silence ends it; ours, idle: when to try again
  };

  std::size_t index(u32 peer, u32 lane) const { return static_cast<std::size_t>(peer) * settings_.num_lanes + lane; }
  static bool nameless(const Attempt& a) {  // theirs, and without a proof so far
    return !a.ours && (a.step == Step::kSendChallenge || a.step == Step::kReadHello);
  }
  TcpHello hello_for(u32 peer, u32 lane, const Nonce& nonce) const;
  void start(Attempt& a);
  void accept_waiting();
  void advance(Attempt& a);
  bool step(Attempt& a);
  bool transfer(Attempt& a, void* message, std::size_t bytes, bool outgoing);
  bool answer_challenge(Attempt& a);
  bool check_answer(Attempt& a);
  bool check_stranger(Attempt& a);
  std::string misfit(const TcpHello& h) const;
  void finish(Attempt& a);
  void drop(Attempt& a, const std::string& why);
  void watch(const Socket& socket, u64 id);
  void keep_time(Clock::time_point now);
  [[noreturn]] void give_up() const;

  const TransportSettings& settings_;
  const TcpTuning& tuning_;
  const Socket& listener_;
  const std::vector<std::string>& addresses_;
  Socket epoll_;
  std::vector<Attempt> attempts_;  // ours first, then max_pending places for theirs
  std::size_t num_ours_ = 0, num_pending_ = 0;
  bool connections_wait_ = false;  // the listener may hold more
  std::vector<Proven> proven_;
  std::vector<std::string> reasons_;  // by peer: what happened last
  std::size_t num_wanted_ = 0, num_proven_ = 0;
  TcpHandshakeCounters counters_;
};

}  // namespace uccl

// The handshake's state machine. A step ends at any byte and goes on when epoll says so; a step that fails ends its
// attempt, and an attempt of ours is made again until the deadline.
#include "transport/tcp/handshake.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace uccl {
namespace {

constexpr u64 kListenerId = ~0ull;
constexpr auto kTick = std::chrono::milliseconds(10);         // how often deadlines are looked at
constexpr auto kRetryAfter = std::chrono::milliseconds(50);
constexpr std::size_t kMaxNamedReasons = 8;

}  // namespace

TcpHandshake::TcpHandshake(const TransportSettings& settings, const TcpTuning& tuning, const Socket& listener,
                           const std::vector<std::string>& addresses)
    : settings_(settings),
      tuning_(tuning),
      listener_(listener),
      addresses_(addresses),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      proven_(static_cast<std::size_t>(settings.num_ranks) * settings.num_lanes),
      reasons_(settings.num_ranks) {
  if (!epoll_) throw std::system_error(errno, std::generic_category(), "tcp: epoll_create1");
  for (u32 p = 0; p < settings.num_ranks; ++p) {
    if (p == settings.rank || addresses[p].empty()) continue;
    num_wanted_ += settings.num_lanes;
    reasons_[p] = p < settings.rank ? "no answer yet" : "has not connected here yet";
    for (u32 lane = 0; p < settings.rank && lane < settings.num_lanes; ++lane) {
      Attempt& a = attempts_.emplace_back();
      a.ours = true;
      a.peer = p;
      a.lane = lane;
    }
  }
  num_ours_ = attempts_.size();
  attempts_.resize(num_ours_ + tuning.max_pending);
  watch(listener_, kListenerId);
}

void TcpHandshake::watch(const Socket& socket, u64 id) {
  epoll_event e{};
  e.events = EPOLLIN | EPOLLOUT | EPOLLET;
  e.data.u64 = id;
  if (epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, socket.fd(), &e) != 0) {
    throw std::system_error(errno, std::generic_category(), "tcp: epoll_ctl");
  }
}

TcpHello TcpHandshake::hello_for(u32 peer, u32 lane, const Nonce& nonce) const {
  TcpHello h{};
  h.magic = kTcpMagic;
  h.version = kTcpVersion;
  h.bytes = sizeof(TcpHello);
  h.session = settings_.session;
  h.nonce = nonce;
  h.source = settings_.rank;
  h.destination = peer;
  h.lane = lane;
  h.num_ranks = settings_.num_ranks;
  h.num_lanes = settings_.num_lanes;
  h.max_in_flight = settings_.max_in_flight;
  return h;
}

std::vector<TcpHandshake::Proven> TcpHandshake::run() {
  const auto deadline = Clock::now() + std::chrono::nanoseconds(settings_.connect_timeout_ns);
  for (std::size_t i = 0; i < num_ours_; ++i) start(attempts_[i]);
  auto next_tick = Clock::now();
  while (num_proven_ != num_wanted_) {
    epoll_event events[64];
    const int n = epoll_wait(epoll_.fd(), events, 64, static_cast<int>(kTick.count()));
    for (int i = 0; i < n; ++i) {
      const u64 id = events[i].data.u64;
      if (id == kListenerId)
        connections_wait_ = true;
      else
        advance(attempts_[id]);
    }
    if (connections_wait_) accept_waiting();
    const auto now = Clock::now();
    if (num_proven_ != num_wanted_ && now >= deadline) give_up();
    if (now >= next_tick) {
      keep_time(now);
      next_tick = now + kTick;
    }
  }
  return std::move(proven_);
}

void TcpHandshake::start(Attempt& a) {
  a.done = 0;
  try {
    a.socket = tcp_connect(addresses_[a.peer], tuning_);
  } catch (const std::system_error& e) {  // out of descriptors, no route: perhaps later. A bad address is thrown on.
    drop(a, e.what());
    return;
  }
  a.step = Step::kConnecting;
  watch(a.socket, static_cast<u64>(&a - attempts_.data()));
}

void TcpHandshake::accept_waiting() {
  for (std::size_t i = num_ours_; i < attempts_.size(); ++i) {
    if (attempts_[i].step != Step::kIdle) continue;
    int error = 0;
    Socket s = tcp_accept(listener_.fd(), &error);
    if (!s) {
      connections_wait_ = error != 0;  // out of descriptors: looked at again at the next tick
      return;
    }
    Attempt& a = attempts_[i];
    a = Attempt{};
    a.socket = std::move(s);
    a.step = Step::kSendChallenge;
    a.challenge = TcpChallenge{kTcpMagic, kTcpVersion, new_nonce()};
    a.deadline = Clock::now() + std::chrono::nanoseconds(tuning_.hello_timeout_ns);
    watch(a.socket, i);
  }
  // Every place is taken: the rest waits in the kernel's backlog until one is given up or proven.
}

void TcpHandshake::advance(Attempt& a) {
  while (a.step != Step::kIdle && step(a)) {}
}

// One step; true when the next may begin at once.
bool TcpHandshake::step(Attempt& a) {
  switch (a.step) {
    case Step::kIdle: return false;
    case Step::kConnecting: {
      const int error = tcp_pending_error(a.socket.fd());
      if (error != 0) {
        drop(a, std::strerror(error));
        return false;
      }
      a.step = Step::kReadChallenge;  // still connecting: then reading says EAGAIN
      return true;
    }
    case Step::kSendChallenge:
      if (!transfer(a, &a.challenge, sizeof(a.challenge), true)) return false;
      a.step = Step::kReadHello;
      return true;
    case Step::kReadChallenge:
      if (!transfer(a, &a.challenge, sizeof(a.challenge), false) || !answer_challenge(a)) return false;
      a.step = Step::kSendHello;
      return true;
    case Step::kSendHello:
      if (!transfer(a, &a.out, sizeof(a.out), true)) return false;
      a.step = Step::kReadHello;
      return true;
    case Step::kReadHello:
      if (!transfer(a, &a.hello, sizeof(a.hello), false)) return false;
      if (a.ours ? !check_answer(a) : !check_stranger(a)) return false;
      a.step = a.ours ? Step::kSendConfirm : Step::kSendAnswer;
      a.confirm = TcpConfirm{kTcpMagic, a.lane};
      return true;
    case Step::kSendAnswer:
      if (!transfer(a, &a.out, sizeof(a.out), true)) return false;
      a.step = Step::kReadConfirm;
      return true;
    case Step::kSendConfirm:
      if (transfer(a, &a.confirm, sizeof(a.confirm), true)) finish(a);
      return false;
    case Step::kReadConfirm:
      if (!transfer(a, &a.confirm, sizeof(a.confirm), false)) return false;
      if (a.confirm.magic == kTcpMagic && a.confirm.lane == a.lane)
        finish(a);
      else
        drop(a, "sent a wrong confirmation");
      return false;
  }
  return false;
}

// Moves a message to its end, never a byte further: what follows belongs to the lane. True when it is whole.
bool TcpHandshake::transfer(Attempt& a, void* message, std::size_t bytes, bool outgoing) {
  while (a.done != bytes) {
    char* at = static_cast<char*>(message) + a.done;
    const ssize_t n = outgoing ? send(a.socket.fd(), at, bytes - a.done, MSG_NOSIGNAL | MSG_DONTWAIT)
                               : recv(a.socket.fd(), at, bytes - a.done, MSG_DONTWAIT);
    if (n > 0) {
      a.done += static_cast<std::size_t>(n);
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == ENOTCONN)) return false;
    counters_.cut_short += nameless(a);
    drop(a, n < 0 ? std::strerror(errno) : "closed the connection without an answer (another secret or session?)");
    return false;
  }
  a.done = 0;
  return true;
}

std::string TcpHandshake::misfit(const TcpHello& h) const {
  if (h.version != kTcpVersion) return "speaks version " + std::to_string(h.version);
  if (h.num_ranks != settings_.num_ranks) return "says " + std::to_string(h.num_ranks) + " ranks";
  if (h.num_lanes != settings_.num_lanes) return "says " + std::to_string(h.num_lanes) + " lanes";
  if (h.destination != settings_.rank) return "looks for rank " + std::to_string(h.destination) + " here";
  if (h.lane >= settings_.num_lanes) return "asks for lane " + std::to_string(h.lane);
  if (h.max_in_flight == 0) return "says max_in_flight 0";
  return "";
}

// Says who we are, and proves it to whoever sent the challenge and knows the secret; nobody else learns anything of it.
bool TcpHandshake::answer_challenge(Attempt& a) {
  if (a.challenge.magic != kTcpMagic || a.challenge.version != kTcpVersion) {
    drop(a, a.challenge.magic != kTcpMagic ? "is no UCCL-EP rank"
                                           : "speaks version " + std::to_string(a.challenge.version));
    return false;
  }
  a.out = hello_for(a.peer, a.lane, new_nonce());
  a.out.proof = connector_proof(settings_.secret, a.challenge.nonce, a.out);
  return true;
}

// The answer to our hello: the acceptor proves itself as we did, with our nonce.
bool TcpHandshake::check_answer(Attempt& a) {
  const TcpHello& h = a.hello;
  std::string wrong;
  if (h.magic != kTcpMagic || h.bytes != sizeof(TcpHello))
    wrong = "is no UCCL-EP rank";
  else if (!equal_in_constant_time(bytes_of(h.proof), bytes_of(acceptor_proof(settings_.secret, a.out, h))))
    wrong = "answered with another secret";
  else if (h.session != settings_.session)
    wrong = "is of another session";
  else if (h.source != a.peer || h.lane != a.lane)
    wrong = "answered as rank " + std::to_string(h.source);
  else
    wrong = misfit(h);
  if (wrong.empty()) return true;
  drop(a, wrong);
  return false;
}

// A hello from whoever connected. Until its proof is compared nothing of it is believed.
bool TcpHandshake::check_stranger(Attempt& a) {
  const TcpHello& h = a.hello;
  const bool friendly =
      h.magic == kTcpMagic && h.bytes == sizeof(TcpHello) &&
      equal_in_constant_time(bytes_of(h.proof), bytes_of(connector_proof(settings_.secret, a.challenge.nonce, h))) &&
      h.session == settings_.session;
  if (!friendly) {
    ++counters_.strangers;
    drop(a, "");
    return false;
  }
  const bool expected = h.source < settings_.num_ranks && h.source > settings_.rank && !addresses_[h.source].empty();
  const std::string wrong = expected ? misfit(h) : "is not expected to connect here";
  if (!wrong.empty()) {
    ++counters_.misfits;
    if (expected) reasons_[h.source] = wrong;
    drop(a, "");
    return false;
  }
  if (proven_[index(h.source, h.lane)].socket) {
    ++counters_.duplicates;
    drop(a, "");
    return false;
  }
  for (std::size_t i = num_ours_; i < attempts_.size(); ++i) {  // an earlier try of the same peer, which it gave up
    Attempt& b = attempts_[i];
    const bool answered = b.step == Step::kSendAnswer || b.step == Step::kReadConfirm;
    if (answered && b.hello.source == h.source && b.hello.lane == h.lane) drop(b, "connected again");
  }
  a.peer = h.source;
  a.lane = h.lane;
  a.out = hello_for(a.peer, a.lane, a.challenge.nonce);
  a.out.proof = acceptor_proof(settings_.secret, h, a.out);
  return true;
}

void TcpHandshake::finish(Attempt& a) {
  epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, a.socket.fd(), nullptr);
  proven_[index(a.peer, a.lane)] = Proven{std::move(a.socket), a.hello.max_in_flight};
  a.step = Step::kIdle;
  a.deadline = Clock::time_point::max();
  ++num_proven_;
  connections_wait_ = true;
}

void TcpHandshake::drop(Attempt& a, const std::string& why) {
  const bool named = a.ours || a.step == Step::kSendAnswer || a.step == Step::kReadConfirm;
  if (named && !why.empty()) reasons_[a.peer] = why;
  a.socket.reset();
  a.step = Step::kIdle;
  a.deadline = a.ours ? Clock::now() + kRetryAfter : Clock::time_point::max();
  connections_wait_ = true;  // a place is free
}

void TcpHandshake::keep_time(Clock::time_point now) {
  for (std::size_t i = 0; i < attempts_.size(); ++i) {
    Attempt& a = attempts_[i];
    if (now < a.deadline) continue;
    if (a.ours && a.step == Step::kIdle) start(a);
    // Only before the proof has come: a friend may be slow on a busy machine.
    if (nameless(a)) {
      ++counters_.silent;
      drop(a, "");
    }
  }
}

void TcpHandshake::give_up() const {
  std::string ranks, reasons;
  std::size_t named = 0;
  for (u32 p = 0; p < settings_.num_ranks; ++p) {
    bool missing = false;
    for (u32 lane = 0; lane < settings_.num_lanes; ++lane) missing |= !proven_[index(p, lane)].socket;
    if (!missing || p == settings_.rank || addresses_[p].empty()) continue;
    ranks += " " + std::to_string(p);
    if (named++ < kMaxNamedReasons) {
      reasons += "; rank " + std::to_string(p) + " at " + addresses_[p] + ": " + reasons_[p];
    }
  }
  throw std::runtime_error("tcp: rank " + std::to_string(settings_.rank) + " at " + tcp_local_address(listener_.fd()) +
                           " could not connect to rank(s)" + ranks + " within " +
                           std::to_string(settings_.connect_timeout_ns / 1000000) + " ms" + reasons);
}

}  // namespace uccl

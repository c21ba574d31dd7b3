// The data path of tcp: who may be read, who has something to send, who is owed an acknowledgement.
#include "transport/tcp/lane.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace uccl {
namespace {

constexpr int kEventsPerWait = 64;
// While connections are known to be readable the kernel is asked for news only this often.
constexpr u32 kMaxSkippedWaits = 4;

}  // namespace

TcpLane::TcpLane(const TransportSettings& settings, const TcpTuning& tuning)
    : JudgingLane(settings.num_ranks),
      local_(settings.local),
      tuning_(tuning),
      max_in_flight_(settings.max_in_flight),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      connections_(settings.num_ranks),
      inbox_(local_),
      readable_(settings.num_ranks),
      unsent_(settings.num_ranks),
      unacked_(settings.num_ranks),
      completed_(settings.num_ranks) {
  if (!epoll_) throw std::system_error(errno, std::generic_category(), "tcp: epoll_create1");
}

TcpLane::~TcpLane() {
  for (u32 p = 0; p < connections_.size(); ++p) close_peer(p);
}

void TcpLane::attach(u32 peer, Socket socket, u32 peer_window) {
  auto c = std::make_unique<TcpConnection>(peer, std::move(socket), max_in_flight_, peer_window, tuning_);
  epoll_event e{};
  // Edge-triggered, so that nothing is ever re-armed: what was reported stays in `readable_` until it is drained.
  e.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  e.data.u32 = peer;
  if (epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, c->fd(), &e) != 0) {
    throw std::system_error(errno, std::generic_category(), "tcp: epoll_ctl for rank " + std::to_string(peer));
  }
  connections_[peer] = std::move(c);
  book_.open(peer);
}

std::size_t TcpLane::take(std::span<const WriteRequest> requests) {
  std::size_t n = 0;
  for (; n < requests.size(); ++n) {
    const WriteRequest& r = requests[n];
    TcpConnection& c = *connections_[r.peer];
    if (!c.has_room()) break;
    c.push(r);
    unsent_.push(r.peer);
    ++counters_.writes;
    counters_.write_bytes += r.bytes;
  }
  return n;
}

void TcpLane::flush() {
  while (unsent_.size() != 0) send(unsent_.pop());
}

void TcpLane::send(u32 peer) {
  if (!book_.is_open(peer)) return;
  TcpConnection& c = *connections_[peer];
  if (c.blocked()) return;  // goes on when the socket reports room
  c.send(counters_);
  num_blocked_ += c.blocked();
  if (c.broken()) readable_.push(peer);  // its last words first, then its end
}

std::size_t TcpLane::poll_completions(std::span<u64> wr_ids) {
  std::size_t n = 0;
  for (std::size_t left = completed_.size(); left != 0 && n < wr_ids.size(); --left) {
    const u32 peer = completed_.pop();
    TcpConnection& c = *connections_[peer];
    while (n < wr_ids.size() && c.has_completions()) wr_ids[n++] = c.take_completion();
    if (c.has_completions()) completed_.push(peer);
  }
  return n;
}

std::size_t TcpLane::take_ready(std::span<Arrival> out) {
  std::size_t n = 0;
  while (n < out.size() && !inbox_.empty()) {
    const Arrival a = inbox_.ready[inbox_.head++];
    if (book_.state(a.peer) != PeerState::kClosed) out[n++] = a;
  }
  if (inbox_.empty()) inbox_.head = inbox_.tail = 0;
  return n;
}

std::size_t TcpLane::poll_arrivals(std::span<Arrival> out) {
  std::size_t n = take_ready(out);
  // A full `out` with more behind it needs no news, except for a socket that waits to be sent to.
  if (inbox_.empty() || num_blocked_ != 0) {
    if (readable_.size() == 0 || num_blocked_ != 0 || ++skipped_waits_ > kMaxSkippedWaits) wait_events();
  }
  for (std::size_t left = readable_.size(); left != 0 && inbox_.empty() && n < out.size(); --left) {
    receive(readable_.pop());
    n += take_ready(out.subspan(n));
  }
  send_acks();
  return n;
}

void TcpLane::wait_events() {
  skipped_waits_ = 0;
  epoll_event events[kEventsPerWait];
  ++counters_.system_calls;
  const int n = epoll_wait(epoll_.fd(), events, kEventsPerWait, 0);
  for (int i = 0; i < n; ++i) {
    const u32 peer = events[i].data.u32;
    if (!book_.is_open(peer)) continue;
    TcpConnection& c = *connections_[peer];
    if (events[i].events & EPOLLERR) c.drain_error_queue(counters_);
    if (events[i].events & (EPOLLRDHUP | EPOLLHUP)) c.expect_end();
    if (events[i].events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) readable_.push(peer);
    if ((events[i].events & EPOLLOUT) && c.blocked()) {
      c.unblock();
      --num_blocked_;
      send(peer);
    }
  }
}

void TcpLane::receive(u32 peer) {
  if (!book_.is_open(peer)) return;
  TcpConnection& c = *connections_[peer];
  int code = 0;
  const TcpStatus status = c.receive(inbox_, counters_, &code);
  if (c.has_completions()) completed_.push(peer);
  if (c.ack_due()) unacked_.push(peer);
  if (status == TcpStatus::kMore) readable_.push(peer);
  if (status == TcpStatus::kLost) lose(peer, PeerFault::kLost, code, 0);
  if (status == TcpStatus::kProtocol) lose(peer, PeerFault::kProtocol, code, EPROTO);
}

void TcpLane::send_acks() {
  for (std::size_t left = unacked_.size(); left != 0; --left) {
    const u32 peer = unacked_.pop();
    if (!book_.is_open(peer)) continue;
    TcpConnection& c = *connections_[peer];
    if (c.poll_ack()) {
      c.want_ack();
      send(peer);
    }
    if (c.ack_due()) unacked_.push(peer);
  }
}

void TcpLane::part(u32 peer, u32 farewell) {
  TcpConnection& c = *connections_[peer];
  num_blocked_ -= c.blocked();
  c.unblock();
  c.close(farewell, counters_);
}

// After the arrivals that came before them, so that a peer's last words are heard before its end is.
std::size_t TcpLane::poll_events(std::span<PeerEvent> out) { return inbox_.empty() ? book_.take_events(out) : 0; }

}  // namespace uccl

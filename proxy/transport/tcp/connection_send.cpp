// The sending half of a connection: up to 64 pieces of memory a system call, straight from where they lie.
#include <sys/socket.h>
// clang-format off: errqueue.h uses timespec and does not include it
#include <time.h>
#include <linux/errqueue.h>
// clang-format on

#include <algorithm>
#include <bit>
#include <cerrno>

#include "transport/tcp/connection.h"

namespace uccl {

TcpConnection::TcpConnection(u32 peer, Socket socket, u32 window, u32 peer_window, const TcpTuning& tuning)
    : peer_(peer),
      socket_(std::move(socket)),
      peer_window_(peer_window),
      zerocopy_bytes_(tuning.zerocopy_bytes),
      max_send_bytes_(tuning.max_send_bytes),
      zerocopy_(tuning.zerocopy_bytes != 0 && tcp_enable_zerocopy(socket_.fd())),
      window_(window),
      slots_(std::bit_ceil(window)) {}

void TcpConnection::push(const WriteRequest& r) {
  Slot& s = slot(posted_++);
  const u32 kind = static_cast<u32>(FrameKind::kWrite);
  s.header = FrameHeader{kind, r.immediate, r.remote_offset, static_cast<u32>(r.bytes), 0};
  s.source = r.source;
  s.wr_id = r.wr_id;
}

void TcpConnection::Batch::cut(u64 limit) {
  for (; bytes > limit; --num_parts) {
    iovec& last = parts[num_parts - 1];
    const u64 over = std::min<u64>(bytes - limit, last.iov_len);
    last.iov_len -= over;
    bytes -= over;
    if (last.iov_len != 0) return;
  }
}

// The order of bytes is fixed by what was begun: a control frame that is partly sent, else the write that is partly
// sent, then whole writes. An acknowledgement rides on the first write that has not begun; alone when there is none.
void TcpConnection::fill(Batch& b) {
  bool acknowledged = received_ == ack_sent_;
  if (control_offset_ != 0) {
    b.add(reinterpret_cast<const u8*>(&control_) + control_offset_, sizeof(control_) - control_offset_);
    b.control = true;
  }
  u64 i = sent_;
  for (; i != posted_ && b.num_parts + 3 <= kMaxIovecs; ++i) {
    Slot& s = slot(i);
    u64 skip = i == sent_ ? slot_offset_ : 0;
    if (skip == 0) {
      s.header.acked = static_cast<u32>(received_);
      acknowledged = true;
    }
    if (skip < sizeof(FrameHeader)) {
      b.add(reinterpret_cast<const u8*>(&s.header) + skip, sizeof(FrameHeader) - skip);
      skip = sizeof(FrameHeader);
    }
    const u64 gone = skip - sizeof(FrameHeader);
    if (s.header.bytes != 0) b.add(s.source + gone, s.header.bytes - gone);
  }
  b.slots_end = i;
  if (b.control || i != posted_) return;
  if (acknowledged) {
    control_wanted_ = false;
  } else if (control_wanted_) {
    control_ = FrameHeader{static_cast<u32>(FrameKind::kAck), 0, 0, 0, static_cast<u32>(received_)};
    b.add(&control_, sizeof(control_));
    b.control = true;
  }
}

void TcpConnection::account(const Batch& b, u64 sent) {
  const auto control = [&] {
    const u64 n = std::min<u64>(sent, sizeof(control_) - control_offset_);
    control_offset_ += n;
    sent -= n;
    if (control_offset_ != sizeof(control_)) return;
    control_offset_ = 0;
    control_wanted_ = false;
    ack_sent_ += static_cast<u32>(control_.acked - static_cast<u32>(ack_sent_));
  };
  const bool control_first = control_offset_ != 0;
  if (control_first) control();
  while (sent != 0 && sent_ != b.slots_end) {
    const FrameHeader& h = slot(sent_).header;
    const u64 whole = sizeof(FrameHeader) + h.bytes;
    const u64 n = std::min(sent, whole - slot_offset_);
    slot_offset_ += n;
    sent -= n;
    if (slot_offset_ >= sizeof(FrameHeader)) ack_sent_ += static_cast<u32>(h.acked - static_cast<u32>(ack_sent_));
    if (slot_offset_ == whole) {
      slot_offset_ = 0;
      ++sent_;
    }
  }
  if (sent != 0 && b.control && !control_first) control();
}

// Only a batch of large writes: pinning pages does not pay for small ones. Never with control_ in it, whose bytes
// change while the kernel may still look at them; a slot's do not before it is acknowledged.
bool TcpConnection::may_skip_copy(const Batch& b) const {
  return zerocopy_ && !b.control && b.bytes >= zerocopy_bytes_ * (b.slots_end - sent_);
}

void TcpConnection::send(LaneCounters& counters) {
  while (broken_ == 0) {
    Batch batch;
    fill(batch);
    if (batch.num_parts == 0) return;
    if (batch.bytes > max_send_bytes_) batch.cut(max_send_bytes_);
    msghdr m{};
    m.msg_iov = batch.parts;
    m.msg_iovlen = static_cast<std::size_t>(batch.num_parts);
    const bool skip_copy = may_skip_copy(batch);
    ++counters.system_calls;
    const ssize_t n = sendmsg(socket_.fd(), &m, MSG_NOSIGNAL | MSG_DONTWAIT | (skip_copy ? MSG_ZEROCOPY : 0));
    if (n >= 0) {
      account(batch, static_cast<u64>(n));
      continue;  // after a short write too: only EAGAIN promises that the socket will report room
    }
    if (errno == EINTR) continue;
    if (errno == ENOBUFS && skip_copy) {  // the limit of pinned pages: copy from now on
      zerocopy_ = false;
      continue;
    }
    if (errno == EAGAIN) {
      blocked_ = true;
      return;
    }
    broken_ = errno;  // reported by receive(), after what the peer had sent before
  }
}

bool TcpConnection::poll_ack() {
  const bool quiet = quiet_;
  quiet_ = true;
  if (!ack_due()) {
    unacked_bytes_ = 0;
    return false;
  }
  return quiet || (received_ - ack_sent_) * 4 >= peer_window_ || unacked_bytes_ >= 256 << 10;
}

void TcpConnection::drain_error_queue(LaneCounters& counters) {
  for (;;) {
    alignas(cmsghdr) u8 control[128];
    u8 nothing = 0;
    iovec data{&nothing,
               1};  // no notification has data; QEMU's user emulation answers a message without room by itself
    msghdr m{};
    m.msg_iov = &data;
    m.msg_iovlen = 1;
    m.msg_control = control;
    m.msg_controllen = sizeof(control);
    ++counters.system_calls;
    if (recvmsg(socket_.fd(), &m, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return;
    for (cmsghdr* c = CMSG_FIRSTHDR(&m); c != nullptr; c = CMSG_NXTHDR(&m, c)) {
      const auto* e = reinterpret_cast<const sock_extended_err*>(CMSG_DATA(c));
      // The kernel copied after all (loopback, or a device that cannot gather): asking again only costs notifications.
      if (e->ee_origin == SO_EE_ORIGIN_ZEROCOPY && (e->ee_code & SO_EE_CODE_ZEROCOPY_COPIED)) zerocopy_ = false;
    }
  }
}

void TcpConnection::close(u32 farewell, LaneCounters& counters) {
  if (!socket_) return;
  if (slot_offset_ == 0) {
    struct {
      FrameHeader begun, goodbye;
    } last{control_, {static_cast<u32>(FrameKind::kGoodbye), farewell, 0, 0, static_cast<u32>(received_)}};
    const u8* from = control_offset_ == 0 ? reinterpret_cast<const u8*>(&last.goodbye)
                                          : reinterpret_cast<const u8*>(&last.begun) + control_offset_;
    const std::size_t n = static_cast<std::size_t>(reinterpret_cast<const u8*>(&last + 1) - from);
    ++counters.system_calls;
    // Lost when the socket is full; the peer then reports the end of the stream instead.
    (void)!::send(socket_.fd(), from, n, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  shutdown(socket_.fd(), SHUT_WR);
  // Unread bytes would turn the close into a reset, which may overtake the goodbye.
  u8 discard[4096];
  for (int i = 0; i < 256; ++i) {
    ++counters.system_calls;
    if (recv(socket_.fd(), discard, sizeof(discard), MSG_DONTWAIT) <= 0) break;
  }
  socket_.reset();
}

}  // namespace uccl

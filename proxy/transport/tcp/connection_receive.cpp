// The receiving half of a connection. Small frames are read many at a time into a staging buffer and copied; the rest
// of a large payload is read straight to where it belongs, after its bounds were checked.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/tcp/connection.h"
#include "wire/limits.h"

namespace uccl {
namespace {

// After a payload of at least this size only the next header is read along with it, so that the next payload goes to
// its place without a copy. Below, one more system call costs more than copying the bytes.
constexpr u64 kDirectBytes = 16 << 10;

}  // namespace

TcpStatus TcpConnection::receive(TcpInbox& inbox, LaneCounters& counters, int* code) {
  iovec parts[2];
  int num_parts = 0;
  const u64 payload = payload_left_;
  if (payload != 0) parts[num_parts++] = {payload_, payload};
  const std::size_t aside =
      last_payload_ >= kDirectBytes ? sizeof(FrameHeader) - (payload != 0 ? 0 : header_have_) : kTcpStagingBytes;
  parts[num_parts++] = {inbox.staging.data(), aside};
  msghdr m{};
  m.msg_iov = parts;
  m.msg_iovlen = static_cast<std::size_t>(num_parts);
  ssize_t n;
  do {
    ++counters.system_calls;
    n = recvmsg(socket_.fd(), &m, MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  if (n < 0) {
    if (errno == EAGAIN && broken_ == 0) return TcpStatus::kDrained;
    *code = broken_ != 0 ? broken_ : errno;
    return TcpStatus::kLost;
  }
  if (n == 0) {  // an end without a goodbye
    *code = broken_ != 0 ? broken_ : ECONNRESET;
    return TcpStatus::kLost;
  }
  u64 got = static_cast<u64>(n);
  if (payload != 0) {
    const u64 direct = std::min(got, payload);
    payload_ += direct;
    payload_left_ -= direct;
    got -= direct;
    if (payload_left_ == 0) finish_write(inbox, counters);
  }
  const TcpStatus status = parse(inbox, counters, inbox.staging.data(), got, code);
  if (status != TcpStatus::kMore) return status;
  // Less than was asked for: the socket is empty, and the next byte will be reported.
  const bool full = static_cast<u64>(n) == payload + aside;
  return full || ending_ || broken_ != 0 ? TcpStatus::kMore : TcpStatus::kDrained;
}

TcpStatus TcpConnection::parse(TcpInbox& inbox, LaneCounters& counters, const u8* data, std::size_t bytes, int* code) {
  while (bytes != 0) {
    const std::size_t n = std::min(bytes, sizeof(FrameHeader) - header_have_);
    std::memcpy(reinterpret_cast<u8*>(&header_) + header_have_, data, n);
    header_have_ += n;
    data += n;
    bytes -= n;
    if (header_have_ != sizeof(FrameHeader)) break;
    header_have_ = 0;
    const TcpStatus status = begin_frame(inbox, counters, code);
    if (status != TcpStatus::kMore) return status;
    if (payload_left_ == 0) continue;
    const u64 copied = std::min<u64>(bytes, payload_left_);
    std::memcpy(payload_, data, copied);
    payload_ += copied;
    payload_left_ -= copied;
    data += copied;
    bytes -= copied;
    if (payload_left_ == 0) finish_write(inbox, counters);
  }
  return TcpStatus::kMore;
}

// A whole header is in header_. Nothing of its payload has been looked at yet.
TcpStatus TcpConnection::begin_frame(TcpInbox& inbox, LaneCounters& counters, int* code) {
  const auto refuse = [&](int why) {
    ++counters.refused;
    *code = why;
    return TcpStatus::kProtocol;
  };
  if (!take_ack(header_.acked)) return refuse(EBADMSG);
  switch (static_cast<FrameKind>(header_.kind)) {
    case FrameKind::kAck: return header_.bytes == 0 ? TcpStatus::kMore : refuse(EBADMSG);
    case FrameKind::kGoodbye: *code = static_cast<int>(header_.immediate); return TcpStatus::kLost;
    case FrameKind::kWrite: break;
    default: return refuse(EBADMSG);
  }
  if (header_.bytes > kMaxWriteBytes) return refuse(EMSGSIZE);
  last_payload_ = header_.bytes;
  if (header_.bytes == 0) {
    finish_write(inbox, counters);
    return TcpStatus::kMore;
  }
  payload_ = inbox.local.resolve(header_.remote_offset, header_.bytes);
  if (payload_ == nullptr) return refuse(ERANGE);
  payload_left_ = header_.bytes;
  return TcpStatus::kMore;
}

void TcpConnection::finish_write(TcpInbox& inbox, LaneCounters& counters) {
  ++received_;
  unacked_bytes_ += header_.bytes;
  quiet_ = false;
  ++counters.arrivals;
  counters.arrival_bytes += header_.bytes;
  inbox.push(Arrival{header_.immediate, peer_});
}

// `acked` is cumulative; one that was stamped earlier than the last is old news. More than was sent is a lie.
bool TcpConnection::take_ack(u32 acked) {
  const u32 ahead = acked - static_cast<u32>(acked_);
  if (ahead > 0x7fffffffu) return true;
  if (ahead > sent_ - acked_) return false;
  acked_ += ahead;
  return true;
}

}  // namespace uccl

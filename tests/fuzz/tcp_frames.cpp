// A proven peer that sends anything: whatever it says, bytes land inside the region only, an immediate comes only after
// a whole frame, nothing is allocated, and what no correct peer sends ends the connection and is counted.
//
// Input: [0] how the stream is cut; then the stream itself.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "fuzz/allowance.h"
#include "fuzz/targets.h"
#include "native/check.h"
#include "transport/tcp/connection.h"

namespace uccl::fuzz {
namespace {

constexpr u64 kBase = 4096, kRegion = 64 << 10, kGuard = 4096;
constexpr u8 kUntouched = 0xa5;

struct Door {
  Door() : memory(kGuard + kRegion + kGuard, kUntouched), inbox(space) {
    space.add(Span{kBase, kRegion, memory.data() + kGuard});
  }
  std::vector<u8> memory;
  AddressSpace space;
  TcpInbox inbox;
};

bool guards_hold(const Door& door) {
  const auto whole = [](const u8* from) {
    return std::all_of(from, from + kGuard, [](u8 b) { return b == kUntouched; });
  };
  return whole(door.memory.data()) && whole(door.memory.data() + kGuard + kRegion);
}

// What the stream says by the rules of framing.h, read the plain way.
struct Reference {
  u64 arrivals = 0;
  bool ended = false, refused = false;
};
Reference read_plainly(Input stream) {
  Reference r;
  for (std::size_t at = 0; at + sizeof(FrameHeader) <= stream.size();) {
    FrameHeader h;
    std::memcpy(&h, &stream[at], sizeof(h));
    at += sizeof(h);
    const bool write = h.kind == static_cast<u32>(FrameKind::kWrite), ack = h.kind == static_cast<u32>(FrameKind::kAck);
    const bool goodbye = h.kind == static_cast<u32>(FrameKind::kGoodbye);
    const bool lies = h.acked != 0 && h.acked <= 0x7fffffffu;  // nothing was ever sent to it
    const bool lands = h.bytes == 0 ||
                       (h.bytes <= kRegion && h.remote_offset >= kBase && h.remote_offset - kBase <= kRegion - h.bytes);
    r.refused = lies || (!write && !ack && !goodbye) || (ack && h.bytes != 0) || (write && !lands);
    r.ended = r.refused || goodbye;
    if (r.ended) return r;
    if (!write) continue;
    if (stream.size() - at < h.bytes) return r;
    at += h.bytes;
    ++r.arrivals;
  }
  return r;
}

}  // namespace

void tcp_frames(Input input) {
  if (input.empty()) return;
  static Door door;  // of all inputs: nothing of it is written but the region
  const Input stream = input.subspan(1, std::min<std::size_t>(input.size() - 1, 32 << 10));
  int pair[2];
  CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
  const Socket other(pair[0]);
  auto connection = std::make_unique<TcpConnection>(1, Socket(pair[1]), 8, 8, TcpTuning{.zerocopy_bytes = 0});
  LaneCounters counters;
  TcpStatus status = TcpStatus::kDrained;
  u64 arrivals = 0;
  int code = 0;
  const Allowance nothing(0);
  const std::size_t step = input[0] == 0 ? 1u << 20 : input[0];
  for (std::size_t at = 0; at < stream.size() && (status == TcpStatus::kDrained || status == TcpStatus::kMore);) {
    const std::size_t n = std::min(step, stream.size() - at);
    if (::send(other.fd(), &stream[at], n, MSG_NOSIGNAL) != static_cast<ssize_t>(n)) break;
    at += n;
    do {
      status = connection->receive(door.inbox, counters, &code);
      for (; !door.inbox.empty(); ++arrivals) CHECK_EQ(door.inbox.ready[door.inbox.head++].peer, 1u);
      door.inbox.head = door.inbox.tail = 0;
    } while (status == TcpStatus::kMore);
  }
  nothing.check("a peer's frames");
  count_work(arrivals);
  const Reference expected = read_plainly(stream);
  CHECK_EQ(arrivals, expected.arrivals);
  CHECK_EQ(status == TcpStatus::kProtocol, expected.refused);
  CHECK_EQ(status == TcpStatus::kLost || status == TcpStatus::kProtocol, expected.ended);
  CHECK_EQ(counters.refused, u64{expected.refused});
  CHECK(guards_hold(door));
}

std::vector<std::vector<u8>> tcp_frames_seeds() {
  std::vector<std::vector<u8>> all;
  const auto add = [&](u8 cut, std::vector<FrameHeader> frames) {
    std::vector<u8> s = {cut};
    for (const FrameHeader& h : frames) {
      const auto* p = reinterpret_cast<const u8*>(&h);
      s.insert(s.end(), p, p + sizeof(h));
      s.resize(s.size() + std::min<u32>(h.bytes, 4096), 7);
    }
    all.push_back(s);
  };
  const u32 write = static_cast<u32>(FrameKind::kWrite), ack = static_cast<u32>(FrameKind::kAck);
  const u32 goodbye = static_cast<u32>(FrameKind::kGoodbye);
  add(0, {{write, 1, kBase, 16, 0}, {write, 2, kBase + 32, 0, 0}, {ack, 0, 0, 0, 0}, {goodbye, 7, 0, 0, 0}});
  add(3, {{write, 1, kBase + kRegion - 16, 16, 0}, {write, 2, kBase + kRegion - 15, 16, 0}});
  add(24, {{write, 1, ~0ull, 1, 0}});
  add(0, {{write, 1, kBase, ~0u, 0}});
  add(0, {{write, 1, kBase, 48, ~0u}, {ack, 0, 0, 0, 1}});
  add(25, {{ack, 0, 0, 1, 0}});
  return all;
}

}  // namespace uccl::fuzz

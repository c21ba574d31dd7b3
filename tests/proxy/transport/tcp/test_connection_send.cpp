// The sender: what leaves is exactly the frames, wherever the socket cuts them; acknowledgements ride, and are never
// lost or starved; a goodbye comes only between frames.
#include <sys/socket.h>

#include <cerrno>

#include "native/check.h"
#include "proxy/transport/contract.h"
#include "proxy/transport/tcp/raw_peer.h"
#include "transport/tcp/connection.h"

using namespace uccl;

namespace {

struct Bench {
  explicit Bench(u32 window = 8, int buffer = 0, u64 max_send_bytes = ~0ull) : inbox(space) {
    space.add(Span{0, sizeof(memory), memory});
    int pair[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    if (buffer) setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer));
    other = Socket(pair[0]);
    TcpTuning tuning;
    tuning.max_send_bytes = max_send_bytes;
    connection = std::make_unique<TcpConnection>(1, Socket(pair[1]), window, 8, tuning);
  }
  void push(u32 i, u64 bytes) {
    CHECK(connection->has_room());
    connection->push(WriteRequest{1, i, contract::random_bytes() + i, 1000 + i, bytes, 50 + i});
  }
  // Takes what is in the socket, at most `limit` bytes.
  std::size_t take(std::size_t limit) {
    std::vector<u8> part(limit);
    const ssize_t n = recv(other.fd(), part.data(), limit, MSG_DONTWAIT);
    if (n <= 0) return 0;
    raw::append(stream, part.data(), static_cast<std::size_t>(n));
    return static_cast<std::size_t>(n);
  }
  void take_all() {
    while (take(1 << 16) != 0) {}
  }
  // The other side sends `count` empty writes, or acknowledges.
  void feed(const FrameHeader& h, u32 count = 1) {
    for (u32 i = 0; i < count; ++i) CHECK(raw::put(other.fd(), &h, sizeof(h)));
    int code = 0;
    for (;;) {
      const TcpStatus s = connection->receive(inbox, counters, &code);
      arrivals += inbox.tail;
      inbox.head = inbox.tail = 0;
      if (s == TcpStatus::kMore) continue;
      last = s;
      return;
    }
  }
  FrameHeader header_at(std::size_t at) const {
    FrameHeader h;
    CHECK(at + sizeof(h) <= stream.size());
    std::memcpy(&h, &stream[at], sizeof(h));
    return h;
  }

  u8 memory[64] = {};
  AddressSpace space;
  TcpInbox inbox;
  Socket other;
  std::unique_ptr<TcpConnection> connection;
  LaneCounters counters;
  std::vector<u8> stream;
  std::size_t arrivals = 0;
  TcpStatus last = TcpStatus::kDrained;
};

const FrameHeader kEmptyWrite = raw::write_header(0, 0, 0);
constexpr u32 kAck = static_cast<u32>(FrameKind::kAck), kGoodbye = static_cast<u32>(FrameKind::kGoodbye),
              kWrite = static_cast<u32>(FrameKind::kWrite);

}  // namespace

TEST(transport_tcp_send_batches_writes_in_one_call) {
  Bench b(64);
  for (u32 i = 0; i < 30; ++i) b.push(i, 8);
  b.connection->send(b.counters);
  CHECK_EQ(b.counters.system_calls, 1u);
  b.take_all();
  CHECK_EQ(b.stream.size(), 30u * 32);
  for (u32 i = 0; i < 30; ++i) {
    const FrameHeader h = b.header_at(i * 32);
    CHECK_EQ(h.kind, kWrite);
    CHECK_EQ(h.immediate, i);
    CHECK_EQ(h.remote_offset, 1000ull + i);
    CHECK(std::memcmp(&b.stream[i * 32 + 24], contract::random_bytes() + i, 8) == 0);
  }
}

// A socket of a few kilobytes is filled and emptied in odd pieces, so that it is full inside headers, payloads and
// acknowledgements; more writes and acknowledgements become due in between.
TEST(transport_tcp_send_survives_partial_writes_at_any_byte) {
  u32 begun_inside = 0;
  for (u64 seed = 0; seed < 100; ++seed) {
    Bench b(16, 1, seed < 20 ? ~0ull : 1 + seed % 40);
    std::vector<u64> sizes;
    u64 k = seed;
    u32 due = 0, pushed = 0, completed = 0;
    while (completed < 60) {
      k = contract::mix(k, 3);
      while (pushed < 60 && b.connection->has_room() && (k >> 40) % 4 == 0) {
        sizes.push_back(contract::mix(seed, pushed) % (pushed % 4 ? 50 : seed < 20 ? 9000 : 200));
        b.push(pushed, sizes.back());
        ++pushed;
        k = contract::mix(k, 4);
      }
      if (k % 3 == 0) {
        b.feed(kEmptyWrite);
        ++due;
        b.connection->want_ack();
      }
      b.connection->unblock();
      b.connection->send(b.counters);
      begun_inside += b.connection->blocked();
      if (b.take(1 + (k >> 8) % 3000) == 0 && !b.connection->blocked()) {
        b.feed({kAck, 0, 0, 0, pushed});  // everything was taken
        CHECK(b.last == TcpStatus::kDrained);
      }
      while (b.connection->has_completions()) CHECK_EQ(b.connection->take_completion(), 50ull + completed++);
    }
    do {
      b.connection->want_ack();
      b.connection->unblock();
      b.connection->send(b.counters);
      b.take_all();
    } while (b.connection->blocked());
    std::size_t at = 0;
    u32 writes = 0, acked = 0;
    while (at < b.stream.size()) {
      const FrameHeader h = b.header_at(at);
      CHECK(h.acked >= acked && h.acked <= due);
      acked = h.acked;
      at += sizeof(h);
      if (h.kind == kAck) continue;
      CHECK_EQ(h.kind, kWrite);
      CHECK_EQ(h.immediate, writes);
      CHECK_EQ(h.bytes, sizes[writes]);
      CHECK(std::memcmp(&b.stream[at], contract::random_bytes() + writes, h.bytes) == 0);
      at += h.bytes;
      ++writes;
    }
    CHECK_EQ(writes, 60u);
    CHECK_EQ(acked, due);
  }
  CHECK(begun_inside > 0);
}

TEST(transport_tcp_send_acknowledgement_rides_on_a_write) {
  Bench b;
  b.feed(kEmptyWrite, 3);
  CHECK_EQ(b.arrivals, 3u);
  CHECK(b.connection->ack_due());
  b.push(0, 8);
  b.connection->want_ack();
  b.connection->send(b.counters);
  b.take_all();
  CHECK_EQ(b.stream.size(), 32u);  // no frame of its own
  CHECK_EQ(b.header_at(0).acked, 3u);
  CHECK(!b.connection->ack_due());
}

TEST(transport_tcp_send_acknowledges_a_busy_stream_in_quarters_of_the_window) {
  Bench b;  // the peer's window is 8
  b.feed(kEmptyWrite, 1);
  CHECK(!b.connection->poll_ack());  // more may be coming
  CHECK(b.connection->poll_ack());   // nothing came
  b.connection->want_ack();
  b.connection->send(b.counters);
  CHECK(!b.connection->poll_ack());
  b.feed(kEmptyWrite, 2);
  CHECK(b.connection->poll_ack());  // a quarter
  b.connection->want_ack();
  b.connection->send(b.counters);
  b.take_all();
  CHECK_EQ(b.stream.size(), 48u);
  CHECK_EQ(b.header_at(0).kind, kAck);
  CHECK_EQ(b.header_at(0).acked, 1u);
  CHECK_EQ(b.header_at(24).acked, 3u);
}

TEST(transport_tcp_send_completes_only_what_is_acknowledged) {
  Bench b(4);
  for (u32 i = 0; i < 4; ++i) b.push(i, 8);
  CHECK(!b.connection->has_room());
  b.connection->send(b.counters);
  CHECK(!b.connection->has_completions());
  b.feed({kAck, 0, 0, 0, 3});
  for (u32 i = 0; i < 3; ++i) CHECK_EQ(b.connection->take_completion(), 50ull + i);
  CHECK(!b.connection->has_completions());
  CHECK(b.connection->has_room());
  b.feed({kAck, 0, 0, 0, 2});  // old news
  CHECK(b.last == TcpStatus::kDrained);
  CHECK(!b.connection->has_completions());
  b.feed({kAck, 0, 0, 0, 5});  // a lie
  CHECK(b.last == TcpStatus::kProtocol);
}

TEST(transport_tcp_send_says_goodbye_between_frames) {
  Bench b;
  b.push(0, 8);
  b.connection->send(b.counters);
  b.feed(kEmptyWrite);
  b.push(1, 8);  // never flushed: dropped
  b.connection->close(71, b.counters);
  CHECK_EQ(b.connection->fd(), -1);
  b.take_all();
  CHECK_EQ(b.stream.size(), 32u + 24);
  CHECK_EQ(b.header_at(32).kind, kGoodbye);
  CHECK_EQ(b.header_at(32).immediate, 71u);
  CHECK_EQ(b.header_at(32).acked, 1u);
}

TEST(transport_tcp_send_says_nothing_inside_a_frame) {
  Bench b(8, 1);
  b.push(0, 1 << 20);
  b.connection->send(b.counters);
  CHECK(b.connection->blocked());
  b.take(1 << 20);  // room again, but the frame is not at its end
  const std::size_t before = b.stream.size();
  b.connection->close(0, b.counters);
  CHECK_EQ(b.take(100), 0u);
  CHECK_EQ(b.stream.size(), before);
}

TEST(transport_tcp_send_error_is_reported_after_the_last_words) {
  Bench b;
  CHECK(raw::put(b.other.fd(), &kEmptyWrite, sizeof(kEmptyWrite)));
  b.other.reset();
  b.push(0, 8);
  b.connection->send(b.counters);
  CHECK(b.connection->broken());
  int code = 0;
  CHECK(b.connection->receive(b.inbox, b.counters, &code) == TcpStatus::kMore);
  CHECK_EQ(b.inbox.tail, 1u);
  CHECK(b.connection->receive(b.inbox, b.counters, &code) == TcpStatus::kLost);
  CHECK_EQ(code, EPIPE);
}

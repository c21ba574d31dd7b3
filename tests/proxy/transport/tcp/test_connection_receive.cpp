// The parser: a stream cut at any byte gives the same writes, and what no correct peer sends is refused before a byte
// of it is placed.
#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>

#include "native/check.h"
#include "proxy/transport/contract.h"
#include "proxy/transport/tcp/raw_peer.h"
#include "transport/tcp/connection.h"
#include "wire/limits.h"

using namespace uccl;

namespace {

// A connection whose other end is in the test's hand.
struct Bench {
  explicit Bench(u64 region = 1 << 20) : memory(region + 16), inbox(space) {
    space.add(Span{4096, region, memory.data()});
    int pair[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    int big = 1 << 20;
    setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &big, sizeof(big));
    other = Socket(pair[0]);
    connection = std::make_unique<TcpConnection>(1, Socket(pair[1]), 8, 8, TcpTuning{});
  }
  // Receives until there is no more; keeps the arrivals.
  TcpStatus drain() {
    for (;;) {
      const TcpStatus s = connection->receive(inbox, counters, &code);
      while (!inbox.empty()) arrivals.push_back(inbox.ready[inbox.head++]);
      inbox.head = inbox.tail = 0;
      if (s != TcpStatus::kMore) return s;
    }
  }
  TcpStatus feed(const std::vector<u8>& stream) {
    CHECK(raw::put(other.fd(), stream.data(), stream.size()));
    return drain();
  }

  std::vector<u8> memory;
  AddressSpace space;
  TcpInbox inbox;
  Socket other;
  std::unique_ptr<TcpConnection> connection;
  LaneCounters counters;
  std::vector<Arrival> arrivals;
  int code = 0;
};

std::vector<u8> frame(const FrameHeader& h, const u8* payload) {
  std::vector<u8> s;
  raw::append(s, &h, sizeof(h));
  raw::append(s, payload, h.bytes);
  return s;
}

struct Expected {
  u64 offset;
  u32 bytes;
  const u8* source;
};
std::vector<u8> random_stream(u64 seed, u32 count, u32 max_bytes, std::vector<Expected>* expected) {
  std::vector<u8> stream;
  u64 at = 4096;
  for (u32 i = 0; i < count; ++i) {
    const u64 k = contract::mix(seed, i);
    const u32 bytes = k % 5 == 0 ? 0 : static_cast<u32>((k >> 8) % max_bytes);
    const u8* source = contract::random_bytes() + (k >> 32) % 1000000;
    const std::vector<u8> f = frame(raw::write_header(i, at, bytes), source);
    stream.insert(stream.end(), f.begin(), f.end());
    expected->push_back({at, bytes, source});
    at += bytes;
    if (k % 7 == 0) {
      const FrameHeader ack{static_cast<u32>(FrameKind::kAck), 0, 0, 0, 0};
      raw::append(stream, &ack, sizeof(ack));
    }
  }
  return stream;
}

std::vector<u8> part(const std::vector<u8>& stream, std::size_t from, std::size_t to) {
  return {stream.begin() + static_cast<long>(from), stream.begin() + static_cast<long>(to)};
}

void check_all(const Bench& b, const std::vector<Expected>& expected) {
  CHECK_EQ(b.arrivals.size(), expected.size());
  for (u32 i = 0; i < expected.size(); ++i) {
    CHECK_EQ(b.arrivals[i].immediate, i);
    CHECK_EQ(b.arrivals[i].peer, 1u);
    CHECK(std::memcmp(&b.memory[expected[i].offset - 4096], expected[i].source, expected[i].bytes) == 0);
  }
}

}  // namespace

TEST(transport_tcp_receive_byte_by_byte) {
  Bench b;
  std::vector<Expected> expected;
  const std::vector<u8> stream = random_stream(1, 40, 60, &expected);
  for (const u8 byte : stream) {
    const std::size_t before = b.arrivals.size();
    CHECK(b.feed({byte}) == TcpStatus::kDrained);
    CHECK(b.arrivals.size() <= before + 1);
  }
  check_all(b, expected);
}

TEST(transport_tcp_receive_cut_at_every_place) {
  std::vector<Expected> whole;
  const std::vector<u8> stream = random_stream(2, 6, 80, &whole);
  for (std::size_t cut = 0; cut <= stream.size(); ++cut) {
    Bench b(1 << 12);
    CHECK(cut == 0 || b.feed(part(stream, 0, cut)) == TcpStatus::kDrained);
    std::size_t end = 0, complete = 0;  // writes that end at or before the cut
    for (u32 i = 0; i < whole.size(); ++i) {
      end += sizeof(FrameHeader) + whole[i].bytes;
      complete += end <= cut;
      if (contract::mix(2, i) % 7 == 0) end += sizeof(FrameHeader);  // an acknowledgement follows
    }
    CHECK_EQ(b.arrivals.size(), complete);
    CHECK(cut == stream.size() || b.feed(part(stream, cut, stream.size())) == TcpStatus::kDrained);
    check_all(b, whole);
  }
}

// Sizes on both sides of every threshold: staging, direct reads, a header read alone.
TEST(transport_tcp_receive_random_cuts_of_large_writes) {
  for (u64 seed = 10; seed < 30; ++seed) {
    Bench b(8 << 20);
    std::vector<Expected> expected;
    const std::vector<u8> stream = random_stream(seed, 60, seed % 2 ? 130000 : 20000, &expected);
    std::size_t at = 0;
    u64 k = seed;
    while (at < stream.size()) {
      k = contract::mix(k, 1);
      const std::size_t n = std::min<std::size_t>(stream.size() - at, 1 + k % (k % 3 ? 70000 : 30));
      CHECK(b.feed(part(stream, at, at + n)) == TcpStatus::kDrained);
      at += n;
    }
    check_all(b, expected);
  }
}

TEST(transport_tcp_receive_many_empty_frames_in_one_read) {
  Bench b;
  std::vector<u8> stream;
  for (u32 i = 0; i < 6000; ++i) {  // more than one read can hold
    const FrameHeader h = raw::write_header(i, 0, 0);
    raw::append(stream, &h, sizeof(h));
  }
  CHECK(b.feed(stream) == TcpStatus::kDrained);
  CHECK_EQ(b.arrivals.size(), 6000u);
  for (u32 i = 0; i < 6000; ++i) CHECK_EQ(b.arrivals[i].immediate, i);
}

TEST(transport_tcp_receive_refuses_what_no_peer_sends) {
  const u64 end = 4096 + (1 << 20);
  const struct {
    FrameHeader header;
    int code;
  } bad[] = {
      {raw::write_header(1, 4096, kMaxWriteBytes + 1), EMSGSIZE},
      {raw::write_header(1, 4096, ~0u), EMSGSIZE},
      {raw::write_header(1, end - 15, 16), ERANGE},
      {raw::write_header(1, 4095, 1), ERANGE},
      {raw::write_header(1, ~0ull, 16), ERANGE},
      {raw::write_header(1, 4096, 16, 1), EBADMSG},                            // acknowledges what was never sent
      {{static_cast<u32>(FrameKind::kAck), 0, 0, 8, 0}, EBADMSG},              // an ack with a payload
      {{0, 0, 0, 0, 0}, EBADMSG},
      {{0x474e4f57u, 0, 0, 0, 0}, EBADMSG},
  };
  for (const auto& x : bad) {
    Bench b;
    std::vector<u8> stream = frame(raw::write_header(9, 4096, 4), contract::random_bytes());
    raw::append(stream, &x.header, sizeof(x.header));
    stream.resize(stream.size() + 64, 0xee);
    CHECK(b.feed(stream) == TcpStatus::kProtocol);
    CHECK_EQ(b.code, x.code);
    CHECK_EQ(b.counters.refused, 1u);
    CHECK_EQ(b.arrivals.size(), 1u);  // the good one before it
    for (std::size_t i = 4; i < b.memory.size(); ++i) CHECK(b.memory[i] != 0xee);
  }
}

TEST(transport_tcp_receive_ends) {
  for (const std::size_t cut : {std::size_t{0}, std::size_t{1}, std::size_t{23}, std::size_t{24}, std::size_t{30}}) {
    Bench b;
    const std::vector<u8> f = frame(raw::write_header(9, 4096, 16), contract::random_bytes());
    CHECK(raw::put(b.other.fd(), f.data(), cut));
    b.other.reset();
    b.connection->expect_end();
    CHECK(b.drain() == TcpStatus::kLost);
    CHECK_EQ(b.code, ECONNRESET);
    CHECK(b.arrivals.empty());
  }
  Bench b;
  std::vector<u8> f = frame(raw::write_header(9, 4096, 16), contract::random_bytes());
  const FrameHeader goodbye{static_cast<u32>(FrameKind::kGoodbye), 0, 0, 0, 0};
  raw::append(f, &goodbye, sizeof(goodbye));
  CHECK(b.feed(f) == TcpStatus::kLost);
  CHECK_EQ(b.code, 0);
  CHECK_EQ(b.arrivals.size(), 1u);
}

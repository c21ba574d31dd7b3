// A whole tcp rank against a peer made by hand: broken frames, an end in the middle, a door that is closed afterwards.
#include <cerrno>
#include <thread>

#include "memory/segment.h"
#include "native/check.h"
#include "proxy/transport/contract.h"
#include "proxy/transport/tcp/raw_peer.h"
#include "transport/tcp/transport.h"
#include "wire/limits.h"

using namespace uccl;

namespace {

constexpr u64 kRegion = 1 << 16;

// Rank 0 is real, rank 1 is the test.
struct Bench {
  Bench() : segment(Segment::create("tcp", kRegion)) {
    contract::Shape shape;
    shape.region_bytes = kRegion;
    transport = std::make_unique<TcpTransport>(contract::settings_for(shape, 0, *segment));
    address = transport->local_address();
    const TransportSettings me = contract::settings_for(shape, 1, *segment);
    std::string error;
    std::thread thread([&] {
      try {
        transport->connect({address, "127.0.0.1:1"});
      } catch (const std::runtime_error& e) { error = e.what(); }
    });
    peer = Socket(raw::dial(address));
    const bool friends = raw::shake_hands(peer.fd(), me, 0);
    thread.join();
    CHECK_EQ(error, std::string());
    CHECK(friends);
  }
  Lane& lane() { return transport->lane(0); }
  PeerEvent wait_event() {
    PeerEvent e{};
    CHECK(contract::poll_until([&] {
      Arrival a[8];
      arrivals += lane().poll_arrivals(a);
      return lane().poll_events(std::span(&e, 1)) == 1;
    }));
    for (int i = 0; i < 50; ++i) {
      Arrival a;
      PeerEvent again;
      CHECK_EQ(lane().poll_arrivals(std::span(&a, 1)), 0u);
      CHECK_EQ(lane().poll_events(std::span(&again, 1)), 0u);
    }
    return e;
  }

  std::shared_ptr<Segment> segment;
  std::unique_ptr<TcpTransport> transport;
  std::string address;
  Socket peer;
  std::size_t arrivals = 0;
};

}  // namespace

TEST(transport_tcp_refuses_bad_frames_and_says_so) {
  const struct {
    FrameHeader header;
    int code;
  } bad[] = {{raw::write_header(1, 4096, kMaxWriteBytes + 16), EMSGSIZE},
             {raw::write_header(1, 4096 + kRegion - 8, 16), ERANGE},
             {{0xdeadbeefu, 0, 0, 0, 0}, EBADMSG}};
  for (const auto& x : bad) {
    Bench b;
    const u8 payload[64] = {1, 2, 3};
    CHECK(raw::put(b.peer.fd(), &x.header, sizeof(x.header)));
    CHECK(raw::put(b.peer.fd(), payload, sizeof(payload)));
    const PeerEvent e = b.wait_event();
    CHECK(e.fault == PeerFault::kProtocol);
    CHECK_EQ(e.peer, 1u);
    CHECK_EQ(e.code, x.code);
    CHECK_EQ(b.lane().counters().refused, 1u);
    FrameHeader goodbye{};
    CHECK(raw::get(b.peer.fd(), &goodbye, sizeof(goodbye)));
    CHECK_EQ(goodbye.kind, static_cast<u32>(FrameKind::kGoodbye));
    CHECK_EQ(goodbye.immediate, static_cast<u32>(EPROTO));
    CHECK(raw::ended(b.peer.fd()));
    const u8* memory = static_cast<const u8*>(b.segment->data());
    for (u64 i = 0; i < kRegion; ++i) CHECK_EQ(static_cast<int>(memory[i]), 0);
  }
}

TEST(transport_tcp_disconnect_inside_a_frame) {
  for (const std::size_t payload : {std::size_t{0}, std::size_t{1}, std::size_t{999}}) {
    Bench b;
    const FrameHeader whole = raw::write_header(1, 4096, 0), h = raw::write_header(2, 4096, 1000);
    CHECK(raw::put(b.peer.fd(), &whole, sizeof(whole)));
    CHECK(raw::put(b.peer.fd(), &h, sizeof(h)));
    CHECK(raw::put(b.peer.fd(), contract::random_bytes(), payload));
    b.peer.reset();
    const PeerEvent e = b.wait_event();
    CHECK(e.fault == PeerFault::kLost);
    CHECK_EQ(e.code, ECONNRESET);
    CHECK_EQ(b.arrivals, 1u);
  }
}

// The end is there before the first poll, and nothing is ever sent that would bring a reset.
TEST(transport_tcp_end_that_came_with_the_data_is_seen) {
  for (const std::size_t payload : {std::size_t{0}, std::size_t{999}}) {
    Bench b;
    const FrameHeader h = raw::write_header(2, 4096, 1000);
    CHECK(raw::put(b.peer.fd(), &h, sizeof(h)));
    CHECK(raw::put(b.peer.fd(), contract::random_bytes(), payload));
    CHECK_EQ(shutdown(b.peer.fd(), SHUT_WR), 0);
    CHECK_EQ(b.wait_event().code, ECONNRESET);
    CHECK_EQ(b.arrivals, 0u);
  }
}

TEST(transport_tcp_reset_is_lost_once) {
  Bench b;
  const linger hard{1, 0};  // closes with a reset
  CHECK_EQ(setsockopt(b.peer.fd(), SOL_SOCKET, SO_LINGER, &hard, sizeof(hard)), 0);
  b.peer.reset();
  std::vector<WriteRequest> many(64, WriteRequest{1, 1, contract::random_bytes(), 4096, 1000, 1});
  b.lane().post(many);
  b.lane().flush();
  const PeerEvent e = b.wait_event();
  CHECK(e.fault == PeerFault::kLost);
  CHECK(e.code == ECONNRESET || e.code == EPIPE);
  CHECK_EQ(b.lane().post(many), many.size());  // dropped
}

TEST(transport_tcp_door_closes_after_connect) {
  Bench b;
  const TcpTuning tuning;
  const Socket late = tcp_connect(b.address, tuning);
  pollfd f{late.fd(), POLLOUT, 0};
  CHECK_EQ(poll(&f, 1, 5000), 1);
  CHECK_EQ(tcp_pending_error(late.fd()), ECONNREFUSED);
}

TEST(transport_tcp_counts_strangers_of_its_handshake) {
  contract::Shape shape;
  shape.connect_timeout_ns = 300ull * 1000 * 1000;
  auto segment = Segment::create("tcp", kRegion);
  shape.region_bytes = kRegion;
  TcpTransport t(contract::settings_for(shape, 0, *segment));
  TransportSettings other = contract::settings_for(shape, 1, *segment);
  other.secret[5] ^= 1;
  const Socket stranger(raw::dial(t.local_address()));
  const TcpHello h = raw::hello(other, 0);  // without a look at the challenge
  CHECK(raw::put(stranger.fd(), &h, sizeof(h)));
  CHECK_THROWS(std::runtime_error, t.connect({t.local_address(), "127.0.0.1:1"}));
  CHECK_EQ(t.handshake_counters().strangers, 1u);
}

TEST(transport_tcp_notes_say_that_strangers_came) {
  contract::Shape shape;
  auto segment = Segment::create("tcp", kRegion);
  shape.region_bytes = kRegion;
  TcpTransport a(contract::settings_for(shape, 0, *segment)), b(contract::settings_for(shape, 1, *segment));
  const std::vector<std::string> addresses = {a.local_address(), b.local_address()};
  const Socket stranger(raw::dial(addresses[0]));
  CHECK(raw::put(stranger.fd(), contract::random_bytes(), sizeof(TcpHello)));
  std::thread other([&] { b.connect(addresses); });
  a.connect(addresses);
  other.join();
  CHECK(a.notes().size() == 1 && a.notes()[0].choice == "tcp: 1 connection(s) of strangers dropped");
  CHECK(b.notes().empty());
}

// Ends of a frame that arrive late are waited for, whatever else is polled in between.
TEST(transport_tcp_arrival_waits_for_its_whole_payload) {
  Bench b;
  const FrameHeader h = raw::write_header(42, 4096 + 100, 5000);
  CHECK(raw::put(b.peer.fd(), &h, sizeof(h)));
  CHECK(raw::put(b.peer.fd(), contract::random_bytes(), 4999));
  Arrival a{};
  for (int i = 0; i < 200; ++i) CHECK_EQ(b.lane().poll_arrivals(std::span(&a, 1)), 0u);
  CHECK(raw::put(b.peer.fd(), contract::random_bytes() + 4999, 1));
  CHECK(contract::poll_until([&] { return b.lane().poll_arrivals(std::span(&a, 1)) == 1; }));
  CHECK_EQ(a.immediate, 42u);
  CHECK(std::memcmp(static_cast<u8*>(b.segment->data()) + 100, contract::random_bytes(), 5000) == 0);
  FrameHeader ack{};
  CHECK(contract::poll_until([&] {
    Arrival none;
    b.lane().poll_arrivals(std::span(&none, 1));
    return recv(b.peer.fd(), &ack, sizeof(ack), MSG_DONTWAIT) == static_cast<ssize_t>(sizeof(ack));
  }));
  CHECK_EQ(ack.kind, static_cast<u32>(FrameKind::kAck));
  CHECK_EQ(ack.acked, 1u);
}

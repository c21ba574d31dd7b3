// Who gets in. Every kind of stranger comes first; the one friend still gets through, and nobody else does.
#include <functional>
#include <thread>

#include "native/check.h"
#include "proxy/transport/tcp/raw_peer.h"
#include "transport/tcp/handshake.h"

using namespace uccl;

namespace {

TransportSettings settings(u32 rank, u32 lanes = 1) {
  TransportSettings s;
  s.rank = rank;
  s.num_ranks = 2;
  s.num_lanes = lanes;
  s.session = 0x1122334455667788ull;
  s.secret = "the secret that all ranks share!";
  s.max_in_flight = 16;
  s.connect_timeout_ns = 10ull * 1000 * 1000 * 1000;
  return s;
}

// Rank 0, waiting for rank 1, in a thread of its own.
struct Host {
  explicit Host(const TransportSettings& given, const TcpTuning& t = {})
      : s(given),
        tuning(t),
        listener(tcp_listen("", tuning)),
        address(tcp_local_address(listener.fd())),
        addresses{address, "127.0.0.1:1"},
        handshake(s, tuning, listener, addresses),
        thread([this] {
          try {
            proven = handshake.run();
          } catch (const std::runtime_error& e) { error = e.what(); }
        }) {}
  void finish() {
    if (thread.joinable()) thread.join();
  }
  ~Host() { finish(); }

  TransportSettings s;
  TcpTuning tuning;
  Socket listener;
  std::string address;
  std::vector<std::string> addresses;
  TcpHandshake handshake;
  std::vector<TcpHandshake::Proven> proven;
  std::string error;
  std::thread thread;
};

using Change = std::function<void(TcpHello&)>;

// `before` is proven, `after` is not.
bool greet_and_be_dropped(const std::string& address, const TransportSettings& me, const Change& before,
                          const Change& after = {}, std::size_t bytes = sizeof(TcpHello)) {
  const Socket s(raw::dial(address));
  TcpChallenge challenge{};
  if (!raw::get(s.fd(), &challenge, sizeof(challenge))) return false;
  TcpHello h = raw::hello(me, 0);
  if (before) before(h);
  raw::prove(h, me, challenge);
  if (after) after(h);
  if (!raw::put(s.fd(), &h, bytes)) return false;
  if (bytes < sizeof(TcpHello)) shutdown(s.fd(), SHUT_WR);
  return raw::ended(s.fd());  // without one byte of answer
}

// Rank 1, which connects to rank 0 at an address where the test listens.
struct Guest {
  Guest()
      : s(settings(1)),
        door(tcp_listen("", tuning)),
        listener(tcp_listen("", tuning)),
        addresses{tcp_local_address(door.fd()), tcp_local_address(listener.fd())},
        handshake(s, tuning, listener, addresses) {
    s.connect_timeout_ns = 300ull * 1000 * 1000;
    thread = std::thread([this] {
      try {
        proven = handshake.run();
      } catch (const std::runtime_error& e) { error = e.what(); }
    });
  }
  ~Guest() { finish(); }
  Socket meet() {
    pollfd f{door.fd(), POLLIN, 0};
    int code = 0;
    return poll(&f, 1, 5000) == 1 ? tcp_accept(door.fd(), &code) : Socket();
  }
  void finish() {
    if (thread.joinable()) thread.join();
  }

  TransportSettings s;
  TcpTuning tuning;
  Socket door, listener;
  std::vector<std::string> addresses;
  TcpHandshake handshake;
  std::vector<TcpHandshake::Proven> proven;
  std::string error;
  std::thread thread;
};

}  // namespace

TEST(transport_tcp_handshake_drops_and_counts_strangers) {
  Host host(settings(0));
  const TransportSettings friendly = settings(1);
  TransportSettings other = friendly;
  other.secret[31] ^= 1;
  CHECK(greet_and_be_dropped(host.address, other, {}));
  CHECK(greet_and_be_dropped(host.address, friendly, [](TcpHello& h) { h.session ^= 1; }));
  CHECK(greet_and_be_dropped(host.address, friendly, [](TcpHello& h) { h.magic ^= 1; }));
  CHECK(greet_and_be_dropped(host.address, friendly, [](TcpHello& h) { h.bytes += 1; }));
  const auto http = [](TcpHello& h) { std::memcpy(&h, "GET / HTTP/1.1\r\nHost: somewhere\r\n", 34); };
  CHECK(greet_and_be_dropped(host.address, friendly, {}, http));
  CHECK(greet_and_be_dropped(host.address, friendly, {}, [](TcpHello& h) { h.max_in_flight += 1; }));
  for (const std::size_t cut : {std::size_t{0}, std::size_t{1}, sizeof(TcpHello) - 1}) {
    CHECK(greet_and_be_dropped(host.address, friendly, {}, {}, cut));
  }
  const Socket s(raw::dial(host.address));
  CHECK(raw::shake_hands(s.fd(), friendly, 0));
  host.finish();
  CHECK_EQ(host.error, std::string());
  CHECK(host.proven[1].socket);
  CHECK_EQ(host.proven[1].peer_window, 16u);
  CHECK_EQ(host.handshake.counters().strangers, 6u);
  CHECK_EQ(host.handshake.counters().cut_short, 3u);
}

TEST(transport_tcp_handshake_drops_friends_that_do_not_fit) {
  Host host(settings(0));
  const TransportSettings friendly = settings(1);
  for (int field = 0; field < 8; ++field) {
    CHECK(greet_and_be_dropped(host.address, friendly, [&](TcpHello& h) {
      if (field == 0) h.version = kTcpVersion + 1;
      if (field == 1) h.num_ranks = 3;
      if (field == 2) h.num_lanes = 2;
      if (field == 3) h.destination = 1;
      if (field == 4) h.lane = 1;
      if (field == 5) h.max_in_flight = 0;
      if (field == 6) h.source = 0;
      if (field == 7) h.source = ~0u;
    }));
  }
  const Socket s(raw::dial(host.address));
  CHECK(raw::shake_hands(s.fd(), friendly, 0));
  host.finish();
  CHECK_EQ(host.error, std::string());
  CHECK_EQ(host.handshake.counters().misfits, 8u);
}

TEST(transport_tcp_handshake_names_what_does_not_fit) {
  TransportSettings s = settings(0);
  s.connect_timeout_ns = 400ull * 1000 * 1000;
  Host host(s);
  CHECK(greet_and_be_dropped(host.address, settings(1, 7), {}));
  host.finish();
  CHECK(host.error.find("rank 1") != std::string::npos && host.error.find("7 lanes") != std::string::npos);
}

// More silent strangers than there are places: they time out, and the friend gets one.
TEST(transport_tcp_handshake_is_not_blocked_by_silence) {
  TcpTuning tuning;
  tuning.max_pending = 4;
  tuning.hello_timeout_ns = 100ull * 1000 * 1000;
  Host host(settings(0), tuning);
  std::vector<Socket> silent;
  for (int i = 0; i < 10; ++i) silent.emplace_back(raw::dial(host.address));
  const TcpHello h = raw::hello(settings(1), 0);
  CHECK(raw::put(silent[0].fd(), &h, 20));  // half a hello is silence too
  const Socket s(raw::dial(host.address));
  CHECK(raw::shake_hands(s.fd(), settings(1), 0));
  host.finish();
  CHECK_EQ(host.error, std::string());
  CHECK(host.handshake.counters().silent >= 8u);
}

TEST(transport_tcp_handshake_takes_a_lane_once) {
  Host host(settings(0, 2));
  const TransportSettings friendly = settings(1, 2);
  const Socket first(raw::dial(host.address));
  CHECK(raw::shake_hands(first.fd(), friendly, 0, 0));
  // Until its confirmation is read the first is not proven, and a second would replace it: wait until it counts.
  u32 dropped = 0;
  for (int i = 0; i < 50 && dropped == 0; ++i) {
    const Socket second(raw::dial(host.address));
    TcpHello h = raw::hello(friendly, 0, 0);
    CHECK(raw::greet(second.fd(), friendly, h, [](TcpHello&) {}));
    dropped += raw::ended(second.fd());
  }
  CHECK_EQ(dropped, 1u);
  const Socket other(raw::dial(host.address));
  CHECK(raw::shake_hands(other.fd(), friendly, 0, 1));
  host.finish();
  CHECK_EQ(host.error, std::string());
  CHECK_EQ(host.handshake.counters().duplicates, 1u);
  CHECK(raw::put(first.fd(), "x", 1));  // the one that was first is the one that is kept
  char c = 0;
  CHECK(raw::get(host.proven[2].socket.fd(), &c, 1));
  CHECK_EQ(c, 'x');
}

// A connector that gave up between its hello and the confirmation comes again.
TEST(transport_tcp_handshake_lets_a_friend_try_again) {
  Host host(settings(0));
  const TransportSettings friendly = settings(1);
  const Socket first(raw::dial(host.address));
  TcpHello h = raw::hello(friendly, 0), answer{};
  CHECK(raw::greet(first.fd(), friendly, h, [](TcpHello&) {}));
  CHECK(raw::get(first.fd(), &answer, sizeof(answer)));
  CHECK_EQ(answer.source, 0u);
  const Socket second(raw::dial(host.address));
  CHECK(raw::shake_hands(second.fd(), friendly, 0));
  CHECK(raw::ended(first.fd()));
  host.finish();
  CHECK_EQ(host.error, std::string());
}

// The connector asks for proof too: it reaches an impostor, says nothing more to it, and names the rank. Nothing that it
// said before shows the secret.
TEST(transport_tcp_handshake_connector_is_not_fooled) {
  for (int lie = 0; lie < 6; ++lie) {
    Guest guest;
    const Socket c = guest.meet();
    const TcpChallenge challenge{kTcpMagic + (lie == 3), kTcpVersion, new_nonce()};
    TcpHello theirs{}, answer = raw::hello(settings(0), 1);
    CHECK(raw::put(c.fd(), &challenge, sizeof(challenge)));
    if (lie != 3) {
      CHECK(raw::get(c.fd(), &theirs, sizeof(theirs)));
      CHECK(bytes_of(theirs).find(guest.s.secret) == std::string_view::npos);
      answer.nonce = challenge.nonce;
      if (lie == 1) answer.source = 1;
      if (lie == 2) answer.session += 1;
      answer.proof = acceptor_proof(guest.s.secret, theirs, answer);
      if (lie == 0) answer.proof[0] ^= 1;
      if (lie == 4) answer = theirs;  // its own words
      if (lie == 5) answer.proof = connector_proof(guest.s.secret, theirs.nonce, answer);
      CHECK(raw::put(c.fd(), &answer, sizeof(answer)));
    }
    CHECK(raw::ended(c.fd()));
    guest.finish();
    CHECK(guest.error.find("rank(s) 0") != std::string::npos);
  }
}

// What was recorded between friends is of no use: neither to who connects with it nor to who answers with it.
TEST(transport_tcp_handshake_a_recording_opens_no_door) {
  TcpHello said{}, answered{};
  const TcpConfirm confirm{kTcpMagic, 0};
  {
    Host host(settings(0));
    const Socket s(raw::dial(host.address));
    said = raw::hello(settings(1), 0);
    CHECK(raw::greet(s.fd(), settings(1), said, [](TcpHello&) {}));
    CHECK(raw::get(s.fd(), &answered, sizeof(answered)));
    CHECK(raw::put(s.fd(), &confirm, sizeof(confirm)));
    host.finish();
    CHECK_EQ(host.error, std::string());
  }
  Host host(settings(0));
  CHECK(greet_and_be_dropped(host.address, settings(1), {}, [&](TcpHello& h) { h = said; }));
  CHECK(greet_and_be_dropped(host.address, settings(1), {}, [&](TcpHello& h) { h = answered; }));
  const Socket friendly(raw::dial(host.address));
  CHECK(raw::shake_hands(friendly.fd(), settings(1), 0));
  host.finish();
  CHECK_EQ(host.error, std::string());
  CHECK_EQ(host.handshake.counters().strangers, 2u);
  Guest guest;
  const Socket c = guest.meet();
  const TcpChallenge challenge{kTcpMagic, kTcpVersion, answered.nonce};
  TcpHello theirs{};
  CHECK(raw::put(c.fd(), &challenge, sizeof(challenge)));
  CHECK(raw::get(c.fd(), &theirs, sizeof(theirs)));
  CHECK(raw::put(c.fd(), &answered, sizeof(answered)));
  CHECK(raw::ended(c.fd()));
  guest.finish();
  CHECK(guest.error.find("answered with another secret") != std::string::npos);
}

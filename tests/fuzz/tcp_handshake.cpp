// Whoever knocks: connections whose hello and confirmation are the right ones with some bytes changed or cut, or what an
// earlier connection said. Only a right one gets in; every other is dropped and counted, gets no answer but the challenge
// without a proof, and costs no memory.
//
// Input: connections of [0] length (0..96 and 0xff for all), [1] number of changes, +0x80: proven after them, +0x40:
// begun with what the connection before this one said; then (position, xor) pairs.
//
// A busy kernel may deliver connections and bytes late and in another order than they were sent. So a second thread
// waits until every knock has been settled (answered or closed) before the real ranks connect and the round ends.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <optional>
#include <thread>

#include "fuzz/allowance.h"
#include "fuzz/targets.h"
#include "native/check.h"
#include "transport/tcp/handshake.h"

namespace uccl::fuzz {
namespace {

constexpr std::size_t kMostConnections = 6;
constexpr u32 kRanks = 4, kLanes = 2;  // six places for friends: with all taken, nobody else has knocked
constexpr int kSettleMs = 20'000;  // far more than a busy machine takes
struct Knock {
  TcpHello hello;
  TcpConfirm confirm;
};
static_assert(sizeof(Knock) == 96);

TransportSettings host_settings() {
  TransportSettings s;
  s.rank = 0;
  s.num_ranks = kRanks;
  s.num_lanes = kLanes;
  s.session = 0x1122334455667788ull;
  s.secret = "the secret that all ranks share!";
  s.max_in_flight = 16;
  s.connect_timeout_ns = 40ull * 1000 * 1000 * 1000;
  return s;
}

Knock right_knock(const TransportSettings& s, const Nonce& challenge) {
  Knock k{};
  k.hello =
      TcpHello{kTcpMagic, kTcpVersion, sizeof(TcpHello), s.session, {}, 1, 0, 0, s.num_ranks, s.num_lanes, 16, {}};
  k.hello.proof = connector_proof(s.secret, challenge, k.hello);
  k.confirm = TcpConfirm{kTcpMagic, 0};
  return k;
}

// A signal (libFuzzer has a timer) may interrupt connecting, which then goes on by itself.
Socket dial(const std::string& address) {
  Socket s(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const linger at_once{1, 0};  // closing leaves no port behind that waits for a minute
  setsockopt(s.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<unsigned short>(std::stoi(address.substr(address.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int error = connect(s.fd(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0 ? 0 : errno;
  if (error == EINTR) {
    pollfd ready{s.fd(), POLLOUT, 0};
    while (poll(&ready, 1, kSettleMs) < 0 && errno == EINTR) {}
    error = tcp_pending_error(s.fd());
  }
  CHECK_EQ(error, 0);
  return s;
}

struct Connection {
  Socket socket;
  Nonce challenge;
  Knock knock;
  std::size_t bytes;
  std::size_t answered = 0;  // bytes

  // Until the host has answered or closed it.
  void settle() {
    char answer[sizeof(TcpHello)];
    while (answered != sizeof(answer)) {
      const ssize_t n = recv(socket.fd(), answer, sizeof(answer) - answered, MSG_DONTWAIT);
      if (n > 0) answered += static_cast<std::size_t>(n);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return;
      pollfd ready{socket.fd(), POLLIN, 0};
      if (n < 0 && poll(&ready, 1, kSettleMs) == 0)
        check::fail(__FILE__, __LINE__, "a connection was neither answered nor closed");
    }
  }
  bool friendly() const {  // it knows the secret
    const TransportSettings s = host_settings();
    return bytes >= sizeof(TcpHello) && knock.hello.magic == kTcpMagic && knock.hello.bytes == sizeof(TcpHello) &&
           knock.hello.session == s.session && knock.hello.proof == connector_proof(s.secret, challenge, knock.hello);
  }
};

// What the host sends to whoever comes; nothing when its round is over, since everybody is there.
std::optional<Nonce> hear_challenge(const Socket& socket, const std::atomic<bool>& over) {
  TcpChallenge challenge{};
  auto* at = reinterpret_cast<char*>(&challenge);
  for (std::size_t heard = 0; heard != sizeof(challenge);) {
    const ssize_t n = recv(socket.fd(), at + heard, sizeof(challenge) - heard, MSG_DONTWAIT);
    if (n > 0) heard += static_cast<std::size_t>(n);
    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
      check::fail(__FILE__, __LINE__, "a connection got no challenge");
    pollfd ready{socket.fd(), POLLIN, 0};
    if (n < 0 && poll(&ready, 1, 5) == 0 && over) return std::nullopt;
  }
  CHECK(challenge.magic == kTcpMagic && challenge.version == kTcpVersion);
  return challenge.nonce;
}

std::vector<Connection> knocks(Input input, const std::string& address, const std::atomic<bool>& over) {
  const TransportSettings settings = host_settings();
  std::vector<Connection> all;
  for (std::size_t at = 0; at + 2 <= input.size() && all.size() < kMostConnections;) {
    Connection c{dial(address), {}, {}, 0, 0};
    c.challenge = hear_challenge(c.socket, over).value();  // fewer than there are places have come before it
    const bool replayed = (input[at + 1] & 0x40) != 0 && !all.empty(), proven = (input[at + 1] & 0x80) != 0;
    c.knock = replayed ? all.back().knock : right_knock(settings, c.challenge);
    c.bytes = std::min<std::size_t>(input[at], sizeof(Knock));
    std::size_t changes = input[at + 1] % 16;
    for (at += 2; changes != 0 && at + 2 <= input.size(); --changes, at += 2)
      reinterpret_cast<u8*>(&c.knock)[input[at] % sizeof(Knock)] ^= input[at + 1];
    if (proven) c.knock.hello.proof = connector_proof(settings.secret, c.challenge, c.knock.hello);
    if (c.bytes != 0) (void)!send(c.socket.fd(), &c.knock, c.bytes, MSG_NOSIGNAL);
    shutdown(c.socket.fd(), SHUT_WR);
    all.push_back(std::move(c));
  }
  return all;
}

// The real ranks, on all lanes: whoever came before, they get in.
std::vector<Socket> connect_ranks(const TransportSettings& settings, const std::string& address,
                                  const std::atomic<bool>& over) {
  std::vector<Socket> ranks;
  for (u32 i = 0; i < (kRanks - 1) * kLanes; ++i) {
    ranks.push_back(dial(address));
    const std::optional<Nonce> challenge = hear_challenge(ranks.back(), over);
    if (!challenge) break;
    Knock k = right_knock(settings, *challenge);
    k.hello.source = 1 + i / kLanes;
    k.hello.lane = k.confirm.lane = i % kLanes;
    k.hello.proof = connector_proof(settings.secret, *challenge, k.hello);
    (void)!send(ranks.back().fd(), &k, sizeof(k), MSG_NOSIGNAL);  // refused where a friend had that place already
  }
  return ranks;
}

// The other side of a round.
class Visitors {
 public:
  Visitors(const TransportSettings& settings, const std::string& address, Input input,
           std::vector<Connection>& connections)
      : thread_([&, input] {
          try {
            connections = knocks(input, address, over_);
            for (Connection& c : connections) c.settle();
            ranks_ = connect_ranks(settings, address, over_);
          } catch (...) { error_ = std::current_exception(); }
        }) {}
  ~Visitors() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
  }
  void join() {
    over_ = true;
    thread_.join();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::atomic<bool> over_ = false;
  std::exception_ptr error_;
  std::vector<Socket> ranks_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace

void tcp_handshake(Input input) {
  const TransportSettings settings = host_settings();
  // Nobody is silent here: a place is never taken back because the machine was busy.
  const TcpTuning tuning{.hello_timeout_ns = settings.connect_timeout_ns, .max_pending = 16};
  const Socket listener = tcp_listen("", tuning);
  const std::string address = tcp_local_address(listener.fd());
  const std::vector<std::string> addresses(kRanks, address);
  std::vector<Connection> connections;
  TcpHandshake handshake(settings, tuning, listener, addresses);
  Visitors visitors(settings, address, input, connections);
  const Allowance allowance(256 * (kMostConnections + kRanks * kLanes));  // a reason in words each, and no more
  const std::vector<TcpHandshake::Proven> proven = handshake.run();
  allowance.check("who knocked");
  visitors.join();
  CHECK_EQ(proven.size(), std::size_t{kRanks * kLanes});
  for (std::size_t i = kLanes; i < proven.size(); ++i) CHECK(proven[i].socket && proven[i].peer_window != 0);
  count_work(connections.size());
  const TcpHandshakeCounters& n = handshake.counters();
  u64 strangers = 0, cut = 0, friends = 0;
  for (const Connection& c : connections) {
    if (c.bytes < sizeof(TcpHello))
      ++cut;
    else if (c.friendly())
      ++friends;
    else
      ++strangers;
    if (!c.friendly()) CHECK_EQ(c.answered, std::size_t{0});  // not one byte for a stranger
  }
  CHECK_EQ(n.strangers, strangers);
  CHECK_EQ(n.cut_short, cut);
  CHECK(n.duplicates + n.misfits <= friends + (kRanks - 1) * kLanes);
  CHECK_EQ(n.silent, 0ull);
}

std::vector<std::vector<u8>> tcp_handshake_seeds() {
  constexpr u8 kSource = 32, kDestination = 36, kLane = 40, kRanksAt = 44, kInFlight = 52, kProof = 56,
               kConfirmLane = 92;
  return {{0xff, 0},
          {0xff, 0, 0xff, 0},
          {88, 0},
          {87, 0, 0, 0},
          {0xff, 1, 0, 1},
          {0xff, 1, 8, 1, 0xff, 1, 16, 1, 0xff, 1, kProof, 1},
          {0xff, 0, 0xff, 0x40, 0xff, 0x41, kSource, 3},
          {0xff, 0x81, kRanksAt, 1, 0xff, 0x81, kInFlight, 16, 0xff, 1, kConfirmLane, 1, 0xff, 0x81, kDestination, 1},
          {0xff, 0x81, kSource, 3, 0xff, 0x81, kLane, 7, 0xff, 0x82, kSource, 1, kSource, 2},
          // Everybody is there before the real ranks come; one who is nearly right knocks among them.
          {0xff,  0,    0xff,         0x81, kSource, 3,    0xff,         1, kSource, 2, 0xff,         0x82,
           kLane, 1,    kConfirmLane, 1,    0xff,    0x83, kSource,      3, kLane,   1, kConfirmLane, 1,
           0xff,  0x83, kSource,      2,    kLane,   1,    kConfirmLane, 1}};
}

}  // namespace uccl::fuzz

// A rank made by hand: plain blocking sockets, so that tests can send what no correct peer sends.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "native/check.h"
#include "transport/tcp/framing.h"
#include "transport/transport.h"

namespace raw {

inline int dial(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<unsigned short>(std::stoi(address.substr(colon + 1))));
  CHECK_EQ(inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr), 1);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(fd >= 0);
  CHECK_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  return fd;
}

inline void prove(uccl::TcpHello& h, const uccl::TransportSettings& s, const uccl::TcpChallenge& challenge) {
  h.proof = uccl::connector_proof(s.secret, challenge.nonce, h);
}

// Without a proof: that answers a challenge.
inline uccl::TcpHello hello(const uccl::TransportSettings& s, uccl::u32 destination, uccl::u32 lane = 0) {
  uccl::TcpHello h{};
  h.magic = uccl::kTcpMagic;
  h.version = uccl::kTcpVersion;
  h.bytes = sizeof(h);
  h.session = s.session;
  h.nonce = uccl::new_nonce();
  h.source = s.rank;
  h.destination = destination;
  h.lane = lane;
  h.num_ranks = s.num_ranks;
  h.num_lanes = s.num_lanes;
  h.max_in_flight = s.max_in_flight;
  return h;
}

inline bool put(int fd, const void* data, std::size_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes != 0) {
    const ssize_t n = send(fd, p, bytes, MSG_NOSIGNAL);
    if (n <= 0) return false;
    p += n;
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

// False when the other side ends or is silent for five seconds.
inline bool get(int fd, void* data, std::size_t bytes) {
  char* p = static_cast<char*>(data);
  while (bytes != 0) {
    pollfd f{fd, POLLIN, 0};
    if (poll(&f, 1, 5000) != 1) return false;
    const ssize_t n = recv(fd, p, bytes, 0);
    if (n <= 0) return false;
    p += n;
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

inline bool ended(int fd) {
  char c;
  pollfd f{fd, POLLIN, 0};
  return poll(&f, 1, 5000) == 1 && recv(fd, &c, 1, 0) <= 0;
}

// Answers the challenge with the hello that `change` makes of the right one, proven with the secret of `s`.
template <class Change>
bool greet(int fd, const uccl::TransportSettings& s, uccl::TcpHello& mine, Change change) {
  uccl::TcpChallenge challenge{};
  if (!get(fd, &challenge, sizeof(challenge)) || challenge.magic != uccl::kTcpMagic) return false;
  change(mine);
  prove(mine, s, challenge);
  return put(fd, &mine, sizeof(mine));
}

// The connector's side of a whole handshake.
inline bool shake_hands(int fd, const uccl::TransportSettings& s, uccl::u32 destination, uccl::u32 lane = 0) {
  uccl::TcpHello mine = hello(s, destination, lane), theirs{};
  const uccl::TcpConfirm confirm{uccl::kTcpMagic, lane};
  return greet(fd, s, mine, [](uccl::TcpHello&) {}) && get(fd, &theirs, sizeof(theirs)) &&
         theirs.proof == uccl::acceptor_proof(s.secret, mine, theirs) && theirs.source == destination &&
         put(fd, &confirm, sizeof(confirm));
}

inline uccl::FrameHeader write_header(uccl::u32 immediate, uccl::u64 offset, uccl::u32 bytes, uccl::u32 acked = 0) {
  return {static_cast<uccl::u32>(uccl::FrameKind::kWrite), immediate, offset, bytes, acked};
}
inline void append(std::vector<uccl::u8>& stream, const void* data, std::size_t bytes) {
  const auto* p = static_cast<const uccl::u8*>(data);
  stream.insert(stream.end(), p, p + bytes);
}

}  // namespace raw

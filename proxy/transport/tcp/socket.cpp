// Socket helpers: numeric addresses only, so no name service is ever asked.
#include "transport/tcp/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace uccl {
namespace {

constexpr int kBacklog = 4096;
constexpr int kKeepIdleSeconds = 10, kKeepIntervalSeconds = 5, kKeepProbes = 4;
constexpr std::size_t kMostQuoted = 128;  // longer than any address with a port and a zone
constexpr int kUserTimeoutMs = 30 * 1000;  // sent data that nobody acknowledges for this long ends the connection

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), "tcp: " + what);
}

void set_option(int fd, int level, int name, int value, const char* what) {
  if (setsockopt(fd, level, name, &value, sizeof(value)) != 0) fail(std::string("setsockopt ") + what);
}

// Buffer sizes must be set before the connection exists: they decide the window scale.
void set_buffers(int fd, const TcpTuning& tuning) {
  if (tuning.send_buffer_bytes > 0) set_option(fd, SOL_SOCKET, SO_SNDBUF, tuning.send_buffer_bytes, "SO_SNDBUF");
  if (tuning.receive_buffer_bytes > 0) set_option(fd, SOL_SOCKET, SO_RCVBUF, tuning.receive_buffer_bytes, "SO_RCVBUF");
}

bool set_stream_options(int fd) {
  const auto set = [fd](int level, int name, int value) {
    return setsockopt(fd, level, name, &value, sizeof(value)) == 0;
  };
  // A host that loses power sends nothing: keepalive finds it when idle, the user timeout when data is on its way.
  return set(IPPROTO_TCP, TCP_NODELAY, 1) && set(SOL_SOCKET, SO_KEEPALIVE, 1) &&
         set(IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleSeconds) && set(IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalSeconds) &&
         set(IPPROTO_TCP, TCP_KEEPCNT, kKeepProbes) && set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
}

struct FreeAddress {
  void operator()(addrinfo* a) const { freeaddrinfo(a); }
};
std::unique_ptr<addrinfo, FreeAddress> numeric_address(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int rc = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (rc != 0) throw std::runtime_error("tcp: '" + host + "' port '" + port + "': " + gai_strerror(rc));
  return std::unique_ptr<addrinfo, FreeAddress>(found);
}

bool is_wildcard(const sockaddr* a) {
  if (a->sa_family == AF_INET) return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr == htonl(INADDR_ANY);
  const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr;
  return std::memcmp(&six, &in6addr_any, sizeof(six)) == 0;
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}
int Socket::release() { return std::exchange(fd_, -1); }
void Socket::reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

Socket tcp_listen(const std::string& interface_address, const TcpTuning& tuning) {
  const std::string host = interface_address.empty() ? "127.0.0.1" : interface_address;
  const auto address = numeric_address(host, "0");
  if (is_wildcard(address->ai_addr)) {
    throw std::invalid_argument("tcp: interface_address '" + host + "' means every interface; name one");
  }
  Socket s(socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!s) fail("socket");
  set_buffers(s.fd(), tuning);
  if (bind(s.fd(), address->ai_addr, address->ai_addrlen) != 0) fail("bind to " + host);
  if (listen(s.fd(), kBacklog) != 0) fail("listen on " + host);
  return s;
}

std::string tcp_text(const TcpEndpoint& e) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  const int rc = getnameinfo(reinterpret_cast<const sockaddr*>(&e.address), e.length, host, sizeof(host), port,
                             sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
  if (rc != 0) throw std::runtime_error(std::string("tcp: getnameinfo: ") + gai_strerror(rc));
  return e.address.ss_family == AF_INET6 ? "[" + std::string(host) + "]:" + port : std::string(host) + ":" + port;
}

std::string tcp_local_address(int fd) {
  TcpEndpoint e;
  e.length = sizeof(e.address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&e.address), &e.length) != 0) fail("getsockname");
  return tcp_text(e);
}

TcpEndpoint tcp_read_address(const std::string& text) {
  const auto refuse = [&text](const char* why) {
    throw std::runtime_error("tcp: address '" + text.substr(0, kMostQuoted) +
                             (text.size() > kMostQuoted ? "...' " : "' ") + why);
  };
  const std::size_t colon = text.rfind(':');
  if (text.size() > kMostQuoted || text.find('\0') != std::string::npos || colon == std::string::npos)
    refuse("is not ip:port");
  const std::string port = text.substr(colon + 1);
  const bool digits = !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || std::stoi(port) == 0 || std::stoi(port) > 65535) refuse("has no port of 1 to 65535");
  std::string host = text.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  const auto found = numeric_address(host, port);
  TcpEndpoint e;
  std::memcpy(&e.address, found->ai_addr, found->ai_addrlen);
  e.length = found->ai_addrlen;
  return e;
}

Socket tcp_connect(const std::string& address, const TcpTuning& tuning) {
  const TcpEndpoint to = tcp_read_address(address);
  Socket s(socket(to.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!s) fail("socket");
  set_buffers(s.fd(), tuning);
  if (!set_stream_options(s.fd())) fail("setsockopt");
  if (connect(s.fd(), reinterpret_cast<const sockaddr*>(&to.address), to.length) != 0 && errno != EINPROGRESS)
    fail("connect to " + address);
  return s;
}

Socket tcp_accept(int listener, int* error) {
  *error = 0;
  for (;;) {
    // Inherits the listener's buffer sizes.
    Socket s(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (s && set_stream_options(s.fd())) return s;
    // A connection that ended while it waited is nobody's error.
    if (s || errno == EINTR || errno == ECONNABORTED) continue;
    if (errno != EAGAIN) *error = errno;
    return s;
  }
}

int tcp_pending_error(int fd) {
  int error = 0;
  socklen_t length = sizeof(error);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

bool tcp_enable_zerocopy(int fd) {
  const int one = 1;
  return setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one)) == 0;
}

}  // namespace uccl

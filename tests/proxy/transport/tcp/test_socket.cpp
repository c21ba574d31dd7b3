// Socket helpers: addresses in and out, ownership, refusals.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <stdexcept>

#include "native/check.h"
#include "transport/tcp/socket.h"

using namespace uccl;

namespace {

void wait_writable(int fd) {
  pollfd f{fd, POLLOUT, 0};
  CHECK_EQ(poll(&f, 1, 5000), 1);
}

}  // namespace

TEST(transport_tcp_socket_connects_and_accepts) {
  const TcpTuning tuning;
  Socket listener = tcp_listen("", tuning);
  const std::string address = tcp_local_address(listener.fd());
  CHECK_EQ(address.substr(0, 10), std::string("127.0.0.1:"));
  int error = -1;
  CHECK(!tcp_accept(listener.fd(), &error));
  CHECK_EQ(error, 0);
  Socket a = tcp_connect(address, tuning);
  wait_writable(a.fd());
  CHECK_EQ(tcp_pending_error(a.fd()), 0);
  Socket b = tcp_accept(listener.fd(), &error);
  CHECK(b);
  for (const int fd : {a.fd(), b.fd()}) {
    int value = 0;
    socklen_t length = sizeof(value);
    CHECK_EQ(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &length), 0);
    CHECK_EQ(value, 1);
    CHECK_EQ(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, &length), 0);
    CHECK_EQ(value, 1);
    CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
  }
}

TEST(transport_tcp_socket_sizes_buffers_on_both_sides) {
  TcpTuning tuning;
  tuning.send_buffer_bytes = 50000;
  tuning.receive_buffer_bytes = 60000;
  Socket listener = tcp_listen("", tuning);
  Socket a = tcp_connect(tcp_local_address(listener.fd()), tuning);
  wait_writable(a.fd());
  int error = 0;
  Socket b = tcp_accept(listener.fd(), &error);
  for (const int fd : {a.fd(), b.fd()}) {
    int value = 0;
    socklen_t length = sizeof(value);
    CHECK_EQ(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, &length), 0);
    CHECK_EQ(value, 100000);  // the kernel doubles what it is asked for
    CHECK_EQ(getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, &length), 0);
    CHECK_EQ(value, 120000);
  }
}

TEST(transport_tcp_socket_refuses_addresses_it_cannot_use) {
  const TcpTuning tuning;
  CHECK_THROWS(std::invalid_argument, tcp_listen("0.0.0.0", tuning));
  CHECK_THROWS(std::invalid_argument, tcp_listen("::", tuning));
  CHECK_THROWS(std::runtime_error, tcp_listen("localhost", tuning));  // a name, not an address
  CHECK_THROWS(std::runtime_error, tcp_listen("192.0.2.1", tuning));  // not of this host
  for (const char* bad : {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "name:80", "1.2.3.4:80000000", "1.2.3.4:65536",
                          "1.2.3.4:0", "1.2.3.4:-1", "[::1:80"}) {
    CHECK_THROWS(std::runtime_error, tcp_connect(bad, tuning));
  }
  CHECK_THROWS(std::runtime_error, tcp_connect(std::string("127.0.0.1\0.9:80", 15), tuning));
}

TEST(transport_tcp_socket_reads_addresses_and_quotes_only_their_beginning) {
  for (const char* text : {"127.0.0.1:80", "[::1]:65535", "[2001:db8::7]:1"})
    CHECK_EQ(tcp_text(tcp_read_address(text)), std::string(text));
  std::string refused;
  try {
    tcp_read_address(std::string(1 << 20, '1') + ":80");
  } catch (const std::runtime_error& e) { refused = e.what(); }
  CHECK(refused.find("is not ip:port") != std::string::npos && refused.size() < 200);
}

TEST(transport_tcp_socket_reports_a_refused_connection) {
  const TcpTuning tuning;
  Socket listener = tcp_listen("", tuning);
  const std::string address = tcp_local_address(listener.fd());
  listener.reset();
  Socket a = tcp_connect(address, tuning);
  wait_writable(a.fd());
  CHECK_EQ(tcp_pending_error(a.fd()), ECONNREFUSED);
}

TEST(transport_tcp_socket_owns_its_descriptor) {
  int pair[2];
  CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  {
    Socket a(pair[0]), b(pair[1]);
    Socket c(std::move(a));
    CHECK(!a && c);
    c = std::move(b);  // closes what it held
    CHECK_EQ(fcntl(pair[0], F_GETFD), -1);
    CHECK_EQ(c.fd(), pair[1]);
  }
  CHECK_EQ(fcntl(pair[1], F_GETFD), -1);
}

// Non-blocking tcp sockets: owning handle, listen, connect, options. Control path; throws std::system_error.
#pragma once
#include <sys/socket.h>

#include <string>

#include "wire/types.h"

namespace uccl {

// What tests change and users do not: sizes and times of the tcp family.
struct TcpTuning {
  int send_buffer_bytes = 4 << 20;     // asked for; the kernel caps it at net.core.wmem_max
  int receive_buffer_bytes = 4 << 20;
  // Payloads from this size on are sent with MSG_ZEROCOPY while the kernel really avoids the copy. Below it, pinning
  // pages costs more than copying them (kernel documentation: "generally only effective at writes over around 10 KB";
  // a notification per call on top makes 64 KiB the safe side). Over loopback the kernel copies anyway and says so in
  // its first notification; the connection then stops asking.
  u64 zerocopy_bytes = 64 << 10;
  u64 hello_timeout_ns = 2ull * 1000 * 1000 * 1000;  // a connection that has not proven itself by then is dropped
  u64 max_send_bytes = ~0ull;                        // of one system call: tests cut streams at any byte with it
  u32 max_pending = 256;                             // accepted connections that have not finished their hello
};

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() { reset(); }
  Socket(Socket&& other) noexcept : fd_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept;
  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release();
  void reset();

 private:
  int fd_ = -1;
};

// A listener on one numeric address ("" = 127.0.0.1) and a port of the kernel's choice. Refuses the wildcard address:
// whoever listens on every interface cannot say where its peers find it, and strangers find it everywhere.
Socket tcp_listen(const std::string& interface_address, const TcpTuning& tuning);
// "ip:port" or "[ip6]:port" of a bound socket.
std::string tcp_local_address(int fd);
// What such a text stands for, and the text again. Numeric addresses only: nothing is asked of anybody. Reading throws
// std::runtime_error that quotes the text's beginning.
struct TcpEndpoint {
  sockaddr_storage address{};
  socklen_t length = 0;
};
TcpEndpoint tcp_read_address(const std::string& text);
std::string tcp_text(const TcpEndpoint& endpoint);
// Starts to connect; the socket becomes writable when it is done. Throws std::runtime_error on an unreadable address.
Socket tcp_connect(const std::string& address, const TcpTuning& tuning);
// Takes one connection from a listener; empty when none waits. Sets `*error` when accepting itself failed.
Socket tcp_accept(int listener, int* error);
// The error of a finished connect, 0 = connected.
int tcp_pending_error(int fd);
// False when the kernel refuses it.
bool tcp_enable_zerocopy(int fd);

}  // namespace uccl

// Addresses as text: refused with a reason that quotes them, or understood so that writing them again says the same.
#include <stdexcept>

#include "fuzz/allowance.h"
#include "fuzz/targets.h"
#include "native/check.h"
#include "transport/loopback/transport.h"
#include "transport/shared_memory/address.h"
#include "transport/tcp/socket.h"
#include "wire/limits.h"

namespace uccl::fuzz {
namespace {

void shared_memory(const std::string& text) {
  SharedMemoryAddress a;
  try {
    a = SharedMemoryAddress::parse(text);
  } catch (const std::runtime_error& e) {
    CHECK(std::string(e.what()).find("shared_memory: address") == 0);
    CHECK(std::string(e.what()).size() < 400);  // however long the text was
    return;
  }
  CHECK(a.pid >= 0 && a.mailbox_fd >= 0);
  CHECK(a.capacity != 0 && (a.capacity & (a.capacity - 1)) == 0 && a.capacity <= 1u << 16);
  CHECK(a.spans.size() <= text.size() / 6);  // nothing is allocated beyond what was sent
  for (const auto& s : a.spans)
    CHECK(s.bytes != 0 && s.offset <= kMaxRegionBytes && s.bytes <= kMaxRegionBytes - s.offset);
  const SharedMemoryAddress again = SharedMemoryAddress::parse(a.text());
  CHECK_EQ(again.text(), a.text());
}

void loopback(const std::string& text) {
  static u64 session = 0x5eed;
  TransportSettings s;
  s.num_ranks = 2;
  s.session = ++session;
  s.connect_timeout_ns = 0;
  LoopbackTransport transport(s);
  bool refused = false;
  try {
    transport.connect({"", text});
  } catch (const std::runtime_error& e) { refused = std::string(e.what()).find("loopback: rank ") == 0; }
  CHECK(refused || text.empty());  // nobody else is here, so only "no such rank" succeeds
}

// Only read, never connected to: fuzzing knocks at nobody's door.
void tcp(const std::string& text) {
  TcpEndpoint e;
  try {
    e = tcp_read_address(text);
  } catch (const std::runtime_error& error) {
    CHECK(std::string(error.what()).find("tcp: ") == 0);
    CHECK(std::string(error.what()).size() < 400);  // however long the text was
    return;
  }
  CHECK(e.address.ss_family == AF_INET || e.address.ss_family == AF_INET6);
  CHECK(e.length <= sizeof(e.address));
  const std::string again = tcp_text(e);
  CHECK_EQ(tcp_text(tcp_read_address(again)), again);
}

}  // namespace

void addresses(Input input) {
  const std::string text(reinterpret_cast<const char*>(input.data()), input.size());
  count_work(1);
  // Copies of the text, its parts and messages that quote them; the resolver's own buffers.
  const Allowance allowance((64 << 10) + 64 * input.size());
  shared_memory(text);
  shared_memory("shm1 " + text);
  tcp(text);
  tcp("[::1%" + text + "]:80");
  tcp(text + ":1");
  if (input.size() < 64) loopback(text);
  allowance.check("an address");
}

std::vector<std::vector<u8>> addresses_seeds() {
  std::vector<std::vector<u8>> all;
  for (const std::string s :
       {"shm1 17 5 64 0,4096,6", "shm1 17 5 64", "17 5 65536 0,4096,6 4096,1,2147483647", "17 5 64 1099511627776,1,6",
        "17 5 3", "-1 5 64", "17 5 64 0,0,6", "loopback:1:1", "127.0.0.1:80", "[::1]:65535", "[fe80::1%lo]:7",
        "0x7f.1:9", "1.2.3.4", "::ffff:1.2.3.4", "127.0.0.1:0", ""})
    all.emplace_back(s.begin(), s.end());
  return all;
}

}  // namespace uccl::fuzz

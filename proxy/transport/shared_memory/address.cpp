// Text form of a shared-memory address: readable in an error message, checked field by field when it is read.
#include "transport/shared_memory/address.h"

#include <charconv>
#include <stdexcept>

#include "wire/limits.h"

namespace uccl {
namespace {

constexpr char kPrefix[] = "shm1 ";
constexpr u32 kMaxCapacity = 1u << 16;

struct Reader {
  const std::string& text;
  std::size_t at;

  [[noreturn]] void fail(const char* what) const {
    throw std::runtime_error("shared_memory: address '" + text.substr(0, 200) + "': " + what + " at character " +
                             std::to_string(at));
  }
  u64 number(u64 limit) {
    u64 value = 0;
    const char* begin = text.data() + at;
    const auto [end, error] = std::from_chars(begin, text.data() + text.size(), value);
    if (error != std::errc() || value > limit) fail("no number, or one beyond its limit,");
    at += static_cast<std::size_t>(end - begin);
    return value;
  }
  void expect(char c) {
    if (at >= text.size() || text[at] != c) fail("a separator is missing");
    ++at;
  }
};

}  // namespace

std::string SharedMemoryAddress::text() const {
  std::string s = kPrefix + std::to_string(pid) + " " + std::to_string(mailbox_fd) + " " + std::to_string(capacity);
  for (const MappableSpan& m : spans) {
    s += " " + std::to_string(m.offset) + "," + std::to_string(m.bytes) + "," + std::to_string(m.fd);
  }
  return s;
}

SharedMemoryAddress SharedMemoryAddress::parse(const std::string& text) {
  Reader r{text, 0};
  if (text.compare(0, sizeof(kPrefix) - 1, kPrefix) != 0) r.fail("not a shared-memory address");
  r.at = sizeof(kPrefix) - 1;
  SharedMemoryAddress a;
  a.pid = static_cast<int>(r.number(0x7fffffff));
  r.expect(' ');
  a.mailbox_fd = static_cast<int>(r.number(0x7fffffff));
  r.expect(' ');
  a.capacity = static_cast<u32>(r.number(kMaxCapacity));
  if (a.capacity == 0 || (a.capacity & (a.capacity - 1)) != 0) r.fail("the capacity is no power of two");
  while (r.at < text.size()) {
    MappableSpan m{};
    r.expect(' ');
    m.offset = r.number(kMaxRegionBytes);
    r.expect(',');
    m.bytes = r.number(kMaxRegionBytes - m.offset);
    r.expect(',');
    m.fd = static_cast<int>(r.number(0x7fffffff));
    if (m.bytes == 0) r.fail("an empty span");
    a.spans.push_back(m);
  }
  return a;
}

}  // namespace uccl

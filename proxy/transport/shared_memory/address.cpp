// Text form of a shared-memory address: readable in an error message, checked field by field when it is read.
#include "transport/shared_memory/address.h"

#include "transport/text_reader.h"
#include "wire/limits.h"

namespace uccl {
namespace {

constexpr char kPrefix[] = "shm1 ";
constexpr u32 kMaxCapacity = 1u << 16;

}  // namespace

std::string SharedMemoryAddress::text() const {
  std::string s = kPrefix + std::to_string(pid) + " " + std::to_string(mailbox_fd) + " " + std::to_string(capacity);
  for (const MappableSpan& m : spans) {
    s += " " + std::to_string(m.offset) + "," + std::to_string(m.bytes) + "," + std::to_string(m.fd);
  }
  return s;
}

SharedMemoryAddress SharedMemoryAddress::parse(const std::string& text) {
  TextReader r("shared_memory", text, kPrefix);
  SharedMemoryAddress a;
  a.pid = static_cast<int>(r.number(0x7fffffff));
  r.expect(' ');
  a.mailbox_fd = static_cast<int>(r.number(0x7fffffff));
  r.expect(' ');
  a.capacity = static_cast<u32>(r.number(kMaxCapacity));
  if (a.capacity == 0 || (a.capacity & (a.capacity - 1)) != 0) r.fail("the capacity is no power of two");
  while (!r.at_end()) {
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

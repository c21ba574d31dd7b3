// Text form of a libfabric address, checked field by field when it is read; every count is bounded before it is used.
#include "transport/libfabric/address.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>

#include "wire/limits.h"

namespace uccl {
namespace {

constexpr char kPrefix[] = "fi1 ";
constexpr u64 kMostLanes = 256, kMostSpans = 64, kMostNameBytes = 512, kMostProviderBytes = 64;

struct Reader {
  const std::string& text;
  std::size_t at = 0;

  [[noreturn]] void fail(const char* what) const {
    std::string shown = text.substr(0, 100);
    for (char& c : shown) c = c >= ' ' && c < 127 ? c : '?';
    throw std::runtime_error("libfabric: address '" + shown + "': " + what + " at character " + std::to_string(at));
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
  std::string word(u64 most) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    if (end == at || end - at > most) fail("an empty or overlong word");
    std::string w = text.substr(at, end - at);
    at = end;
    return w;
  }
  u32 nibble(char c) const {
    if (c >= '0' && c <= '9') return static_cast<u32>(c - '0');
    if (c >= 'a' && c <= 'f') return static_cast<u32>(c - 'a' + 10);
    fail("an endpoint name that is not hexadecimal");
  }
};

std::string hex(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string s;
  for (const char c : bytes) {
    s += kDigits[static_cast<u8>(c) >> 4];
    s += kDigits[static_cast<u8>(c) & 15];
  }
  return s;
}

std::string unhex(Reader& r) {
  const std::string digits = r.word(2 * kMostNameBytes);
  if (digits.size() % 2 != 0) r.fail("half a byte of an endpoint name");
  std::string bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    bytes += static_cast<char>(r.nibble(digits[i]) << 4 | r.nibble(digits[i + 1]));
  }
  return bytes;
}

std::string comma(std::initializer_list<u64> numbers) {
  std::string s;
  for (const u64 n : numbers) s += (s.empty() ? "" : ",") + std::to_string(n);
  return s;
}

LibfabricAddress::LaneAddress parse_lane(Reader& r) {
  LibfabricAddress::LaneAddress lane;
  r.expect(' ');
  lane.name = unhex(r);
  r.expect(' ');
  lane.mailbox.address = r.number(~0ull);
  r.expect(',');
  lane.mailbox.key = r.number(~0ull);
  r.expect(',');
  lane.mailbox.bytes = r.number(kMaxRegionBytes);
  r.expect(' ');
  for (u64 left = r.number(kMostSpans); left != 0; --left) {
    RemoteMemory m;
    r.expect(' ');
    m.offset = r.number(kMaxRegionBytes);
    r.expect(',');
    m.bytes = r.number(kMaxRegionBytes - m.offset);
    r.expect(',');
    m.address = r.number(~0ull - m.bytes);  // so that no address within it wraps
    r.expect(',');
    m.key = r.number(~0ull);
    if (m.bytes == 0) r.fail("an empty span");
    lane.spans.push_back(m);
  }
  return lane;
}

}  // namespace

const char* source_form_text(SourceForm form) {
  switch (form) {
    case SourceForm::kTag: return "a number in the CQ data that the receiver gave to its sender";
    case SourceForm::kAddress: return "the source endpoint that the provider reports";
    case SourceForm::kImmediate: return "the immediate's own source field";
  }
  return "unknown";
}

std::string LibfabricAddress::text() const {
  std::string s =
      kPrefix + provider + " " + std::to_string(static_cast<u32>(source_form)) + " " + std::to_string(lanes.size());
  for (const LaneAddress& l : lanes) {
    s += " " + hex(l.name) + " " + comma({l.mailbox.address, l.mailbox.key, l.mailbox.bytes}) + " " +
         std::to_string(l.spans.size());
    for (const RemoteMemory& m : l.spans) s += " " + comma({m.offset, m.bytes, m.address, m.key});
  }
  return s;
}

LibfabricAddress LibfabricAddress::parse(const std::string& text) {
  Reader r{text};
  if (text.compare(0, sizeof(kPrefix) - 1, kPrefix) != 0) r.fail("not a libfabric address of this version");
  r.at = sizeof(kPrefix) - 1;
  LibfabricAddress a;
  a.provider = r.word(kMostProviderBytes);
  r.expect(' ');
  const u64 form = r.number(3);
  if (form == 0) r.fail("an unknown source form");
  a.source_form = static_cast<SourceForm>(form);
  r.expect(' ');
  const u64 lanes = r.number(kMostLanes);
  if (lanes == 0) r.fail("no lane");
  for (u64 i = 0; i < lanes; ++i) a.lanes.push_back(parse_lane(r));
  if (r.at != text.size()) r.fail("something behind the end");
  return a;
}

}  // namespace uccl

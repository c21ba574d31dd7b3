// Text form of a libfabric address, checked field by field when it is read; every count is bounded before it is used.
#include "transport/libfabric/address.h"

#include "transport/text_reader.h"
#include "wire/limits.h"

namespace uccl {
namespace {

constexpr char kPrefix[] = "fi1 ";
constexpr u64 kMostLanes = 256, kMostSpans = 64, kMostNameBytes = 512, kMostProviderBytes = 64;

u32 nibble(const TextReader& r, char c) {
  if (c >= '0' && c <= '9') return static_cast<u32>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<u32>(c - 'a' + 10);
  r.fail("an endpoint name that is not hexadecimal");
}

std::string hex(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string s;
  for (const char c : bytes) {
    s += kDigits[static_cast<u8>(c) >> 4];
    s += kDigits[static_cast<u8>(c) & 15];
  }
  return s;
}

std::string unhex(TextReader& r) {
  const std::string digits = r.word(2 * kMostNameBytes);
  if (digits.size() % 2 != 0) r.fail("half a byte of an endpoint name");
  std::string bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    bytes += static_cast<char>(nibble(r, digits[i]) << 4 | nibble(r, digits[i + 1]));
  }
  return bytes;
}

std::string comma(std::initializer_list<u64> numbers) {
  std::string s;
  for (const u64 n : numbers) s += (s.empty() ? "" : ",") + std::to_string(n);
  return s;
}

LibfabricAddress::LaneAddress parse_lane(TextReader& r) {
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
  TextReader r("libfabric", text, kPrefix);
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
  if (!r.at_end()) r.fail("something behind the end");
  return a;
}

}  // namespace uccl

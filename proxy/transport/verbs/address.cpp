// The address as bytes: a magic number, a version, then the fields in order, each bounds-checked.
#include "transport/verbs/address.h"

#include <cstring>
#include <stdexcept>

#include "wire/limits.h"

namespace uccl {
namespace {

constexpr u32 kMagic = 0x56455055;  // "UPEV"
constexpr u32 kVersion = 2;
constexpr u32 kMaxNics = 64;
constexpr u32 kMaxSpans = 64;
constexpr u32 kMaxQueues = 64;
constexpr u32 kMaxLanes = 256;
constexpr u64 kMinChunkBytes = 4096;

class Writer {
 public:
  template <class T>
  void put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void put(const std::string& s) {
    put(static_cast<u32>(s.size()));
    bytes_ += s;
  }
  void put(const std::vector<u32>& v) {
    put(static_cast<u32>(v.size()));
    bytes_.append(reinterpret_cast<const char*>(v.data()), v.size() * sizeof(u32));
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}

  template <class T>
  T get(const char* field) {
    T value;
    need(field, sizeof(T));
    std::memcpy(&value, left_.data(), sizeof(T));
    left_.remove_prefix(sizeof(T));
    return value;
  }
  template <class T>
  T bounded(const char* field, T low, T high) {
    const T value = get<T>(field);
    if (value < low || value > high) {
      fail(field, std::to_string(value) + ", allowed are " + std::to_string(low) + " to " + std::to_string(high));
    }
    return value;
  }
  std::string text(const char* field, u32 most) {
    const u32 n = bounded<u32>(field, 0, most);
    need(field, n);
    std::string s(left_.substr(0, n));
    for (const char c : s)
      if (c < ' ' || c > '~') fail(field, "bytes that are no text");
    left_.remove_prefix(n);
    return s;
  }
  std::vector<u32> words(const char* field, u64 expected) {
    const u32 n = get<u32>(field);
    if (n != expected) fail(field, std::to_string(n) + " entries, expected are " + std::to_string(expected));
    need(field, static_cast<u64>(n) * sizeof(u32));  // before anything is allocated for them
    std::vector<u32> v(n);
    if (n != 0) std::memcpy(v.data(), left_.data(), n * sizeof(u32));
    left_.remove_prefix(n * sizeof(u32));
    return v;
  }
  bool empty() const { return left_.empty(); }
  [[noreturn]] static void fail(const char* field, const std::string& what) {
    throw std::invalid_argument(std::string("address: ") + field + ": " + what);
  }

 private:
  void need(const char* field, u64 bytes) const {
    if (left_.size() < bytes) {
      fail(field, "ends after " + std::to_string(left_.size()) + " of " + std::to_string(bytes) + " bytes");
    }
  }
  std::string_view left_;
};

u32 valid_mtu(u32 mtu) {
  if (mtu != 256 && mtu != 512 && mtu != 1024 && mtu != 2048 && mtu != 4096 && (mtu < 1024 || mtu > 65536)) {
    Reader::fail("nic mtu", std::to_string(mtu) + ", allowed are 256, 512, and 1024 to 65536");
  }
  return mtu;
}

VerbsNicAddress read_nic(Reader& in, u64 num_rkeys, u64 num_queue_pairs) {
  VerbsNicAddress n;
  n.device = in.text("nic device", 64);
  n.port = in.bounded<u32>("nic port", 1, 255);
  n.link_layer = in.bounded<u32>("nic link_layer", 0, 2);
  n.gid_type = in.bounded<u32>("nic gid_type", 0, 2);
  n.mtu = valid_mtu(in.get<u32>("nic mtu"));
  n.lid = in.bounded<u32>("nic lid", 0, 0xffff);
  n.gid = in.get<ibv::Gid>("nic gid");
  n.greeting_base = in.get<u64>("nic greeting_base");
  n.greeting_rkey = in.get<u32>("nic greeting_rkey");
  n.rkeys = in.words("nic rkeys", num_rkeys);
  n.queue_pairs = in.words("nic queue_pairs", num_queue_pairs);
  for (const u32 qpn : n.queue_pairs)
    if (qpn > 0xffffff) Reader::fail("nic queue_pairs", std::to_string(qpn) + " has more than 24 bits");
  return n;
}

}  // namespace

u64 num_chunks(u64 span_bytes, u64 chunk_bytes) { return ceil_div(span_bytes, chunk_bytes); }

std::string encode_address(const VerbsAddress& a) {
  Writer out;
  for (const u32 v : {kMagic, kVersion, static_cast<u32>(a.kind)}) out.put(v);
  out.put(a.fingerprint);
  out.put(a.nonce);
  for (const u32 v : {a.rank, a.num_ranks, a.num_lanes, a.queues, a.max_in_flight, a.qkey}) out.put(v);
  out.put(a.chunk_bytes);
  out.put(static_cast<u32>(a.spans.size()));
  for (const VerbsSpanAddress& s : a.spans) {
    for (const u64 v : {s.offset, s.bytes, s.base}) out.put(v);
  }
  out.put(static_cast<u32>(a.nics.size()));
  for (const VerbsNicAddress& n : a.nics) {
    out.put(n.device);
    for (const u32 v : {n.port, n.link_layer, n.gid_type, n.mtu, n.lid}) out.put(v);
    out.put(n.gid);
    out.put(n.greeting_base);
    out.put(n.greeting_rkey);
    out.put(n.rkeys);
    out.put(n.queue_pairs);
  }
  return out.take();
}

VerbsAddress decode_address(std::string_view bytes) {
  Reader in(bytes);
  VerbsAddress a;
  if (in.get<u32>("magic") != kMagic) Reader::fail("magic", "these bytes are no address of a verbs or efa transport");
  in.bounded<u32>("version", kVersion, kVersion);
  a.kind = static_cast<VerbsKind>(in.bounded<u32>("kind", 1, 3));
  a.fingerprint = in.get<u64>("fingerprint");
  a.nonce = in.get<Nonce>("nonce");
  a.rank = in.bounded<u32>("rank", 0, kMaxRanks - 1);
  a.num_ranks = in.bounded<u32>("num_ranks", a.rank + 1, kMaxRanks);
  a.num_lanes = in.bounded<u32>("num_lanes", 1, kMaxLanes);
  a.queues = in.bounded<u32>("queues", 1, kMaxQueues);
  a.max_in_flight = in.bounded<u32>("max_in_flight", 1, 1u << 16);
  a.qkey = in.get<u32>("qkey");
  a.chunk_bytes = in.bounded<u64>("chunk_bytes", kMinChunkBytes, kMaxRegionBytes);
  u64 rkeys = 0;
  for (u32 i = in.bounded<u32>("number of spans", 0, kMaxSpans); i > 0; --i) {
    VerbsSpanAddress s;
    s.offset = in.bounded<u64>("span offset", 0, kMaxRegionBytes);
    s.bytes = in.bounded<u64>("span bytes", 0, kMaxRegionBytes);
    s.base = in.get<u64>("span base");
    if (s.base + s.bytes < s.base) Reader::fail("span base", "the span passes the end of the address space");
    rkeys += num_chunks(s.bytes, a.chunk_bytes);
    a.spans.push_back(s);
  }
  const u64 pairs =
      a.kind != VerbsKind::kReliableConnected ? a.num_lanes : static_cast<u64>(a.num_ranks) * a.num_lanes * a.queues;
  for (u32 i = in.bounded<u32>("number of nics", 1, kMaxNics); i > 0; --i) a.nics.push_back(read_nic(in, rkeys, pairs));
  if (!in.empty()) Reader::fail("end", "there are bytes behind it");
  return a;
}

}  // namespace uccl

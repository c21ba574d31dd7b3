// A peer's spans and the pieces of a request: each within a chunk here, a chunk there and a message; together the whole.
#include <memory>

#include "native/check.h"
#include "proxy/transport/verbs/fake_verbs.h"
#include "transport/verbs/remote_spans.h"

using namespace uccl;

namespace {

constexpr u64 kChunk = 1 << 16;

// Two spans of the peer, 100,000 and 70,000 bytes: two chunks each.
RemoteSpans spans() {
  VerbsAddress a;
  a.chunk_bytes = kChunk;
  a.spans = {{1000, 100000, 0x10000000}, {1 << 20, 70000, 0x20000000}};
  RemoteSpans s;
  s.set(a);
  return s;
}

WriteRequest request(u64 offset, u64 bytes, const u8* source = nullptr) { return {1, 0, source, offset, bytes}; }

struct Ours {  // 300,000 bytes of memory, registered in chunks of 64 KiB
  Ours() : bytes(300000) {
    fake::Fabric::begin({});
    TransportSettings s;
    s.local.add(Span{0, bytes.size(), bytes.data()});
    VerbsTuning t;
    t.chunk_bytes = kChunk;
    nic = std::make_unique<VerbsNic>(fake::Fabric::the().functions(), NicSettings{"fake0", 1, -1}, s.fabric, notes);
    memory = std::make_unique<VerbsMemory>(*nic, s, t, notes);
  }
  std::vector<u8> bytes;
  std::vector<Note> notes;
  std::unique_ptr<VerbsNic> nic;
  std::unique_ptr<VerbsMemory> memory;
};

}  // namespace

TEST(transport_verbs_remote_spans_find_the_span_that_holds_all) {
  const RemoteSpans s = spans();
  CHECK_EQ(s.find(request(1000, 100000))->base, 0x10000000u);
  CHECK_EQ(s.find(request(1 << 20, 1))->first_chunk, 2u);
  CHECK(s.find(request(999, 1)) == nullptr);
  CHECK(s.find(request(1000, 100001)) == nullptr);
  CHECK(s.find(request((1 << 20) + 69999, 2)) == nullptr);
  CHECK(s.find(request(1001, ~0ull)) == nullptr);  // the sum wraps
}

TEST(transport_verbs_route_cuts_a_request_at_every_border) {
  const Ours ours;
  const RemoteSpans s = spans();
  for (const u64 largest : {u64{1} << 30, u64{5000}}) {
    for (u64 from = 0; from < 3 * kChunk; from += 9973) {  // where it begins here
      const WriteRequest r = request(1000 + from % 29000, 70000, ours.bytes.data() + from);
      const Route route{ours.memory.get(), s.find(r), s.chunk_bytes(), largest};
      u32 pieces = 0;
      for (u64 at = 0; at < r.bytes; ++pieces) {
        const Cut c = route.cut(r, at);
        const u64 here = from + at, there = r.remote_offset - 1000 + at;
        CHECK(c.bytes != 0 && c.bytes <= largest);
        CHECK_EQ(here / kChunk, (here + c.bytes - 1) / kChunk);
        CHECK_EQ(there / kChunk, (there + c.bytes - 1) / kChunk);
        CHECK_EQ(c.chunk, there / kChunk);
        CHECK_EQ(c.remote_address, 0x10000000u + there);
        // No shorter than it has to be.
        at += c.bytes;
        CHECK(at == r.bytes || c.bytes == largest || (here + c.bytes) % kChunk == 0 || (there + c.bytes) % kChunk == 0);
      }
      CHECK_EQ(route.count_pieces(r), pieces);
    }
  }
}

TEST(transport_verbs_route_has_no_pieces_where_the_source_is_not_registered) {
  const Ours ours;
  const RemoteSpans s = spans();
  const std::vector<u8> elsewhere(16);
  const WriteRequest r = request(1000, 16, elsewhere.data());
  CHECK_EQ((Route{ours.memory.get(), s.find(r), s.chunk_bytes(), 1 << 30}).count_pieces(r), 0u);
  const WriteRequest past =
      request(1000, 16, ours.bytes.data() + 299990);  // its last bytes lie behind what is registered
  CHECK_EQ((Route{ours.memory.get(), s.find(past), s.chunk_bytes(), 1 << 30}).count_pieces(past), 0u);
}

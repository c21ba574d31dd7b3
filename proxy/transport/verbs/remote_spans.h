// Where a peer's memory is, and how a request is cut into pieces that each lie in one registration at both ends. Shared
// by the families that write through verbs.
#pragma once
#include <algorithm>
#include <vector>

#include "transport/transport.h"
#include "transport/verbs/address.h"
#include "transport/verbs/memory.h"

namespace uccl {

struct RemoteSpan {
  u64 offset, bytes, base;
  u32 first_chunk;  // its place among the chunks of all spans, which is the order of the peer's rkeys
};

// A peer's spans, of which each is registered in chunks of the same size.
class RemoteSpans {
 public:
  void set(const VerbsAddress& address);
  const RemoteSpan* find(const WriteRequest& r) const { return find_span(spans_, r.remote_offset, r.bytes); }
  u64 chunk_bytes() const { return chunk_bytes_; }

 private:
  std::vector<RemoteSpan> spans_;
  u64 chunk_bytes_ = 0;
};

// A piece of a request. No bytes: its source is not registered.
struct Cut {
  u64 bytes = 0;
  u32 lkey = 0, chunk = 0;  // the chunk is the peer's
  bool readable = false;
  u64 remote_address = 0;
};

// The way of one request: from our memory on a NIC into a span of the peer's.
struct Route {
  const VerbsMemory* memory;
  const RemoteSpan* span;  // null: nothing there holds the whole request
  u64 chunk_bytes;
  u64 largest;  // bytes of one message

  // The piece that begins at byte `at`: up to the end of its chunk here, of its chunk there, or of one message.
  Cut cut(const WriteRequest& r, u64 at) const {
    const VerbsMemory::Piece local = memory->find(r.source + at);
    const u64 there = r.remote_offset - span->offset + at;
    const u64 chunk = there / chunk_bytes;
    const u64 left = (chunk + 1) * chunk_bytes - there;
    return {std::min({r.bytes - at, local.bytes, left, largest}), local.lkey,
            span->first_chunk + static_cast<u32>(chunk), local.readable, span->base + there};
  }
  u32 count_pieces(const WriteRequest& r) const;  // 0: some of it is not registered
};

}  // namespace uccl

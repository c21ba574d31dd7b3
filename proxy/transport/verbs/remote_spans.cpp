// Where a peer's flat offsets lie on its side: lookup, and cutting of writes at the borders of its registrations.
#include "transport/verbs/remote_spans.h"

namespace uccl {

void RemoteSpans::set(const VerbsAddress& address) {
  chunk_bytes_ = address.chunk_bytes;
  u32 first_chunk = 0;
  for (const VerbsSpanAddress& s : address.spans) {
    spans_.push_back({s.offset, s.bytes, s.base, first_chunk});
    first_chunk += static_cast<u32>(num_chunks(s.bytes, address.chunk_bytes));
  }
}

u32 Route::count_pieces(const WriteRequest& r) const {
  u32 pieces = 0;
  for (u64 at = 0; at < r.bytes; ++pieces) {
    const u64 bytes = cut(r, at).bytes;
    if (bytes == 0) return 0;
    at += bytes;
  }
  return pieces;
}

}  // namespace uccl

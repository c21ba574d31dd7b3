// Copies a row past the caches, to memory that this processor does not read soon: a cached store first reads the line that
// it overwrites, and drives out the rows that are still to be copied. 1.4 times memcpy's speed over 200 MB (AMD EPYC).
#pragma once
#include <cstring>

#include "wire/types.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace uccl::simt::host {

// Addresses and size are multiples of 16 bytes. The stores are complete, for every other processor too, on return.
inline void copy_out(u8* dst, const u8* src, u64 bytes) {
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)  // ThreadSanitizer does not see such stores
  const auto* const from = reinterpret_cast<const __m128i*>(src);
  auto* const to = reinterpret_cast<__m128i*>(dst);
  const u64 units = bytes / sizeof(__m128i);
  u64 i = 0;
  for (; i + 4 <= units; i += 4) {
    const __m128i a = _mm_load_si128(from + i), b = _mm_load_si128(from + i + 1);
    const __m128i c = _mm_load_si128(from + i + 2), d = _mm_load_si128(from + i + 3);
    _mm_stream_si128(to + i, a);
    _mm_stream_si128(to + i + 1, b);
    _mm_stream_si128(to + i + 2, c);
    _mm_stream_si128(to + i + 3, d);
  }
  for (; i < units; ++i) _mm_stream_si128(to + i, _mm_load_si128(from + i));
  _mm_sfence();  // a release store orders no such stores
#else
  std::memcpy(dst, src, bytes);
#endif
}

}  // namespace uccl::simt::host

// Copies a row past the caches, to memory that this processor does not read soon: a cached store first reads the line that
// it overwrites, and drives out the rows that are still to be copied. 1.4 times memcpy's speed over 200 MB (AMD EPYC).
#pragma once
#include <cstring>

#include "wire/types.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace uccl::simt::host {

#if defined(__x86_64__)
// 16 bytes past the caches, to a multiple of 16; complete after _mm_sfence().
inline void stream(void* to, __m128i v) {
#if defined(__SANITIZE_THREAD__)  // ThreadSanitizer does not see such stores
  _mm_store_si128(static_cast<__m128i*>(to), v);
#else
  _mm_stream_si128(static_cast<__m128i*>(to), v);
#endif
}
#endif

// Addresses and size are multiples of 16 bytes. The stores are complete, for every other processor too, on return.
inline void copy_out(u8* dst, const u8* src, u64 bytes) {
#if defined(__x86_64__)
  const auto* const from = reinterpret_cast<const __m128i*>(src);
  auto* const to = reinterpret_cast<__m128i*>(dst);
  const u64 units = bytes / sizeof(__m128i);
  u64 i = 0;
  for (; i + 4 <= units; i += 4) {
    const __m128i a = _mm_load_si128(from + i), b = _mm_load_si128(from + i + 1);
    const __m128i c = _mm_load_si128(from + i + 2), d = _mm_load_si128(from + i + 3);
    stream(to + i, a);
    stream(to + i + 1, b);
    stream(to + i + 2, c);
    stream(to + i + 3, d);
  }
  for (; i < units; ++i) stream(to + i, _mm_load_si128(from + i));
  _mm_sfence();  // a release store orders no such stores
#else
  std::memcpy(dst, src, bytes);
#endif
}

}  // namespace uccl::simt::host

// AVX-512 (F and BW): 16 floats a vector. Only these functions use the instructions; vector.cpp asks the CPU first.
#include "kernels/host/vector_table.h"

#if defined(__x86_64__)
#if defined(__GNUC__) && \
    !defined(__clang__)  // GCC 12's own header leaves don't-care operands uninitialised (PR 105593)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "kernels/host/copy_out.h"

#define VECTOR_FN __attribute__((target("avx512f,avx512bw"))) static inline

namespace uccl::simt::host {
namespace {

struct V {
  using F = __m512;
  static constexpr u32 kLanes = 16;

  VECTOR_FN F zero() { return _mm512_setzero_ps(); }
  VECTOR_FN F set(float v) { return _mm512_set1_ps(v); }
  VECTOR_FN F load(const u16* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  VECTOR_FN F abs(F v) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff)));
  }
  VECTOR_FN F max(F a, F b) { return _mm512_max_ps(a, b); }  // b when one is NaN
  VECTOR_FN F add(F a, F b) { return _mm512_add_ps(a, b); }
  VECTOR_FN F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  VECTOR_FN F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  VECTOR_FN float largest(F v) { return _mm512_reduce_max_ps(v); }

  // f_to_bf16 of simt.h. Not vcvtneps2bf16: it flushes subnormals.
  VECTOR_FN __m256i round(F v) {
    const __m512i u = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0)));
  }
  VECTOR_FN void put(u16* p, __m256i v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
  VECTOR_FN void put_past(u16* p, __m256i v) {
    stream(p, _mm256_castsi256_si128(v));
    stream(p + 8, _mm256_extracti128_si256(v, 1));
  }
  VECTOR_FN void finish() { _mm_sfence(); }
  // e4m3_software of fp8.h.
  VECTOR_FN void store_e4m3(u8* p, F v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    const __m512i clamped = _mm512_min_epi32(magnitude, _mm512_set1_epi32(0x43e00000));
    const __m512i shifted = _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(clamped), _mm512_set1_ps(16384.f)));
    const __m512i subnormal = _mm512_sub_epi32(shifted, _mm512_set1_epi32(0x46800000));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(clamped, 20), _mm512_set1_epi32(1));
    const __m512i rebias = _mm512_set1_epi32(0x7ffff - (120 << 23));
    const __m512i normal = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(clamped, rebias), odd), 20);
    const __mmask16 small = _mm512_cmplt_epi32_mask(clamped, _mm512_set1_epi32(121 << 23));
    const __m512i value = _mm512_or_si512(sign, _mm512_mask_mov_epi32(normal, small, subnormal));
    const __mmask16 nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm512_cvtepi32_epi8(_mm512_mask_mov_epi32(value, nan, _mm512_set1_epi32(0x7f))));
  }
  // e4m3_to_f of fp8.h: subnormals are so many 512ths.
  VECTOR_FN F load_e4m3(const u8* p) {
    const __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m512i magnitude = _mm512_and_si512(codes, _mm512_set1_epi32(0x7f));
    const __m512i normal = _mm512_add_epi32(_mm512_slli_epi32(magnitude, 20), _mm512_set1_epi32(120 << 23));
    const __m512i subnormal =
        _mm512_castps_si512(_mm512_mul_ps(_mm512_cvtepi32_ps(magnitude), _mm512_set1_ps(1.f / 512.f)));
    const __mmask16 small = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(8));
    const __mmask16 nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f));
    const __m512i value =
        _mm512_mask_mov_epi32(_mm512_mask_mov_epi32(normal, small, subnormal), nan, _mm512_set1_epi32(0x7fc00000));
    return _mm512_castsi512_ps(_mm512_or_si512(value, _mm512_slli_epi32(_mm512_srli_epi32(codes, 7), 31)));
  }
};

}  // namespace
}  // namespace uccl::simt::host

#include "kernels/host/vector_body.h"

namespace uccl::simt::host {
const VectorTable* avx512_table() { return &kLevel; }
}  // namespace uccl::simt::host
#else
namespace uccl::simt::host {
const VectorTable* avx512_table() { return nullptr; }
}  // namespace uccl::simt::host
#endif

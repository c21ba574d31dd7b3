// AVX2 and FMA: 8 floats a vector. Only these functions use the instructions; vector.cpp asks the CPU first.
#include "kernels/host/vector_table.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/host/copy_out.h"

#define VECTOR_FN __attribute__((target("avx2,fma"))) static inline

namespace uccl::simt::host {
namespace {

struct V {
  using F = __m256;
  static constexpr u32 kLanes = 8;

  VECTOR_FN F zero() { return _mm256_setzero_ps(); }
  VECTOR_FN F set(float v) { return _mm256_set1_ps(v); }
  VECTOR_FN F load(const u16* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  VECTOR_FN F abs(F v) { return _mm256_and_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff))); }
  VECTOR_FN F max(F a, F b) { return _mm256_max_ps(a, b); }  // b when one is NaN
  VECTOR_FN F add(F a, F b) { return _mm256_add_ps(a, b); }
  VECTOR_FN F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  VECTOR_FN F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  VECTOR_FN float largest(F v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
  }

  // 32-bit lanes below 2^16 to 16-bit lanes, in order.
  VECTOR_FN __m128i narrow(__m256i v) {
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(v, v), 0x08);
    return _mm256_castsi256_si128(packed);
  }
  // f_to_bf16 of simt.h.
  VECTOR_FN __m128i round(F v) {
    const __m256i u = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i rounded = _mm256_srli_epi32(up, 16);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return narrow(_mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan));
  }
  VECTOR_FN void put(u16* p, __m128i v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v); }
  VECTOR_FN void put_past(u16* p, __m128i v) { stream(p, v); }
  VECTOR_FN void finish() { _mm_sfence(); }
  // e4m3_software of fp8.h.
  VECTOR_FN void store_e4m3(u8* p, F v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    const __m256i clamped = _mm256_min_epi32(magnitude, _mm256_set1_epi32(0x43e00000));
    const __m256i shifted = _mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(clamped), _mm256_set1_ps(16384.f)));
    const __m256i subnormal = _mm256_sub_epi32(shifted, _mm256_set1_epi32(0x46800000));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(clamped, 20), _mm256_set1_epi32(1));
    const __m256i rebias = _mm256_set1_epi32(0x7ffff - (120 << 23));
    const __m256i normal = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(clamped, rebias), odd), 20);
    const __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(121 << 23), clamped);
    const __m256i value = _mm256_or_si256(sign, _mm256_blendv_epi8(normal, subnormal, small));
    const __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
    const __m128i words = narrow(_mm256_blendv_epi8(value, _mm256_set1_epi32(0x7f), nan));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
  }
  // e4m3_to_f of fp8.h: subnormals are so many 512ths.
  VECTOR_FN F load_e4m3(const u8* p) {
    const __m256i codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const __m256i magnitude = _mm256_and_si256(codes, _mm256_set1_epi32(0x7f));
    const __m256i normal = _mm256_add_epi32(_mm256_slli_epi32(magnitude, 20), _mm256_set1_epi32(120 << 23));
    const __m256i subnormal =
        _mm256_castps_si256(_mm256_mul_ps(_mm256_cvtepi32_ps(magnitude), _mm256_set1_ps(1.f / 512.f)));
    const __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), magnitude);
    const __m256i nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f));
    const __m256i value =
        _mm256_blendv_epi8(_mm256_blendv_epi8(normal, subnormal, small), _mm256_set1_epi32(0x7fc00000), nan);
    return _mm256_castsi256_ps(_mm256_or_si256(value, _mm256_slli_epi32(_mm256_srli_epi32(codes, 7), 31)));
  }
};

}  // namespace
}  // namespace uccl::simt::host

#include "kernels/host/vector_body.h"

namespace uccl::simt::host {
const VectorTable* avx2_table() { return &kLevel; }
}  // namespace uccl::simt::host
#else
namespace uccl::simt::host {
const VectorTable* avx2_table() { return nullptr; }
}  // namespace uccl::simt::host
#endif

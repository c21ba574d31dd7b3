// NEON: 4 floats a vector, on every aarch64 CPU.
#include "kernels/host/vector_table.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#define VECTOR_FN static inline

namespace uccl::simt::host {
namespace {

struct V {
  using F = float32x4_t;
  static constexpr u32 kLanes = 4;

  VECTOR_FN F zero() { return vdupq_n_f32(0); }
  VECTOR_FN F set(float v) { return vdupq_n_f32(v); }
  VECTOR_FN F load(const u16* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
  VECTOR_FN F abs(F v) { return vabsq_f32(v); }
  // b when a is NaN. Not vmaxnmq: it answers a signalling NaN, which many bf16 NaN are, with NaN.
  VECTOR_FN F max(F a, F b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  VECTOR_FN F add(F a, F b) { return vaddq_f32(a, b); }
  VECTOR_FN F mul(F a, F b) { return vmulq_f32(a, b); }
  VECTOR_FN F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  VECTOR_FN float largest(F v) { return vmaxnmvq_f32(v); }

  // f_to_bf16 of simt.h.
  VECTOR_FN uint16x4_t round(F v) {
    const uint32x4_t u = vreinterpretq_u32_f32(v);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vshrq_n_u32(vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
    return vmovn_u32(vbslq_u32(vceqq_f32(v, v), rounded, vdupq_n_u32(0x7fc0)));
  }
  VECTOR_FN void put(u16* p, uint16x4_t v) { vst1_u16(p, v); }
  VECTOR_FN void put_past(u16* p, uint16x4_t v) { put(p, v); }  // no intrinsic says so
  VECTOR_FN void finish() {}
  // e4m3_software of fp8.h.
  VECTOR_FN void store_e4m3(u8* p, F v) {
    const uint32x4_t bits = vreinterpretq_u32_f32(v);
    const uint32x4_t sign = vandq_u32(vshrq_n_u32(bits, 24), vdupq_n_u32(0x80));
    const uint32x4_t magnitude = vandq_u32(bits, vdupq_n_u32(0x7fffffff));
    const uint32x4_t clamped = vminq_u32(magnitude, vdupq_n_u32(0x43e00000));
    const uint32x4_t shifted = vreinterpretq_u32_f32(vaddq_f32(vreinterpretq_f32_u32(clamped), vdupq_n_f32(16384.f)));
    const uint32x4_t subnormal = vsubq_u32(shifted, vdupq_n_u32(0x46800000));
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(clamped, 20), vdupq_n_u32(1));
    const uint32x4_t rebias = vdupq_n_u32(0x7ffffu - (120u << 23));
    const uint32x4_t normal = vshrq_n_u32(vaddq_u32(vaddq_u32(clamped, rebias), odd), 20);
    const uint32x4_t small = vcltq_u32(clamped, vdupq_n_u32(121u << 23));
    const uint32x4_t value = vorrq_u32(sign, vbslq_u32(small, subnormal, normal));
    const uint32x4_t whole = vbslq_u32(vcgtq_u32(magnitude, vdupq_n_u32(0x7f800000)), vdupq_n_u32(0x7f), value);
    const uint16x4_t words = vmovn_u32(whole);
    const uint8x8_t bytes = vmovn_u16(vcombine_u16(words, words));
    vst1_lane_u32(reinterpret_cast<u32*>(p), vreinterpret_u32_u8(bytes), 0);
  }
  // e4m3_to_f of fp8.h: subnormals are so many 512ths.
  VECTOR_FN F load_e4m3(const u8* p) {
    u32 four;
    __builtin_memcpy(&four, p, sizeof four);
    const uint32x4_t codes = vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
    const uint32x4_t magnitude = vandq_u32(codes, vdupq_n_u32(0x7f));
    const uint32x4_t normal = vaddq_u32(vshlq_n_u32(magnitude, 20), vdupq_n_u32(120u << 23));
    const uint32x4_t subnormal = vreinterpretq_u32_f32(vmulq_f32(vcvtq_f32_u32(magnitude), vdupq_n_f32(1.f / 512.f)));
    const uint32x4_t finite = vbslq_u32(vcltq_u32(magnitude, vdupq_n_u32(8)), subnormal, normal);
    const uint32x4_t value = vbslq_u32(vceqq_u32(magnitude, vdupq_n_u32(0x7f)), vdupq_n_u32(0x7fc00000), finite);
    return vreinterpretq_f32_u32(vorrq_u32(value, vshlq_n_u32(vshrq_n_u32(codes, 7), 31)));
  }
};

}  // namespace
}  // namespace uccl::simt::host

#include "kernels/host/vector_body.h"

namespace uccl::simt::host {
const VectorTable* neon_table() { return &kLevel; }
}  // namespace uccl::simt::host
#else
namespace uccl::simt::host {
const VectorTable* neon_table() { return nullptr; }
}  // namespace uccl::simt::host
#endif

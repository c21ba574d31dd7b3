// The generic body over a "vector" of two plain floats: what it does beyond any instruction set.
#include <algorithm>
#include <cmath>

#include "kernels/host/vector_compare.h"

#define VECTOR_FN static inline

namespace uccl::simt::host {
namespace {

u32 put_past_and_not_finished = 0;

struct V {
  struct F {
    float a, b;
  };
  static constexpr u32 kLanes = 2;

  VECTOR_FN F zero() { return {0, 0}; }
  VECTOR_FN F set(float v) { return {v, v}; }
  VECTOR_FN F load(const u16* p) { return {bf16_to_f(p[0]), bf16_to_f(p[1])}; }
  VECTOR_FN F abs(F v) { return {fabs_(v.a), fabs_(v.b)}; }
  VECTOR_FN F max(F x, F y) { return {fmax_(x.a, y.a), fmax_(x.b, y.b)}; }
  VECTOR_FN F add(F x, F y) { return {x.a + y.a, x.b + y.b}; }
  VECTOR_FN F mul(F x, F y) { return {x.a * y.a, x.b * y.b}; }
  VECTOR_FN F fma(F x, F y, F z) { return {fma_(x.a, y.a, z.a), fma_(x.b, y.b, z.b)}; }
  VECTOR_FN float largest(F v) { return fmax_(v.a, v.b); }
  struct Pair {
    u16 a, b;
  };
  VECTOR_FN Pair round(F v) { return {f_to_bf16(v.a), f_to_bf16(v.b)}; }
  VECTOR_FN void put(u16* p, Pair v) { p[0] = v.a, p[1] = v.b; }
  VECTOR_FN void put_past(u16* p, Pair v) {
    put(p, v);
    ++put_past_and_not_finished;
  }
  VECTOR_FN void finish() { put_past_and_not_finished = 0; }
  VECTOR_FN void store_e4m3(u8* p, F v);
  VECTOR_FN F load_e4m3(const u8* p);
};

}  // namespace
}  // namespace uccl::simt::host

#include "kernels/host/vector_body.h"

namespace uccl::simt::host {
namespace {

void V::store_e4m3(u8* p, F v) {
  p[0] = static_cast<u8>(e4m3_software(v.a)), p[1] = static_cast<u8>(e4m3_software(v.b));
}
V::F V::load_e4m3(const u8* p) { return {e4m3_to_f(p[0]), e4m3_to_f(p[1])}; }

}  // namespace

TEST(vector_body_over_two_floats_equals_scalar) {
  compare_quantize(kLevel, 26);
  compare_reduce(kLevel, 27);
  for (u64 seed = 28; seed < 40; ++seed) compare_reduce_coded(kLevel, seed);
  CHECK_EQ(put_past_and_not_finished, 0u);
}

}  // namespace uccl::simt::host

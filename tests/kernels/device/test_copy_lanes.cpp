// The lane versions of the row helpers against plain loops. That the host's vector versions give the same bytes is in
// test_copy.cpp.
#include <cmath>

#include "kernels/device/copy_lanes.h"
#include "kernels/device/on_device.h"
#include "kernels/device/row.h"

namespace uccl::simt {

TEST(copy_lanes_unpack_and_pack_keep_the_order_of_channels) {
  u128 unit{0x0004000300020001ull, 0x0008000700060005ull};
  float f[8];
  lanes::unpack_bf16(unit, f);
  for (u32 i = 0; i < 8; ++i) CHECK_EQ(f_bits(f[i]), (i + 1) << 16);
  const u128 back = lanes::pack_bf16(f);
  CHECK(back.lo == unit.lo && back.hi == unit.hi);
}

TEST(copy_lanes_copy_and_zero_any_number_of_units) {
  for (u64 units = 0; units < 5 * kWarp + 3; units += units < 6 ? 1 : 17) {
    Row<u64> from(2 * units), to(2 * units), zero(2 * units);
    for (u64 i = 0; i < 2 * units; ++i) from[i] = i * 0x9e3779b97f4a7c15ull + 1, zero[i] = ~0ull;
    to[2 * units] = zero[2 * units] = 77;  // the guard
    on_warp([&] {
      lanes::copy_row(reinterpret_cast<u8*>(to.data()), reinterpret_cast<const u8*>(from.data()), units * 16);
      lanes::zero_row(reinterpret_cast<u8*>(zero.data()), units * 16);
    });
    for (u64 i = 0; i < 2 * units; ++i) CHECK(to[i] == from[i] && zero[i] == 0);
    CHECK(to[2 * units] == 77 && zero[2 * units] == 77);
  }
}

TEST(copy_lanes_quantize_by_the_contract) {
  Random random(11);
  for (const u32 hidden : {128u, 384u, 640u, 2048u}) {
    Row<u16> x(hidden);
    for (u32 i = 0; i < hidden; ++i) x[i] = plain_bf16(random);
    for (const bool round_scale : {false, true}) {
      Row<u8> bytes(hidden);
      Row<float> scales(hidden / 128);
      bytes[hidden] = 0x5a;  // the guard
      on_warp([&] { lanes::quantize_row(x.data(), bytes.data(), scales.data(), hidden, round_scale); });
      for (u32 i = 0; i < hidden; ++i) {
        float amax = 0;
        for (u32 k = i / 128 * 128; k < i / 128 * 128 + 128; ++k) amax = std::max(amax, std::fabs(bf16_to_f(x[k])));
        const Fp8Scale s = fp8_scale(amax, round_scale);
        CHECK_EQ(scales[i / 128], s.scale_inv);
        CHECK_EQ(u32{bytes[i]}, e4m3_software(bf16_to_f(x[i]) * s.scale));
      }
      CHECK_EQ(u32{bytes[hidden]}, 0x5au);
    }
  }
}

TEST(copy_lanes_quantize_ue8m0_keeps_only_exponents) {
  Random random(12);
  for (const u32 groups : {1u, 2u, 3u, 4u, 5u, 16u, 57u}) {
    const u32 hidden = groups * 128, words = (groups + 3) / 4;
    Row<u16> x(hidden);
    for (u32 i = 0; i < hidden; ++i) x[i] = plain_bf16(random);
    Row<u8> bytes(hidden), expect_bytes(hidden);
    Row<float> scales(groups);
    std::vector<u32> packed(words + 1, 0xeeeeeeee);
    on_warp([&] {
      lanes::quantize_row_ue8m0(x.data(), bytes.data(), packed.data(), hidden);
      lanes::quantize_row(x.data(), expect_bytes.data(), scales.data(), hidden, true);
    });
    CHECK(bytes == expect_bytes);
    for (u32 g = 0; g < words * 4; ++g)
      CHECK_EQ(packed[g / 4] >> 8 * (g % 4) & 0xff, g < groups ? ue8m0(scales[g]) : 0u);
    CHECK_EQ(packed[words], 0xeeeeeeeeu);
  }
}

TEST(copy_lanes_reduce_in_order_with_one_rounding) {
  // Large, then its negative, then small: any other order or an early rounding loses the small one.
  const u32 hidden = 24;
  Row<u16> big(hidden), minus_big(hidden), small(hidden), out(hidden);
  for (u32 i = 0; i < hidden; ++i)
    big[i] = f_to_bf16(0x1p30f), minus_big[i] = f_to_bf16(-0x1p30f), small[i] = f_to_bf16(1.f + static_cast<float>(i));
  const u16* in_order[] = {big.data(), minus_big.data(), small.data()};
  const u16* out_of_order[] = {small.data(), big.data(), minus_big.data()};
  on_warp([&] { lanes::reduce_rows({out.data(), in_order, nullptr, 3, hidden, nullptr, nullptr}); });
  CHECK(out == small);
  on_warp([&] { lanes::reduce_rows({out.data(), out_of_order, nullptr, 3, hidden, nullptr, nullptr}); });
  for (u32 i = 0; i < hidden; ++i) CHECK_EQ(out[i], 0);
  on_warp([&] { lanes::reduce_rows({out.data(), nullptr, nullptr, 0, hidden, small.data(), nullptr}); });
  CHECK(out == small);
  on_warp([&] { lanes::reduce_rows({out.data(), nullptr, nullptr, 0, hidden, big.data(), minus_big.data()}); });
  for (u32 i = 0; i < hidden; ++i) CHECK_EQ(out[i], 0);
}

}  // namespace uccl::simt

// The NVFP4 row helper: lane code and host code give the same bytes, the right ones, and nothing beyond the row.
#include <cmath>

#include "kernels/device/fp4_row.h"
#include "kernels/device/on_device.h"
#include "kernels/device/row.h"

namespace uccl::simt {
namespace {

struct Nvfp4Out {
  Row<u8> bytes, scales;
  explicit Nvfp4Out(u32 hidden) : bytes(hidden / 2), scales(hidden / 16) {
    std::memset(bytes.data(), 0xee, hidden / 2 + 16);
    std::memset(scales.data(), 0xee, hidden / 16 + 16);
  }
  Nvfp4RowArgs args(Row<u16>* x, u32 hidden, float global) {
    return Nvfp4RowArgs{x->data(), bytes.data(), scales.data(), hidden, global};
  }
  bool operator==(const Nvfp4Out& o) const { return bytes == o.bytes && scales == o.scales; }
};

}  // namespace

TEST(fp4_row_is_the_same_in_lanes_and_on_the_host) {
  Random random(21);
  for (const u32 hidden : {16u, 32u, 48u, 64u, 256u, 272u, 512u, 1040u, 2048u, 7168u})
    for (const bool special : {false, true})
      for (const float global : {1.f, 2688.f, 0.037f}) {
        Row<u16> x(hidden);
        for (u32 i = 0; i < hidden; ++i) x[i] = special ? any_bf16(random) : plain_bf16(random);
        if (special) std::memset(x.data(), 0, 32);  // one group of zeros
        Nvfp4Out by_lanes(hidden), by_host(hidden);
        on_warp([&] { lanes::quantize_row_nvfp4(by_lanes.args(&x, hidden, global)); });
        on_warp([&] { quantize_row_nvfp4(by_host.args(&x, hidden, global)); });
        CHECK(by_lanes == by_host);
        CHECK_EQ(u32{by_host.bytes[hidden / 2]}, 0xeeu);
        CHECK_EQ(u32{by_host.scales[hidden / 16]}, 0xeeu);
      }
}

TEST(fp4_row_follows_the_recipe) {
  Random random(22);
  const u32 hidden = 1024;
  Row<u16> x(hidden);
  float most = 0;
  for (u32 i = 0; i < hidden; ++i) x[i] = plain_bf16(random), most = std::max(most, std::fabs(bf16_to_f(x[i])));
  const float global = 448.f * 6.f / most;
  Nvfp4Out out(hidden);
  on_warp([&] { quantize_row_nvfp4(out.args(&x, hidden, global)); });
  for (u32 g = 0; g < hidden / 16; ++g) {
    float amax = 0;
    for (u32 i = 0; i < 16; ++i) amax = std::max(amax, std::fabs(bf16_to_f(x[g * 16 + i])));
    const Nvfp4Scale s = nvfp4_scale(amax, global, 1.f / global);
    CHECK_EQ(u32{out.scales[g]}, s.code);
    for (u32 i = 0; i < 16; ++i) {
      const u32 code = out.bytes[g * 8 + i / 2] >> 4 * (i % 2) & 15u;  // the first channel in the low half
      const float value = bf16_to_f(x[g * 16 + i]);
      CHECK_EQ(code, e2m1(value * s.scale));
      const float back = e2m1_to_f(code) * e4m3_to_f(static_cast<u8>(s.code)) / global;
      CHECK(std::fabs(back - value) <= amax / 5);  // half the widest step, 1 of 6, and the scale's own rounding
    }
  }
}

TEST(fp4_row_has_a_float_of_its_own) {
  Random random(24);
  for (u32 round = 0; round < 40; ++round) {
    const u32 hidden = 16 * (1 + below(random, 200));
    Row<u16> x(hidden);
    float amax = 0;
    for (u32 i = 0; i < hidden; ++i) x[i] = plain_bf16(random), amax = std::max(amax, std::fabs(bf16_to_f(x[i])));
    const auto find = [&] {
      u32 by_lanes[kWarp] = {}, by_host = 0;
      on_warp([&] {
        by_lanes[lane()] = lanes::largest_magnitude(x.data(), hidden);
        const u32 most = largest_magnitude(x.data(), hidden);
        if (lane() == 0) by_host = most;
      });
      for (const u32 most : by_lanes) CHECK_EQ(most, by_host);
      return by_host;
    };
    CHECK_EQ(bf16_to_f(static_cast<u16>(find())), amax);
    CHECK_EQ(nvfp4_row_scale(find()).global, 2688.f / amax);
    x[below(random, hidden)] = round % 2 ? 0xff80 : 0x7fc1;  // an infinity or a NaN: there is no number for the row
    CHECK(std::isnan(nvfp4_row_scale(find()).inverse));
  }
  CHECK(std::isfinite(nvfp4_row_scale(0).global) && nvfp4_row_scale(0).inverse > 0);
}

TEST(fp4_row_of_nothing_writes_nothing) {
  Row<u16> x(16);
  Nvfp4Out out(0);
  on_warp([&] { quantize_row_nvfp4(out.args(&x, 0, 1.f)); });
  on_warp([&] { lanes::quantize_row_nvfp4(out.args(&x, 0, 1.f)); });
  CHECK_EQ(u32{out.bytes[0]}, 0xeeu);
  CHECK_EQ(u32{out.scales[0]}, 0xeeu);
}

}  // namespace uccl::simt

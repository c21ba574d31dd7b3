// Sums of coded rows: lanes and every host vector level give the same bytes as a loop over channels.
#include <cmath>

#include "kernels/device/copy.h"
#include "kernels/device/fp4_row.h"
#include "kernels/device/on_device.h"
#include "kernels/device/row.h"

namespace uccl::simt {
namespace {

constexpr host::VectorLevel kLevels[] = {host::VectorLevel::kScalar, host::VectorLevel::kNeon, host::VectorLevel::kAvx2,
                                         host::VectorLevel::kAvx512};

// A row of random bytes has NaN and subnormals among its codes and scales.
template <RowFormat kFormat>
void compare_reduce_coded(u64 seed) {
  Random random(seed);
  constexpr RowCode code = row_code(kFormat);
  for (int round = 0; round < 40; ++round) {
    const u32 hidden = code.unit * (1 + below(random, round < 30 ? 5 : 60)), count = below(random, 10);
    const u32 scales_at = hidden * code.bits / 8, tail_at = scales_at + hidden / code.block() * code.scale_bytes;
    std::vector<Row<float>> rows(count, Row<float>(tail_at / 4 + 1));
    std::vector<const u8*> pointers;
    std::vector<float> weights;
    for (Row<float>& row : rows) {
      u8* const codes = reinterpret_cast<u8*>(row.data());
      Row<u16> x(hidden);
      for (u32 i = 0; i < hidden; ++i) x[i] = plain_bf16(random);
      float* const floats = row.data() + scales_at / 4;
      for (u32 i = 0; i < tail_at; ++i) codes[i] = static_cast<u8>(random());
      for (u32 g = 0; code.scale_bytes == 4 && g < hidden / code.block(); ++g)
        floats[g] = std::uniform_real_distribution<float>(0, 2)(random);
      row[tail_at / 4] = std::uniform_real_distribution<float>(0, 2)(random);
      if (round % 2 == 0)
        on_warp([&] {
          if constexpr (kFormat == RowFormat::kFp8) quantize_row(x.data(), codes, floats, hidden, false);
          if constexpr (kFormat == RowFormat::kMxfp8) quantize_row_mxfp8(x.data(), codes, codes + scales_at, hidden);
          if constexpr (kFormat == RowFormat::kNvfp4Row)
            quantize_row_nvfp4(Nvfp4RowArgs{x.data(), codes, codes + scales_at, hidden, 100.f});
        });
      pointers.push_back(codes);
      weights.push_back(std::uniform_real_distribution<float>(0.f, 1.f)(random));
    }
    Row<u16> by_hand(hidden), by_lanes(hidden);
    for (u32 c = 0; c < hidden; ++c) {
      float acc = 0.f;
      for (u32 r = 0; r < count; ++r) {
        const u8* const scale = pointers[r] + scales_at + c / code.block() * code.scale_bytes;
        const u32 nibble = pointers[r][c / 2] >> 4 * (c % 2) & 15u;
        const float value =
            kFormat == RowFormat::kNvfp4Row ? e2m1_to_f(nibble) * (e4m3_to_f(*scale) * rows[r][tail_at / 4])
            : kFormat == RowFormat::kMxfp8  ? e4m3_to_f(pointers[r][c]) * ue8m0_to_f(*scale)
                                            : e4m3_to_f(pointers[r][c]) * rows[r][scales_at / 4 + c / 128];
        acc = std::fma(value, weights[r], acc);
      }
      by_hand[c] = f_to_bf16(acc);
    }
    CodedRows args{by_lanes.data(), pointers.data(), weights.data(), count, hidden, scales_at, tail_at};
    on_warp([&] { lanes::reduce_coded_rows<kFormat>(args); });
    CHECK(by_lanes == by_hand);
    for (const host::VectorLevel level : kLevels) {
      if (!host::set_vector_level(level)) continue;
      Row<u16> by_vector(hidden);
      args.out = by_vector.data();
      on_warp([&] { reduce_coded_rows<kFormat>(args); });
      CHECK(by_vector == by_hand);
    }
    host::set_vector_level(host::best_vector_level());
  }
}

}  // namespace

TEST(coded_rows_are_summed_alike_in_lanes_at_every_vector_level_and_by_hand) {
  compare_reduce_coded<RowFormat::kFp8>(17);
  compare_reduce_coded<RowFormat::kMxfp8>(18);
  compare_reduce_coded<RowFormat::kNvfp4Row>(19);
}

}  // namespace uccl::simt

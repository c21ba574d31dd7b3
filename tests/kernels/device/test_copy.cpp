// Row helpers: the lane code and every host vector level give the same bytes, and the right ones.
#include <cmath>

#include "kernels/device/copy.h"
#include "kernels/device/on_device.h"
#include "kernels/device/row.h"

namespace uccl::simt {
namespace {

constexpr host::VectorLevel kLevels[] = {host::VectorLevel::kScalar, host::VectorLevel::kNeon, host::VectorLevel::kAvx2,
                                         host::VectorLevel::kAvx512};

// Runs `body` at every vector level that this CPU has, and leaves the best one set.
template <class Body>
void at_every_level(Body body) {
  for (const host::VectorLevel level : kLevels)
    if (host::set_vector_level(level)) body();
  host::set_vector_level(host::best_vector_level());
}

struct Quantised {
  Row<u8> bytes;
  Row<float> scales;
  Row<u8> bytes_ue8m0;
  Row<u32> packed;
  explicit Quantised(u32 hidden) : bytes(hidden), scales(hidden / 128), bytes_ue8m0(hidden), packed(hidden / 512 + 1) {
    std::memset(packed.data(), 0xee, (hidden / 128 + 3) / 4 * 4);
  }
  bool operator==(const Quantised& o) const {
    return bytes == o.bytes && scales == o.scales && bytes_ue8m0 == o.bytes_ue8m0 && packed == o.packed;
  }
};

}  // namespace

TEST(copy_quantize_is_the_same_in_lanes_and_at_every_vector_level) {
  Random random(5);
  for (const u32 hidden : {128u, 256u, 384u, 640u, 1152u, 2048u, 7168u}) {
    for (const bool special : {false, true}) {
      Row<u16> x(hidden);
      for (u32 i = 0; i < hidden; ++i) x[i] = special ? any_bf16(random) : plain_bf16(random);
      if (special) std::memset(x.data(), 0, 256);  // one group of zeros
      for (const bool round_scale : {false, true}) {
        Quantised by_lanes(hidden);
        on_warp([&] {
          lanes::quantize_row(x.data(), by_lanes.bytes.data(), by_lanes.scales.data(), hidden, round_scale);
          lanes::quantize_row_ue8m0(x.data(), by_lanes.bytes_ue8m0.data(), by_lanes.packed.data(), hidden);
        });
        at_every_level([&] {
          Quantised by_vector(hidden);
          on_warp([&] {
            quantize_row(x.data(), by_vector.bytes.data(), by_vector.scales.data(), hidden, round_scale);
            quantize_row_ue8m0(x.data(), by_vector.bytes_ue8m0.data(), by_vector.packed.data(), hidden);
          });
          CHECK(by_vector == by_lanes);
        });
      }
    }
  }
}

TEST(copy_quantize_follows_the_contract) {
  Random random(6);
  const u32 hidden = 1024;
  Row<u16> x(hidden);
  for (u32 i = 0; i < hidden; ++i) x[i] = plain_bf16(random);
  Row<u8> bytes(hidden);
  Row<float> scales(hidden / 128);
  on_warp([&] { quantize_row(x.data(), bytes.data(), scales.data(), hidden, false); });
  for (u32 g = 0; g < hidden / 128; ++g) {
    float amax = 1e-4f;
    for (u32 i = g * 128; i < (g + 1) * 128; ++i) amax = std::max(amax, std::fabs(bf16_to_f(x[i])));
    CHECK_EQ(scales[g], amax * (1.f / 448.f));
    for (u32 i = g * 128; i < (g + 1) * 128; ++i) {
      CHECK_EQ(u32{bytes[i]}, e4m3_software(bf16_to_f(x[i]) * (448.f / amax)));
      CHECK(std::fabs(e4m3_to_f(bytes[i]) * scales[g] - bf16_to_f(x[i])) <= amax / 16);
    }
  }
}

TEST(copy_packs_exponents_four_a_word_and_fills_the_tail) {
  for (u32 groups = 1; groups < 140; groups += 3) {
    std::vector<float> scales(groups);
    for (u32 i = 0; i < groups; ++i) scales[i] = bits_f((100 + i % 50) << 23);
    std::vector<u32> packed((groups + 3) / 4 + 1, 0xeeeeeeeeu);
    on_warp([&] { pack_ue8m0(scales.data(), packed.data(), groups); });
    for (u32 i = 0; i < packed.size() * 4; ++i) {
      const u32 byte = packed[i / 4] >> 8 * (i % 4) & 0xff;
      CHECK_EQ(byte, i < groups ? 100 + i % 50 : i < (groups + 3) / 4 * 4 ? 0u : 0xeeu);
    }
  }
}

TEST(copy_reduce_is_the_same_in_lanes_at_every_vector_level_and_by_hand) {
  Random random(7);
  for (int round = 0; round < 60; ++round) {
    const u32 hidden = 8 * (1 + below(random, round < 50 ? 40 : 900));
    const u32 count = below(random, 10);
    const bool special = round % 4 == 3;
    const auto draw = [&](Row<u16>* row) {
      for (u32 i = 0; i < hidden; ++i) (*row)[i] = special ? any_bf16(random) : plain_bf16(random);
    };
    std::vector<Row<u16>> rows(count, Row<u16>(hidden));
    std::vector<const u16*> pointers;
    std::vector<float> weights;
    for (Row<u16>& row : rows) {
      draw(&row);
      pointers.push_back(row.data());
      weights.push_back(std::uniform_real_distribution<float>(0.f, 1.f)(random));
    }
    Row<u16> bias0(hidden), bias1(hidden);
    draw(&bias0);
    draw(&bias1);
    const float* const w = round % 3 == 0 ? nullptr : weights.data();
    const u16* const b0 = round % 2 ? bias0.data() : nullptr;
    const u16* const b1 = round / 2 % 2 ? bias1.data() : nullptr;

    Row<u16> by_hand(hidden), by_lanes(hidden);
    for (u32 c = 0; c < hidden; ++c) {
      float acc = b0 ? bf16_to_f(b0[c]) : 0.f;
      if (b1) acc = acc + bf16_to_f(b1[c]);
      for (u32 r = 0; r < count; ++r) {
        const float v = bf16_to_f(rows[r][c]);
        acc = w ? std::fma(v, w[r], acc) : acc + v;
      }
      by_hand[c] = f_to_bf16(acc);
    }
    const lanes::ReduceArgs lanewise{by_lanes.data(), pointers.data(), w, count, hidden, b0, b1};
    on_warp([&] { lanes::reduce_rows(lanewise); });
    CHECK(by_lanes == by_hand);
    std::fill_n(by_lanes.data(), hidden, u16{0});
    on_warp([&] { lanes::reduce_rows<lanes::kFarRowsInFlight>(lanewise); });
    CHECK(by_lanes == by_hand);
    at_every_level([&] {
      Row<u16> by_vector(hidden);
      on_warp([&] { reduce_rows(by_vector.data(), pointers.data(), w, count, hidden, RowBias{b0, b1}); });
      CHECK(by_vector == by_hand);
      for (const u64 total_bytes : {u64{0}, kLargeResultBytes}) {
        if (w) break;
        Row<u16> out(hidden);
        on_warp([&] { sum_rows_out(out.data(), pointers.data(), count, hidden, RowBias{b0, b1}, total_bytes); });
        CHECK(out == by_hand);
      }
    });
  }
}

TEST(copy_quantises_to_mxfp8_the_same_in_lanes_and_at_every_vector_level) {
  Random random(23);
  for (u32 round = 0; round < 60; ++round) {
    const u32 hidden = 32 * (1 + below(random, round < 50 ? 9 : 230));
    Row<u16> x(hidden);
    for (u32 i = 0; i < hidden; ++i) x[i] = round % 2 ? any_bf16(random) : plain_bf16(random);
    if (round % 3 == 0) std::memset(x.data(), 0, 64);  // a group of zeros
    Row<u8> codes(hidden), exponents(hidden / 32);
    on_warp([&] { lanes::quantize_row_mxfp8(x.data(), codes.data(), exponents.data(), hidden); });
    at_every_level([&] {
      Row<u8> same_codes(hidden), same_exponents(hidden / 32);
      on_warp([&] { quantize_row_mxfp8(x.data(), same_codes.data(), same_exponents.data(), hidden); });
      CHECK(codes == same_codes);
      CHECK(exponents == same_exponents);
    });
  }
}

// Blocks that are told apart by their scale alone: the largest value of each is just held, or just not by the exponent
// below. Zero, the smallest, the largest and infinite ones among them.
TEST(copy_mxfp8_has_the_least_exponent_that_holds_a_block) {
  const std::pair<float, int> cases[] = {
      {448.f, 127},   {450.f, 128},     {224.f, 126},     {1.f, 119},        {0.f, 1},
      {0x1p-126f, 1}, {0x1.8p-118f, 1}, {0x1.8p-117f, 2}, {0x1.8p127f, 246}, {bits_f(0x7f800000u), 255}};
  for (const auto& [largest, exponent] : cases) {
    Row<u16> x(32);
    for (u32 i = 0; i < 32; ++i) x[i] = i == 5 ? f_to_bf16(largest) : 0;
    Row<u8> codes(32), exponents(1);
    on_warp([&] { quantize_row_mxfp8(x.data(), codes.data(), exponents.data(), 32); });
    CHECK_EQ(static_cast<int>(exponents[0]), exponent);
    const float back = e4m3_to_f(codes[5]) * ue8m0_to_f(exponents[0]);
    if (exponent == 255)
      CHECK(back != back);
    else
      CHECK(std::fabs(back - largest) <= largest / 16);
  }
}

TEST(copy_moves_and_zeroes_exactly_the_row) {
  Random random(8);
  for (int round = 0; round < 40; ++round) {
    const u64 bytes = 16 * below(random, round < 30 ? 70 : 2000);
    Row<u8> source(bytes + 64), by_vector(bytes + 64), by_lanes(bytes + 64);
    for (u64 i = 0; i < bytes + 64; ++i) source[i] = static_cast<u8>(random());
    for (Row<u8>* target : {&by_vector, &by_lanes}) std::memset(target->data(), 0xaa, bytes + 64);
    on_warp([&] {
      copy_row(by_vector.data() + 16, source.data() + 16, bytes);
      lanes::copy_row(by_lanes.data() + 16, source.data() + 16, bytes);
    });
    CHECK(by_vector == by_lanes);
    for (u64 i = 0; i < bytes + 64; ++i) CHECK_EQ(+by_vector[i], i >= 16 && i < 16 + bytes ? source[i] : 0xaa);
    on_warp([&] {
      zero_row(by_vector.data() + 16, bytes);
      lanes::zero_row(by_lanes.data() + 16, bytes);
    });
    CHECK(by_vector == by_lanes);
    for (u64 i = 0; i < bytes + 64; ++i) CHECK_EQ(+by_vector[i], i >= 16 && i < 16 + bytes ? 0 : 0xaa);
  }
}

}  // namespace uccl::simt

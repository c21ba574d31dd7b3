// Compares a vector level with the scalar one on random rows, row ends that are no multiple of its width included.
#pragma once
#include <cstring>

#include "kernels/device/on_device.h"
#include "kernels/host/vector_table.h"

namespace uccl::simt::host {

inline void compare_quantize(const VectorTable& table, u64 seed) {
  Random random(seed);
  for (int round = 0; round < 400; ++round) {
    u16 x[128];
    for (u16& v : x) v = round % 2 ? any_bf16(random) : plain_bf16(random);
    u8 bytes[129] = {}, expect[129] = {};
    bytes[128] = expect[128] = 0x5a;
    float scale_inv, expect_scale_inv;
    table.quantize_group(x, bytes, round % 3 == 0, &scale_inv);
    scalar_table()->quantize_group(x, expect, round % 3 == 0, &expect_scale_inv);
    CHECK(std::memcmp(bytes, expect, sizeof bytes) == 0);
    CHECK_EQ(f_bits(scale_inv), f_bits(expect_scale_inv));
  }
}

inline void compare_reduce(const VectorTable& table, u64 seed) {
  Random random(seed);
  for (u32 hidden = 8; hidden <= 200; hidden += 8) {
    const u32 count = below(random, 6);
    std::vector<std::vector<u16>> rows(count + 2, std::vector<u16>(hidden));
    std::vector<const u16*> pointers;
    std::vector<float> weights;
    for (auto& row : rows) {
      for (u16& v : row) v = hidden % 16 ? any_bf16(random) : plain_bf16(random);
      pointers.push_back(row.data());
      weights.push_back(std::uniform_real_distribution<float>(-1.f, 1.f)(random));
    }
    for (u32 variant = 0; variant < 16; ++variant) {
      std::vector<u16> out(hidden + 40, 0xaaaa), expect(hidden + 40, 0xaaaa);
      ReduceArgs args{out.data(),
                      pointers.data(),
                      variant & 1 ? weights.data() : nullptr,
                      count,
                      hidden,
                      variant & 2 ? pointers[count] : nullptr,
                      variant & 4 ? pointers[count + 1] : nullptr,
                      (variant & 8) != 0};
      table.reduce(args);
      args.out = expect.data();
      scalar_table()->reduce(args);
      CHECK(out == expect);
    }
  }
}

// All codes of e4m3, NaN among them.
inline void compare_reduce_fp8(const VectorTable& table, u64 seed) {
  Random random(seed);
  for (u32 hidden = 128; hidden <= 512; hidden += 128) {
    const u32 count = below(random, 6), row_bytes = hidden + hidden / 128 * 4;
    std::vector<std::vector<float>> rows(count, std::vector<float>(row_bytes / 4));  // for their alignment
    std::vector<const u8*> pointers;
    std::vector<float> weights;
    for (auto& row : rows) {
      u8* const codes = reinterpret_cast<u8*>(row.data());
      for (u32 i = 0; i < hidden; ++i) codes[i] = static_cast<u8>(hidden == 128 ? 2 * i + count : random());
      for (u32 g = 0; g < hidden / 128; ++g) row[hidden / 4 + g] = std::uniform_real_distribution<float>(0, 3)(random);
      pointers.push_back(codes);
      weights.push_back(std::uniform_real_distribution<float>(-1.f, 1.f)(random));
    }
    std::vector<u16> out(hidden + 40, 0xaaaa), expect(hidden + 40, 0xaaaa);
    table.reduce_fp8(Fp8ReduceArgs{out.data(), pointers.data(), weights.data(), count, hidden, hidden});
    scalar_table()->reduce_fp8(Fp8ReduceArgs{expect.data(), pointers.data(), weights.data(), count, hidden, hidden});
    CHECK(out == expect);
  }
}

// For levels that this CPU may not have: then it must be refused, and there is nothing to compare.
inline void compare_level(VectorLevel level, const VectorTable* table, u64 seed) {
  const VectorLevel before = vector_level();
  if (!set_vector_level(level)) {
    CHECK(vector_level() == before);
    return;
  }
  set_vector_level(before);
  CHECK(table != nullptr);
  compare_quantize(*table, seed);
  compare_reduce(*table, seed);
  for (u64 i = 0; i < 20; ++i) compare_reduce_fp8(*table, seed + i);
}

}  // namespace uccl::simt::host

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
    bytes[32] = expect[32] = 0x5a;
    table.quantize_mxfp8(x, bytes, &scale_inv);
    scalar_table()->quantize_mxfp8(x, expect, &expect_scale_inv);
    CHECK(std::memcmp(bytes, expect, 33) == 0);
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

// Bytes at random: all codes, NaN among codes and scales. Where scales are floats, they and a row's own are small.
inline void compare_reduce_coded(const VectorTable& table, RowFormat format, u64 seed) {
  Random random(seed);
  const RowCode code = row_code(format);
  for (u32 hidden = code.unit; hidden <= 4 * code.unit; hidden += code.unit) {
    const u32 codes = hidden * code.bits / 8,
              scales = static_cast<u32>(align_up(hidden / code.block(), 4)) * code.scale_bytes;
    const u32 count = below(random, 6), row_bytes = codes + scales + 4;
    std::vector<std::vector<float>> rows(count, std::vector<float>(row_bytes / 4));  // for their alignment
    std::vector<const u8*> pointers;
    std::vector<float> weights;
    for (auto& row : rows) {
      u8* const bytes = reinterpret_cast<u8*>(row.data());
      for (u32 i = 0; i < codes + scales; ++i)
        bytes[i] = static_cast<u8>(hidden == code.unit ? 2 * i + count : random());
      for (u32 g = 0; code.scale_bytes == 4 && g < scales / 4; ++g)
        row[codes / 4 + g] = std::uniform_real_distribution<float>(0, 3)(random);
      row[(codes + scales) / 4] = std::uniform_real_distribution<float>(0, 3)(random);
      pointers.push_back(bytes);
      weights.push_back(std::uniform_real_distribution<float>(-1.f, 1.f)(random));
    }
    std::vector<u16> out(hidden + 40, 0xaaaa), expect(hidden + 40, 0xaaaa);
    const auto sum = [&](const VectorTable& t, std::vector<u16>* to) {
      const CodedRows args{to->data(), pointers.data(), weights.data(), count, hidden, codes, codes + scales};
      (format == RowFormat::kFp8 ? t.reduce_fp8 : format == RowFormat::kMxfp8 ? t.reduce_mxfp8 : t.reduce_nvfp4)(args);
    };
    sum(table, &out);
    sum(*scalar_table(), &expect);
    CHECK(out == expect);
  }
}
inline void compare_reduce_coded(const VectorTable& table, u64 seed) {
  for (const RowFormat format : {RowFormat::kFp8, RowFormat::kMxfp8, RowFormat::kNvfp4Row})
    compare_reduce_coded(table, format, seed);
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
  for (u64 i = 0; i < 20; ++i) compare_reduce_coded(*table, seed + i);
}

}  // namespace uccl::simt::host

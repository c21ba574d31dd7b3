// Picks the vector level once from the CPU (see vector.h). A table of functions instead of ifunc or target_clones:
// those run before sanitizers are ready.
#include "kernels/host/vector.h"

#include <atomic>
#include <cstring>

#include "kernels/device/fp8.h"
#include "kernels/host/vector_table.h"

namespace uccl::simt::host {
namespace {

bool cpu_has(VectorLevel level) {
  switch (level) {
    case VectorLevel::kScalar: return true;
    case VectorLevel::kNeon: return neon_table() != nullptr;
#if defined(__x86_64__)
    case VectorLevel::kAvx2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case VectorLevel::kAvx512: return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
#endif
    default: return false;
  }
}

const VectorTable* table_of(VectorLevel level) {
  switch (level) {
    case VectorLevel::kNeon: return neon_table();
    case VectorLevel::kAvx2: return avx2_table();
    case VectorLevel::kAvx512: return avx512_table();
    default: return scalar_table();
  }
}

std::atomic<VectorLevel>& level_in_use() {
  static std::atomic<VectorLevel> level{best_vector_level()};
  return level;
}

const VectorTable& table() { return *table_of(level_in_use().load(std::memory_order_relaxed)); }

}  // namespace

VectorLevel best_vector_level() {
  for (const VectorLevel level : {VectorLevel::kAvx512, VectorLevel::kAvx2, VectorLevel::kNeon})
    if (cpu_has(level)) return level;
  return VectorLevel::kScalar;
}

VectorLevel vector_level() { return level_in_use().load(std::memory_order_relaxed); }

bool set_vector_level(VectorLevel level) {
  if (!cpu_has(level)) return false;
  level_in_use().store(level, std::memory_order_relaxed);
  return true;
}

void quantize_row(const u16* x, u8* out, float* scale_inv, u32 hidden, bool round_scale) {
  const auto quantize_group = table().quantize_group;
  for (u32 g = 0; g < hidden / kScaleGroup; ++g)
    quantize_group(x + g * kScaleGroup, out + g * kScaleGroup, round_scale, scale_inv + g);
}

void quantize_row_ue8m0(const u16* x, u8* out, u32* packed, u32 hidden) {
  const auto quantize_group = table().quantize_group;
  const u32 groups = hidden / kScaleGroup;
  for (u32 first = 0; first < groups; first += 4) {
    u32 word = 0;
    for (u32 g = first; g < first + 4 && g < groups; ++g) {
      float scale_inv;
      quantize_group(x + g * kScaleGroup, out + g * kScaleGroup, true, &scale_inv);
      word |= ue8m0(scale_inv) << 8 * (g - first);
    }
    packed[first / 4] = word;
  }
}

void quantize_row_mxfp8(const u16* x, u8* out, u8* exponents, u32 hidden) {
  const auto quantize = table().quantize_mxfp8;
  for (u32 first = 0; first < hidden; first += kMxfp8Group) {
    float scale_inv;
    quantize(x + first, out + first, &scale_inv);
    exponents[first / kMxfp8Group] = static_cast<u8>(ue8m0(scale_inv));
  }
}

void reduce_rows(const ReduceArgs& args) { table().reduce(args); }

void reduce_coded_rows(RowFormat format, const CodedRows& args) {
  const VectorTable& t = table();
  (format == RowFormat::kMxfp8 ? t.reduce_mxfp8 : format == RowFormat::kNvfp4Row ? t.reduce_nvfp4 : t.reduce_fp8)(args);
}

}  // namespace uccl::simt::host

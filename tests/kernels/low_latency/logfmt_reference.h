// logfmt-10 in one loop over a row: what a row becomes on its way through the encoding (kernels/low_latency/logfmt.h).
#pragma once
#include <cmath>
#include <vector>

#include "kernels/values.h"

namespace uccl::testing {

inline std::vector<float> logfmt_round_trip(const std::vector<u16>& row) {
  const u64 unit = row.size() % 1024 == 0 ? 1024 : 512;
  std::vector<float> out(row.size());
  for (u64 u = 0; u < row.size(); u += unit) {
    bool encoded = true;
    std::vector<float> amax, amin;
    for (u64 b = u; b < u + unit; b += 128) {
      float high = 0, low = INFINITY;
      for (u64 i = b; i < b + 128; ++i) {
        high = std::fmax(high, std::fabs(bf16_value(row[i])));
        low = std::fmin(low, std::fabs(bf16_value(row[i])));
      }
      low = std::fmax(low, high * std::exp2(-32.0f));  // so that a zero does not take the whole scale
      encoded = encoded && high < 1.0f && high > std::exp2(-90.0f) && low < high;
      amax.push_back(high);
      amin.push_back(low);
    }
    for (u64 i = u; i < u + unit; ++i) {
      const float v = bf16_value(row[i]), size = std::fabs(v);
      out[i] = v;
      if (!encoded) continue;
      const float from = std::log2(amin[(i - u) / 128]), step = (std::log2(amax[(i - u) / 128]) - from) / 510.0f;
      const float half = 2.0f - std::log2((1.0f + std::exp2(step)) / 2.0f) / step;  // rounds in linear space
      float code = size == 0 ? 0 : std::floor(std::fmax(0.0f, (std::log2(size) - from) / step + half));
      if (code > 511) code = 511;
      out[i] = code == 0 ? 0.0f : std::copysign(std::exp2((code - 1) * step + from), v);
    }
  }
  return out;
}

}  // namespace uccl::testing

// Rows of combine written and summed in parts: the same bytes as whole, in every format.
#include "kernels/host/runtime.h"
#include "kernels/low_latency/calls.h"
#include "kernels/low_latency/combine_rows.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

constexpr u32 kHidden = 2048;

void on_warp(const std::function<void()>& body) { simt::launch({1, simt::kWarp, 0, 1, 0}, body); }

// Of `piece` channels each.
template <class Take>
void each_part(RowFormat format, u32 piece, Take take) {
  for (u32 first = 0; first < kHidden; first += piece) take(RowPart{format, kHidden, first, piece});
}

}  // namespace

TEST(combine_rows_written_and_summed_in_parts_are_whole) {
  constexpr u32 kCount = 3;
  for (const RowFormat format : kCombineFormats) {
    std::vector<Poisoned<u8>> whole, parts;
    const u16* rows[kCount];
    const float weights[kCount] = {0.25f, -1.5f, 0.7f};
    const u64 slot = 16 + 2 * kHidden;
    for (u32 r = 0; r < kCount; ++r) {
      whole.emplace_back(slot), parts.emplace_back(slot);
      Poisoned<u16> x(kHidden);
      fill_row(x.data(), kHidden, mix(r + 1));
      u64 bytes = 0;
      on_warp([&] {
        const u64 written = write_row(RowPart{format, kHidden, 0, kHidden}, x.data(), whole[r].data(), 0);
        if (simt::lane() == 0) bytes = written;
      });
      const u32 piece = format == RowFormat::kLogfmt ? kHidden : 1024;
      each_part(format, piece, [&](const RowPart& part) {
        on_warp([&] { CHECK_EQ(write_row(part, x.data(), parts[r].data(), 0), bytes); });
      });
      CHECK(bytes <= slot && whole[r].untouched(bytes));
      CHECK(std::memcmp(whole[r].data(), parts[r].data(), slot) == 0);
      rows[r] = reinterpret_cast<const u16*>(whole[r].data());
    }
    Poisoned<u16> sum(kHidden), pieces(kHidden);
    on_warp([&] { sum_rows(RowPart{format, kHidden, 0, kHidden}, sum.data(), GatheredRows{rows, weights, kCount}); });
    each_part(format, 1024, [&](const RowPart& part) {
      const u16* from[kCount];
      for (u32 r = 0; r < kCount; ++r)
        from[r] = reinterpret_cast<const u16*>(reinterpret_cast<const u8*>(rows[r]) + part.codes_at());
      on_warp([&] { sum_rows(part, pieces.data(), GatheredRows{from, weights, kCount}); });
    });
    CHECK(std::memcmp(sum.data(), pieces.data(), 2 * kHidden) == 0);
    CHECK(1024 % row_grain(format, kHidden) == 0);
  }
}

// The table of row formats: what each entry gives, and that entries do not contradict themselves.
#include "kernels/layout/low_latency.h"
#include "native/check.h"

using namespace uccl;

namespace {

constexpr RowFormat kAll[] = {RowFormat::kBf16,   RowFormat::kFp8,   RowFormat::kFp8Ue8m0, RowFormat::kNvfp4,
                              RowFormat::kLogfmt, RowFormat::kMxfp8, RowFormat::kNvfp4Row};

}  // namespace

TEST(row_formats_bytes_of_rows) {
  using L = LowLatencyLayout;
  CHECK_EQ(L::row_bytes(7168, RowFormat::kMxfp8), 7168u + 224);
  CHECK_EQ(L::row_bytes(7168, RowFormat::kNvfp4Row), 3584u + 448 + 16);  // a float, in 16-byte units
  CHECK_EQ(L::tail_at(192, RowFormat::kNvfp4Row), 96u + 12);
  CHECK_EQ(L::scale_bytes(96, RowFormat::kMxfp8), 4u);  // three bytes in whole words
  CHECK_EQ(L::scale_bytes(96, RowFormat::kLogfmt), 0u);
}

TEST(row_formats_units_hold_whole_blocks_and_whole_units_of_memory) {
  for (const RowFormat f : kAll) {
    const RowCode c = row_code(f);
    if (c.scale_bytes != 0) CHECK_EQ(c.unit % c.block(), 0u);
    CHECK_EQ(c.unit * c.bits % 64, 0u);  // eight bytes, which lanes load at once
    for (u32 units = 1; units < 40; ++units)
      CHECK(LowLatencyLayout::row_bytes(units * c.unit, f) <=
            LowLatencyLayout::row_bytes(units * c.unit, RowFormat::kBf16));
  }
}

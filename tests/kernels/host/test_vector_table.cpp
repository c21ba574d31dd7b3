// The tables are whole, and the tail that they share does only its columns.
#include "kernels/host/vector_compare.h"

namespace uccl::simt::host {

TEST(vector_table_of_every_level_of_this_build_is_whole) {
  u32 levels = 0;
  for (const VectorTable* table : {scalar_table(), neon_table(), avx2_table(), avx512_table()}) {
    if (table == nullptr) continue;
    ++levels;
    CHECK(table->quantize_group != nullptr && table->reduce != nullptr);
  }
  CHECK(levels >= 2);  // scalar, and the processor family's own
}

TEST(vector_table_tail_does_only_its_columns) {
  const std::vector<u16> row(40, 0x3f80);
  const u16* rows[] = {row.data()};
  for (u32 first = 0; first <= 24; ++first) {
    std::vector<u16> out(40, 0xaaaa);
    reduce_tail({out.data(), rows, nullptr, 1, 24, nullptr, nullptr}, first);
    for (u32 i = 0; i < 40; ++i) CHECK_EQ(out[i], i >= first && i < 24 ? 0x3f80 : 0xaaaa);
  }
}

}  // namespace uccl::simt::host

// The row copies that a program can choose from give the same bytes, in any order of rows. (On a CPU and on processors
// without the engine all of them are the plain one; the instructions of the others are looked at in test_copy_bulk.py.)
#include "kernels/device/copy_probes.h"
#include "kernels/device/on_device.h"
#include "kernels/values.h"

using namespace uccl;
using namespace uccl::testing;

TEST(copy_bulk_every_way_copies_rows_and_nothing_else) {
  simt::Random random(5);
  for (const u64 bytes : {16ull, 4080ull, 4096ull, 4112ull, 8192ull, 14336ull})
    for (void (*const copy)(CopyRowsArgs) : {copy_rows_plain, copy_rows_hinted, copy_rows_bulk}) {
      const u32 rows = 1 + simt::below(random, 9);
      Poisoned<u8> from(rows * bytes), to(rows * bytes + 64);
      for (u64 i = 0; i < from.size(); ++i) from[i] = static_cast<u8>(random());
      std::vector<u32> order(rows);
      for (u32& o : order) o = simt::below(random, rows);
      const bool in_order = simt::below(random, 2) == 0;
      const CopyRowsArgs args{to.data(), from.data(), in_order ? nullptr : order.data(), bytes, rows, 0};
      simt::launch({2, 2 * simt::kWarp, 0, 1, 0}, [&] { copy(args); });
      for (u32 r = 0; r < rows; ++r)
        CHECK(std::memcmp(to.data() + r * bytes, from.data() + (in_order ? r : order[r]) * bytes, bytes) == 0);
      CHECK(to.untouched(rows * bytes));
    }
}

// The avx2 level against the scalar one, bit by bit, where this CPU has it.
#include "kernels/host/vector_compare.h"

namespace uccl::simt::host {

TEST(vector_avx2_equals_scalar_or_is_refused) { compare_level(VectorLevel::kAvx2, avx2_table(), 21); }

}  // namespace uccl::simt::host

// The avx512 level against the scalar one, bit by bit, where this CPU has it.
#include "kernels/host/vector_compare.h"

namespace uccl::simt::host {

TEST(vector_avx512_equals_scalar_or_is_refused) { compare_level(VectorLevel::kAvx512, avx512_table(), 22); }

}  // namespace uccl::simt::host

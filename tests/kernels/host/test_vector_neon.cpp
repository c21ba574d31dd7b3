// The neon level against the scalar one, bit by bit, where this CPU has it.
#include "kernels/host/vector_compare.h"

namespace uccl::simt::host {

TEST(vector_neon_equals_scalar_or_is_refused) { compare_level(VectorLevel::kNeon, neon_table(), 23); }

}  // namespace uccl::simt::host

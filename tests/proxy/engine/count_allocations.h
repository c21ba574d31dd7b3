// Counts operator new of the whole test binary, for tests that prove a loop allocates nothing.
#pragma once

namespace uccl::testing {

unsigned long long num_allocations();

}  // namespace uccl::testing

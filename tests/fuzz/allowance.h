// How many bytes this thread has allocated, for the promise that nothing is allocated on a stranger's word. Counted by
// the hooks that sanitizers have; in a build without one nothing is counted, and every allowance holds.
#pragma once
#include "wire/types.h"

namespace uccl::fuzz {

// Whether this build counts.
bool counts_allocations();

class Allowance {
 public:
  // What the code from here on may allocate, whatever it gives back in between.
  explicit Allowance(u64 most_bytes);
  // Ends the test with a check::Failure that says how much it was.
  void check(const char* whose) const;

 private:
  u64 begin_, most_;
};

}  // namespace uccl::fuzz

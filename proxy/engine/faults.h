// Raising a fault: the first of a rank fills the record in the control segment, every one of them ends the waits.
#pragma once
#include "engine/counters.h"
#include "wire/control.h"

namespace uccl {

struct Fault {
  FaultKind kind = FaultKind::kNone;
  WaitPhase phase = WaitPhase::kNone;
  u32 peer = ~0u;
  DetailWord detail{};
  u64 expected = 0;
  u64 seen = 0;
};

class Faults {
 public:
  Faults(u8* control, const PeerCounters* peers, u32 num_ranks)
      : control_(control), peers_(peers), num_ranks_(num_ranks) {}

  // Any thread; no allocation. The record is complete before the fault that claimed it raises the abort word; one that
  // came second may raise it a moment earlier, so readers of the record wait for `ready`.
  void raise(const Fault& fault) noexcept;

 private:
  u8* control_;
  const PeerCounters* peers_;
  u32 num_ranks_;
};

}  // namespace uccl

// Makes the low-latency calls of one simulated rank in the orders that Buffer allows; results against
// low_latency_oracle.h.
#pragma once
#include "kernels/launch/low_latency.h"
#include "simulation/driver.h"
#include "simulation/low_latency_oracle.h"

namespace uccl::simulation {

class LowLatencyRank {
 public:
  LowLatencyRank(Driver& driver, World& world, Attendance& attendance, LowLatencyOracle& oracle, const Case& c,
                 u32 rank);

  // Every round, without anything between them that would keep ranks in step; adds to *rows what it compared. Throws
  // RankFailed, RankLeft, or Violation for what must not be.
  void run(u64* rows);

 private:
  // Of one dispatch and the combine that answers it; two may be outstanding.
  struct Call {
    Buffer<u8> x;
    Buffer<u32> scales;
    Buffer<i32> count, src_info;
    Buffer<i64> layout_range;
    Buffer<u16> rows, out;
    Buffer<u64> dispatch_words;
    u64 combine_words[LowLatencyCalls::kCombineWords]{};
    CombineSendArgs sent{};
  };
  LowLatencyCalls calls();
  template <class Args>
  void launch(Kernel which, void (*kernel)(Args), const Args& args);
  u32 row_stride() const;  // elements between combine rows
  void dispatch_send(u64 round, Call& c);
  void dispatch_recv(u64 round, Call& c);
  void combine_send(u64 round, Call& c);
  void combine_recv(u64 round, Call& c);
  void round_trip(u64 round, u64 count, bool combine);
  Received received(const Call& c) const;

  Driver& driver_;
  World& world_;
  Attendance& attendance_;
  const Case& case_;
  LowLatencyOracle& oracle_;
  u32 rank_;
  u64 combines_ = 0, rows_ = 0;
  std::vector<u64> workspace_;
  Call open_[2];
};

}  // namespace uccl::simulation

// Makes the throughput calls of one simulated rank; results against throughput_oracle.h.
#pragma once
#include "kernels/launch/throughput.h"
#include "simulation/driver.h"
#include "simulation/throughput_oracle.h"

namespace uccl::simulation {

class ThroughputRank {
 public:
  ThroughputRank(Driver& driver, World& world, Attendance& attendance, ThroughputOracle& oracle, const Case& c,
                 u32 rank);

  // Every round (layout, counts, dispatch, sometimes a cached dispatch, combine), without anything between rounds that
  // would keep ranks in step. Throws RankFailed, RankLeft, or Violation for what must not be.
  void run(u64* rows);

 private:
  // The tables between the kernels of one round.
  struct Routing {
    RoutingTables tables;
    Buffer<u32> tokens_per_rank, tokens_per_node, tokens_per_expert, channel_prefix, node_rows, recv_tokens, recv_begin,
        stream_rows, reducer_tokens, rank_prefix, expert_counts, recv_total, findings, number;
    Buffer<u8> is_token_in_rank, taken;
  };
  struct Dispatched {
    Buffer<u16> x;
    Buffer<u32> scales;
    Buffer<i64> topk_idx;
    Buffer<float> topk_weights;
    Buffer<i32> src_idx;
  };
  ThroughputCalls calls();
  template <class Args>
  void launch(Kernel which, void (*kernel)(Args), const Args& args, u32 grid);
  void layout(u64 round);
  void counts(u64 round);
  u64 dispatch(u64 round, bool again, Dispatched* out);
  u64 combine(u64 round);
  StreamGeometry cut(const RowShape& shape, Direction direction);  // drained

  Driver& driver_;
  World& world_;
  Attendance& attendance_;
  const Case& case_;
  ThroughputOracle& oracle_;
  u32 rank_;
  std::vector<u64> workspace_;
  Routing routing_;
  Dispatched first_, again_;
  ThroughputOracle::CombineInput combine_input_;
  Buffer<u16> out_;
  Buffer<float> out_weights_;
  Buffer<u64> combine_workspace_;
};

}  // namespace uccl::simulation

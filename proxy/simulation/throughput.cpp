// The throughput calls of a simulated rank.
#include "simulation/throughput.h"

#include "kernels/throughput/combine.h"
#include "kernels/throughput/counts.h"
#include "kernels/throughput/dispatch.h"
#include "kernels/throughput/layout.h"

namespace uccl::simulation {

ThroughputRank::ThroughputRank(Driver& driver, World& world, Attendance& attendance, ThroughputOracle& oracle,
                               const Case& c, u32 rank)
    : driver_(driver),
      world_(world),
      attendance_(attendance),
      case_(c),
      oracle_(oracle),
      rank_(rank),
      epoch_(c.world.age),
      identities_{c.world.age, c.world.age, c.world.age, 0, 0} {}

simt::LaunchConfig ThroughputRank::shape(u32 grid, u64 smem_bytes) const {
  simt::LaunchConfig config;
  config.grid = grid;
  config.block = case_.warps * simt::kWarp;
  config.smem_bytes = static_cast<u32>(smem_bytes);
  config.seed = case_.in_turn ? 0 : key_of(case_.seed, 0x1b, rank_);
  return config;
}

void ThroughputRank::layout(u64 round) {
  const ThroughputInput& in = oracle_.input(round, rank_);
  Routing& r = routing_;
  LayoutArgs a{};
  const std::vector<u8> left_out = attendance_.left_out_by(rank_);
  a.topology = world_.context(rank_).topology;
  a.mask = case_.world.shrink ? world_.context(rank_).mask : nullptr;
  a.topk_idx = in.topk_idx.data();
  a.num_tokens_per_rank = r.tokens_per_rank.zero(world_.num_ranks());
  u32* const per_node = r.tokens_per_node.zero(world_.num_nodes);
  a.num_tokens_per_node = world_.num_nodes == 1 ? nullptr : per_node;
  a.num_tokens_per_expert = r.tokens_per_expert.zero(case_.num_experts);
  a.is_token_in_rank = r.is_token_in_rank.poison(u64{in.num_tokens} * world_.num_ranks());
  a.num_tokens = in.num_tokens;
  a.topk = in.topk;
  a.num_experts = case_.num_experts;
  driver_.launch(rank_, Kernel::kLayout, throughput_layout, a, shape(case_.grid, 0));
  oracle_.check_layout(round, rank_,
                       {r.is_token_in_rank.data(), a.num_tokens_per_rank, per_node, a.num_tokens_per_expert}, left_out);
}

void ThroughputRank::counts(u64 round) {
  const RoundPlan& plan = oracle_.plan(round);
  Routing& r = routing_;
  const u64 ranks = world_.num_ranks(), channels = plan.channels;
  r.channels = plan.channels;
  CountsArgs a{};
  a.rank = world_.context(rank_);
  a.layout = world_.throughput;
  a.shape = dispatch_shape(plan, plan.topk);
  a.epoch = &epoch_;
  a.is_token_in_rank = r.is_token_in_rank.data();
  a.num_tokens_per_expert = reinterpret_cast<const i32*>(r.tokens_per_expert.data());
  a.topk_idx = plan.topk != 0 ? oracle_.input(round, rank_).topk_idx.data() : nullptr;
  a.num_tokens_per_rank = reinterpret_cast<const i32*>(r.tokens_per_rank.data());
  a.num_tokens_per_node = world_.num_nodes == 1 ? nullptr : reinterpret_cast<const i32*>(r.tokens_per_node.data());
  a.findings = reinterpret_cast<LayoutFindings*>(r.findings.poison(LayoutFindings::words(ranks, case_.num_experts)));
  a.num_tokens = oracle_.input(round, rank_).num_tokens;
  a.num_channels = plan.channels;
  a.num_local_experts = case_.num_experts / world_.num_ranks();
  a.expert_alignment = plan.alignment;
  a.readers = world_.max_readers;
  a.taken = case_.world.shrink ? r.taken.poison(a.num_tokens * ranks) : nullptr;
  a.channel_prefix = r.channel_prefix.poison(ranks * channels);
  a.node_rows = r.node_rows.poison(world_.num_cells * channels);
  a.recv_tokens = r.recv_tokens.poison(ranks * channels);
  a.recv_begin = r.recv_begin.poison(ranks * channels);
  a.stream_rows = r.stream_rows.poison(ranks * channels);
  a.reducer_tokens = r.reducer_tokens.poison(ranks * world_.max_readers * channels);
  a.rank_prefix = r.rank_prefix.poison(world_.num_nodes == 1 ? ranks * ranks : ranks);
  a.expert_counts = r.expert_counts.poison(a.num_local_experts);
  a.recv_total = r.recv_total.poison(1);
  a.number = r.number.poison(1);
  const std::vector<u8> left_out = attendance_.left_out_by(rank_);
  driver_.launch(rank_, Kernel::kCounts, throughput_counts, a, shape(1, sizeof(CountsShared)));
  attendance_.did(rank_, round, Deed::kCounts);
  attendance_.leave_in_the_middle(rank_, round, round);
  oracle_.check_counts(
      round, rank_,
      {a.recv_tokens, a.recv_begin, a.channel_prefix, a.rank_prefix, a.expert_counts, *a.recv_total, plan.channels},
      left_out, attendance_.seen_by(rank_, round, Deed::kCounts));
  attendance_.notice_in_the_middle(rank_, round, round);
}

ThroughputCall ThroughputRank::call(const RowShape& row, u32 num_tokens, Direction direction) {
  Routing& r = routing_;
  ThroughputCall c{};
  c.layout = world_.throughput;
  c.shape = row;
  c.geometry = StreamGeometry::make(world_.throughput.unit_bytes, r.channels, row.bytes());
  SettleArgs settle{};
  settle.rank = world_.context(rank_);
  settle.last = settled_;
  settle.direction = static_cast<u32>(direction);
  settle.num_channels = c.geometry.num_channels;
  settle.row_bytes = c.geometry.row_bytes;
  driver_.launch(rank_, Kernel::kSettle, throughput_settle, settle, shape(1, sizeof(SettleShared)));
  c.num_local_experts = case_.num_experts / world_.num_ranks();
  c.is_token_in_rank = case_.world.shrink ? r.taken.data() : r.is_token_in_rank.data();
  c.node_rows = r.node_rows.data();
  c.recv_tokens = r.recv_tokens.data();
  c.recv_begin = r.recv_begin.data();
  c.stream_rows = r.stream_rows.data();
  c.reducer_tokens = r.reducer_tokens.data();
  c.number = r.number.data();
  c.identities = &identities_;
  c.num_tokens = num_tokens;
  c.readers = world_.max_readers;
  return c;
}

// `again`: with the same routing, and without ids.
u64 ThroughputRank::dispatch(u64 round, bool again, Dispatched* out) {
  const RoundPlan& plan = oracle_.plan(round);
  const u32 topk = again ? 0 : plan.topk;
  const bool worst = plan.worst && !again;
  const ThroughputInput& in = oracle_.input(round, rank_);
  const u64 capacity = worst ? u64{world_.num_ranks()} * case_.max_tokens : routing_.recv_total[0];
  DispatchArgs a{};
  a.rank = world_.context(rank_);
  a.call = call(dispatch_shape(plan, topk), in.num_tokens, Direction::kDispatch);
  a.call.identify = again;
  a.x = reinterpret_cast<const u8*>(in.x.data());
  a.scales = plan.scale_words != 0 ? in.scales.data() : nullptr;
  a.scale_token_stride = in.scale_token_stride;
  a.scale_stride = in.scale_stride;
  a.topk_idx = topk != 0 ? in.topk_idx.data() : nullptr;
  a.topk_weights = topk != 0 ? in.topk_weights.data() : nullptr;
  a.recv_x = reinterpret_cast<u8*>(out->x.poison(capacity * plan.hidden));
  a.recv_scales = out->scales.poison(capacity * plan.scale_words);
  a.recv_topk_idx = out->topk_idx.poison(capacity * topk);
  a.recv_topk_weights = out->topk_weights.poison(capacity * topk);
  a.recv_src_idx = out->src_idx.poison(capacity);
  a.recv_total = routing_.recv_total.data();
  a.capacity = static_cast<u32>(capacity);
  a.pad_tail = worst;
  driver_.launch(rank_, Kernel::kDispatch, throughput_dispatch, a, shape(2 * routing_.channels, 0));
  const Deed deed = again ? Deed::kRowsAgain : Deed::kRows;
  attendance_.did(rank_, round, deed);
  return oracle_.check_dispatched(round, rank_,
                                  {out->x, out->scales, out->topk_idx, out->topk_weights, out->src_idx, topk},
                                  attendance_.seen_by(rank_, round, deed));
}

u64 ThroughputRank::combine(u64 round) {
  const RoundPlan& plan = oracle_.plan(round);
  combine_input_ = oracle_.combine_input(round, rank_);  // after a fault others may still read it
  const auto& rows = combine_input_;
  const u32 tokens = oracle_.input(round, rank_).num_tokens;
  const bool several = world_.num_nodes > 1;
  CombineArgs a{};
  a.rank = world_.context(rank_);
  a.call = call(combine_shape(plan), tokens, Direction::kCombine);
  a.x = rows.x.data();
  a.topk_weights = rows.weights.data();
  a.recv_src_idx = first_.src_idx.data();
  a.bias0 = plan.biases > 0 ? rows.bias[0].data() : nullptr;
  a.bias1 = plan.biases > 1 ? rows.bias[1].data() : nullptr;
  a.out = out_.poison(u64{tokens} * plan.combine_hidden);
  a.out_weights = out_weights_.poison(u64{tokens} * plan.combine_topk);
  a.scratch = scratch_.poison(several ? u64{routing_.channels} * case_.warps * plan.combine_hidden : 0);
  const u64 states = u64{routing_.channels} * world_.num_cells;
  a.partials = reinterpret_cast<PartialState*>(partials_.poison(states * sizeof(PartialState) / sizeof(u64)));
  a.hidden = plan.combine_hidden;
  a.arenas = case_.rows_stay ? world_.memories(rank_) : nullptr;
  a.x_offset = reinterpret_cast<u64>(rows.x.data());
  a.x_in_arena = case_.rows_stay;
  driver_.launch(rank_, Kernel::kCombine, throughput_combine, a,
                 shape((several ? 3 : 2) * routing_.channels, CombineShared::bytes(case_.warps)));
  attendance_.did(rank_, round, Deed::kCombine);
  return oracle_.check_combined(round, rank_, out_, out_weights_, attendance_.seen_by(rank_, round, Deed::kCombine));
}

void ThroughputRank::run(u64* rows) {
  for (u64 round = 0; round < case_.rounds; ++round) {
    attendance_.before(rank_, round, round);
    layout(round);
    counts(round);
    *rows += dispatch(round, false, &first_);
    if (oracle_.plan(round).cached) *rows += dispatch(round, true, &again_);
    *rows += combine(round);
    const u64 key = key_of(case_.seed, 0x20, round);
    if (key % 6 == 0) driver_.quiet(rank_);
    if ((key >> 8) % 6 == 0) driver_.barrier(rank_);
  }
}

}  // namespace uccl::simulation

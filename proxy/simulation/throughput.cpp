// The throughput calls of a simulated rank.
#include "simulation/throughput.h"

namespace uccl::simulation {

ThroughputRank::ThroughputRank(Driver& driver, World& world, Attendance& attendance, ThroughputOracle& oracle,
                               const Case& c, u32 rank)
    : driver_(driver),
      world_(world),
      attendance_(attendance),
      case_(c),
      oracle_(oracle),
      rank_(rank),
      workspace_(ThroughputCalls::kWorkspaceBytes / sizeof(u64)) {
  calls().epoch() = c.world.age;
  calls().identities() = IdentityState{c.world.age, c.world.age, c.world.age, 0, 0};
}

ThroughputCalls ThroughputRank::calls() {
  return {world_.context(rank_), world_.throughput, reinterpret_cast<u8*>(workspace_.data()), case_.device()};
}

template <class Args>
void ThroughputRank::launch(Kernel which, void (*kernel)(Args), const Args& args, u32 grid) {
  simt::LaunchConfig config;
  config.grid = grid;
  config.block = case_.warps * simt::kWarp;
  config.smem_bytes = static_cast<u32>(shared_bytes(args, case_.warps));
  config.seed = case_.in_turn ? 0 : key_of(case_.seed, 0x1b, rank_);
  driver_.launch(rank_, which, kernel, args, config);
}

void ThroughputRank::layout(u64 round) {
  const ThroughputInput& in = oracle_.input(round, rank_);
  Routing& r = routing_;
  LayoutArgs a{};
  const std::vector<u8> left_out = attendance_.left_out_by(rank_);
  a.topk_idx = in.topk_idx.data();
  a.num_tokens_per_rank = r.tokens_per_rank.zero(world_.num_ranks());
  u32* const per_node = r.tokens_per_node.zero(world_.num_nodes);
  a.num_tokens_per_node = world_.num_nodes == 1 ? nullptr : per_node;
  a.num_tokens_per_expert = r.tokens_per_expert.zero(case_.num_experts);
  a.is_token_in_rank = r.is_token_in_rank.poison(u64{in.num_tokens} * world_.num_ranks());
  a.num_tokens = in.num_tokens;
  a.topk = in.topk;
  a.num_experts = case_.num_experts;
  launch(Kernel::kLayout, throughput_layout, calls().layout(a).args, case_.grid);
  oracle_.check_layout(round, rank_,
                       {r.is_token_in_rank.data(), a.num_tokens_per_rank, per_node, a.num_tokens_per_expert}, left_out);
}

void ThroughputRank::counts(u64 round) {
  const RoundPlan& plan = oracle_.plan(round);
  Routing& r = routing_;
  const u64 ranks = world_.num_ranks(), channels = plan.channels;
  RoutingTables& to = r.tables;
  to.channels = plan.channels;
  to.num_tokens = oracle_.input(round, rank_).num_tokens;
  to.num_local_experts = case_.num_experts / world_.num_ranks();
  to.is_token_in_rank = case_.world.shrink ? r.taken.poison(to.num_tokens * ranks) : r.is_token_in_rank.data();
  to.channel_prefix = r.channel_prefix.poison(ranks * channels);
  to.node_rows = r.node_rows.poison(world_.num_cells * channels);
  to.recv_tokens = r.recv_tokens.poison(ranks * channels);
  to.recv_begin = r.recv_begin.poison(ranks * channels);
  to.stream_rows = r.stream_rows.poison(ranks * channels);
  to.reducer_tokens = r.reducer_tokens.poison(ranks * world_.max_readers * channels);
  to.rank_prefix = r.rank_prefix.poison(world_.num_nodes == 1 ? ranks * ranks : ranks);
  to.expert_counts = r.expert_counts.poison(to.num_local_experts);
  to.recv_total = r.recv_total.poison(1);
  to.number = r.number.poison(1);
  CountsArgs a{};
  a.is_token_in_rank = r.is_token_in_rank.data();
  a.num_tokens_per_expert = reinterpret_cast<const i32*>(r.tokens_per_expert.data());
  a.topk_idx = plan.topk != 0 ? oracle_.input(round, rank_).topk_idx.data() : nullptr;
  a.num_tokens_per_rank = reinterpret_cast<const i32*>(r.tokens_per_rank.data());
  a.num_tokens_per_node = world_.num_nodes == 1 ? nullptr : reinterpret_cast<const i32*>(r.tokens_per_node.data());
  a.findings = reinterpret_cast<LayoutFindings*>(r.findings.poison(calls().findings_words(case_.num_experts)));
  a.expert_alignment = plan.alignment;
  const std::vector<u8> left_out = attendance_.left_out_by(rank_);
  launch(Kernel::kCounts, throughput_counts, calls().counts(a, dispatch_shape(plan, plan.topk), to).args, 1);
  attendance_.did(rank_, round, Deed::kCounts);
  attendance_.leave_in_the_middle(rank_, round, round);
  oracle_.check_counts(round, rank_,
                       {to.recv_tokens, to.recv_begin, to.channel_prefix, to.rank_prefix, to.expert_counts,
                        *to.recv_total, plan.channels},
                       left_out, attendance_.seen_by(rank_, round, Deed::kCounts));
  attendance_.notice_in_the_middle(rank_, round, round);
}

StreamGeometry ThroughputRank::cut(const RowShape& shape, Direction direction) {
  const u32 channels = routing_.tables.channels;
  const StreamGeometry g = StreamGeometry::make(world_.throughput.unit_bytes, channels, shape.bytes());
  launch(Kernel::kSettle, throughput_settle, calls().settle(direction, channels, g.row_bytes).args, 1);
  return g;
}

// `again`: with the same routing, and without ids.
u64 ThroughputRank::dispatch(u64 round, bool again, Dispatched* out) {
  const RoundPlan& plan = oracle_.plan(round);
  const u32 topk = again ? 0 : plan.topk;
  const bool worst = plan.worst && !again;
  const ThroughputInput& in = oracle_.input(round, rank_);
  const u64 capacity = worst ? u64{world_.num_ranks()} * case_.max_tokens : routing_.recv_total[0];
  DispatchArgs a{};
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
  a.capacity = static_cast<u32>(capacity);
  a.pad_tail = worst;
  const RowShape shape = dispatch_shape(plan, topk);
  const auto l = calls().dispatch(a, shape, cut(shape, Direction::kDispatch), routing_.tables, again);
  launch(Kernel::kDispatch, throughput_dispatch, l.args, l.grid.blocks);
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
  CombineArgs a{};
  a.x = rows.x.data();
  a.topk_weights = rows.weights.data();
  a.recv_src_idx = first_.src_idx.data();
  a.bias0 = plan.biases > 0 ? rows.bias[0].data() : nullptr;
  a.bias1 = plan.biases > 1 ? rows.bias[1].data() : nullptr;
  a.out = out_.poison(u64{tokens} * plan.combine_hidden);
  a.out_weights = out_weights_.poison(u64{tokens} * plan.combine_topk);
  a.hidden = plan.combine_hidden;
  a.arenas = case_.rows_stay ? world_.memories(rank_) : nullptr;
  a.x_offset = reinterpret_cast<u64>(rows.x.data());
  a.x_in_arena = case_.rows_stay;
  const u64 words = ceil_div(calls().combine_bytes(routing_.tables.channels, a.hidden), sizeof(u64));
  const RowShape shape = combine_shape(plan);
  const auto l = calls().combine(a, shape, cut(shape, Direction::kCombine), routing_.tables,
                                 reinterpret_cast<u8*>(combine_workspace_.poison(words)));
  launch(Kernel::kCombine, throughput_combine, l.args, l.grid.blocks);
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

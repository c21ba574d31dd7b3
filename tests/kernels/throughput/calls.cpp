// The calls of one rank, launched at once.
#include "kernels/throughput/calls.h"

namespace uccl::testing {

Routing::Routing(const World& w, const ThroughputCase& c, const RankInput& in, u32 num_channels)
    : channels(num_channels),
      tokens_per_rank(Poisoned<u32>(w.num_ranks()).zeroed()),
      tokens_per_node(Poisoned<u32>(w.num_nodes).zeroed()),
      tokens_per_expert(Poisoned<u32>(c.num_experts).zeroed()),
      is_token_in_rank(u64{in.num_tokens} * w.num_ranks()),
      channel_prefix(u64{w.num_ranks()} * channels),
      node_rows(u64{w.num_cells} * channels),
      recv_tokens(u64{w.num_ranks()} * channels),
      recv_begin(u64{w.num_ranks()} * channels),
      stream_rows(u64{w.num_ranks()} * channels),
      reducer_tokens(u64{w.num_ranks()} * w.max_readers * channels),
      rank_prefix(w.num_nodes == 1 ? u64{w.num_ranks()} * w.num_ranks() : w.num_ranks()),
      expert_counts(c.num_experts / w.num_ranks()),
      recv_total(1),
      findings(LayoutFindings::words(w.num_ranks(), c.num_experts)),
      number(1) {}

Dispatched::Dispatched(u32 row_capacity, u32 hidden, u32 scale_words, u32 topk)
    : capacity(row_capacity),
      x(u64{capacity} * hidden),
      scales(u64{capacity} * scale_words),
      topk_idx(u64{capacity} * topk),
      topk_weights(u64{capacity} * topk),
      src_idx(capacity) {}

RoutingTables Routing::tables(const World& w, const ThroughputCase& c, u32 num_tokens) const {
  return {channels,
          num_tokens,
          c.num_experts / w.num_ranks(),
          is_token_in_rank.data(),
          channel_prefix.data(),
          node_rows.data(),
          recv_tokens.data(),
          recv_begin.data(),
          stream_rows.data(),
          reducer_tokens.data(),
          rank_prefix.data(),
          expert_counts.data(),
          recv_total.data(),
          number.data()};
}

ThroughputRank::ThroughputRank(World& world, u32 rank, const ThroughputCase& c)
    : world_(world),
      rank_(rank),
      case_(c),
      workspace_(Poisoned<u64>(ThroughputCalls::kWorkspaceBytes / sizeof(u64)).zeroed()) {}

ThroughputCalls ThroughputRank::calls() const {
  return {world_.context(rank_), world_.throughput, reinterpret_cast<u8*>(workspace_.data()),
          DeviceShape{1, case_.warps, !case_.gpu}};
}
LaunchShape ThroughputRank::blocks(u32 grid) const { return LaunchShape{grid, case_.warps, case_.threads, case_.seed}; }

void ThroughputRank::layout(const RankInput& in, Routing* r) {
  LayoutArgs a{};
  a.topk_idx = in.topk_idx.data();
  a.num_tokens_per_rank = r->tokens_per_rank.data();
  a.num_tokens_per_node = world_.num_nodes == 1 ? nullptr : r->tokens_per_node.data();
  a.num_tokens_per_expert = r->tokens_per_expert.data();
  a.is_token_in_rank = r->is_token_in_rank.data();
  a.num_tokens = in.num_tokens;
  a.topk = in.topk;
  a.num_experts = case_.num_experts;
  recording.launch(throughput_layout, calls().layout(a).args, blocks(1 + rank_ % 2));
}

RowShape dispatch_shape(const RoundPlan& plan, u32 topk) {
  RowShape s;
  s.payload_bytes = plan.hidden * 2;
  s.scale_bytes = plan.scale_words * 4;
  s.topk = topk;
  s.has_ids = s.has_weights = topk != 0;
  return s;
}

void ThroughputRank::counts(const RoundPlan& plan, const RankInput& in, Routing* r) {
  CountsArgs a{};
  a.is_token_in_rank = r->is_token_in_rank.data();
  a.num_tokens_per_expert = reinterpret_cast<const i32*>(r->tokens_per_expert.data());
  // Rounds that send no ids, or disagree about top-k, are compared without them.
  a.topk_idx = plan.topk == in.topk && plan.topk != 0 ? in.topk_idx.data() : nullptr;
  a.num_tokens_per_rank = reinterpret_cast<const i32*>(r->tokens_per_rank.data());
  a.num_tokens_per_node = world_.num_nodes == 1 ? nullptr : reinterpret_cast<const i32*>(r->tokens_per_node.data());
  a.findings = reinterpret_cast<LayoutFindings*>(r->findings.data());
  a.expert_alignment = plan.alignment;
  const auto launch = calls().counts(a, dispatch_shape(plan, plan.topk), r->tables(world_, case_, in.num_tokens));
  recording.launch(throughput_counts, launch.args, blocks(launch.grid.blocks));
}

void ThroughputRank::settle(Direction direction, u32 num_channels, u32 row_bytes) {
  recording.launch(throughput_settle, calls().settle(direction, num_channels, row_bytes).args, LaunchShape{});
}

StreamGeometry ThroughputRank::cut(const RowShape& shape, u32 channels, Direction direction) {
  const StreamGeometry g = StreamGeometry::make(world_.throughput.unit_bytes, channels, shape.bytes());
  auto& last = last_[static_cast<u32>(direction)];
  // What is recorded may run after anything, and anything after it.
  if (recording.on() || recording.size() != 0 || !(last && *last == g)) {
    drains_ += last.has_value();
    settle(direction, channels, g.row_bytes);
  }
  last = g;
  return g;
}

void ThroughputRank::dispatch(const RoundPlan& plan, const RankInput& in, u32 topk, const Routing& r, Dispatched* out,
                              bool pad) {
  DispatchArgs a{};
  a.x = reinterpret_cast<const u8*>(in.x.data());
  a.scales = plan.scale_words != 0 ? in.scales.data() : nullptr;
  a.scale_token_stride = in.scale_token_stride;
  a.scale_stride = in.scale_stride;
  a.topk_idx = topk != 0 ? in.topk_idx.data() : nullptr;
  a.topk_weights = topk != 0 ? in.topk_weights.data() : nullptr;
  a.recv_x = reinterpret_cast<u8*>(out->x.data());
  a.recv_scales = out->scales.data();
  a.recv_topk_idx = out->topk_idx.data();
  a.recv_topk_weights = out->topk_weights.data();
  a.recv_src_idx = out->src_idx.data();
  a.capacity = out->capacity;
  a.pad_tail = pad;
  const RowShape shape = dispatch_shape(plan, topk);
  const auto launch = calls().dispatch(a, shape, cut(shape, r.channels, Direction::kDispatch),
                                       r.tables(world_, case_, in.num_tokens), topk == 0);
  recording.launch(throughput_dispatch, launch.args, blocks(launch.grid.blocks));
}

ThroughputRank::Received ThroughputRank::receive(const RoundPlan& plan, const RankInput& in) {
  Routing routing(world_, case_, in, plan.channels);
  layout(in, &routing);
  counts(plan, in, &routing);
  Dispatched rows(routing.recv_total[0], plan.hidden, plan.scale_words, plan.topk);
  dispatch(plan, in, plan.topk, routing, &rows, false);
  return {std::move(routing), std::move(rows)};
}

void ThroughputRank::combine(const RoundPlan& plan, u32 num_tokens, const Routing& r, const Combining& rows) {
  RowShape shape;
  shape.payload_bytes = plan.combine_hidden * 2;
  shape.topk = plan.combine_topk;
  shape.has_weights = plan.combine_topk != 0;
  CombineArgs a{};
  a.x = rows.x;
  a.topk_weights = rows.weights;
  a.recv_src_idx = rows.src_idx;
  a.bias0 = rows.bias0;
  a.bias1 = rows.bias1;
  a.out = rows.out;
  a.out_weights = rows.out_weights;
  a.hidden = plan.combine_hidden;
  a.arenas = case_.arenas ? world_.memories(rank_) : nullptr;
  a.x_in_arena = rows.in_arena;
  a.x_offset = reinterpret_cast<u64>(rows.x) - reinterpret_cast<u64>(world_.memory(rank_));
  const u64 bytes = calls().combine_bytes(r.channels, a.hidden);
  const auto workspace = std::make_shared<Poisoned<u64>>(ceil_div(bytes, sizeof(u64)));
  const auto launch = calls().combine(a, shape, cut(shape, r.channels, Direction::kCombine),
                                      r.tables(world_, case_, num_tokens), reinterpret_cast<u8*>(workspace->data()));
  recording.launch(throughput_combine, launch.args, blocks(launch.grid.blocks), workspace);
}

}  // namespace uccl::testing

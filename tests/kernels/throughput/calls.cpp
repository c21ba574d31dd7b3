// Arguments as uccl_ep/throughput/launch.py fills them.
#include "kernels/throughput/calls.h"

#include "kernels/throughput/combine.h"
#include "kernels/throughput/dispatch.h"
#include "kernels/throughput/layout.h"
#include "kernels/throughput/settle.h"

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

ThroughputRank::ThroughputRank(World& world, u32 rank, const ThroughputCase& c)
    : world_(world),
      rank_(rank),
      case_(c),
      epoch_(Poisoned<u64>(1).zeroed()),
      identities_(Poisoned<IdentityState>(1).zeroed()),
      settled_(Poisoned<SettledGeometry>(kNumDirections).zeroed()) {}

LaunchShape ThroughputRank::blocks(u32 grid) const { return LaunchShape{grid, case_.warps, case_.threads, case_.seed}; }

void ThroughputRank::layout(const RankInput& in, Routing* r) {
  LayoutArgs a{};
  a.topology = world_.context(rank_).topology;
  a.mask = world_.shape().shrink ? world_.context(rank_).mask : nullptr;
  a.topk_idx = in.topk_idx.data();
  a.num_tokens_per_rank = r->tokens_per_rank.data();
  a.num_tokens_per_node = world_.num_nodes == 1 ? nullptr : r->tokens_per_node.data();
  a.num_tokens_per_expert = r->tokens_per_expert.data();
  a.is_token_in_rank = r->is_token_in_rank.data();
  a.num_tokens = in.num_tokens;
  a.topk = in.topk;
  a.num_experts = case_.num_experts;
  recording.launch(throughput_layout, a, 0, blocks(1 + rank_ % 2));
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
  a.rank = world_.context(rank_);
  a.layout = world_.throughput;
  a.shape = dispatch_shape(plan, plan.topk);
  a.epoch = epoch_.data();
  a.is_token_in_rank = r->is_token_in_rank.data();
  a.num_tokens_per_expert = reinterpret_cast<const i32*>(r->tokens_per_expert.data());
  // Rounds that send no ids, or disagree about top-k, are compared without them.
  a.topk_idx = plan.topk == in.topk && plan.topk != 0 ? in.topk_idx.data() : nullptr;
  a.num_tokens_per_rank = reinterpret_cast<const i32*>(r->tokens_per_rank.data());
  a.num_tokens_per_node = world_.num_nodes == 1 ? nullptr : reinterpret_cast<const i32*>(r->tokens_per_node.data());
  a.findings = reinterpret_cast<LayoutFindings*>(r->findings.data());
  a.num_tokens = in.num_tokens;
  a.num_channels = r->channels;
  a.num_local_experts = case_.num_experts / world_.num_ranks();
  a.expert_alignment = plan.alignment;
  a.readers = world_.max_readers;
  a.channel_prefix = r->channel_prefix.data();
  a.node_rows = r->node_rows.data();
  a.recv_tokens = r->recv_tokens.data();
  a.recv_begin = r->recv_begin.data();
  a.stream_rows = r->stream_rows.data();
  a.reducer_tokens = r->reducer_tokens.data();
  a.rank_prefix = r->rank_prefix.data();
  a.expert_counts = r->expert_counts.data();
  a.recv_total = r->recv_total.data();
  a.number = r->number.data();
  recording.launch(throughput_counts, a, sizeof(CountsShared), blocks(1));
}

void ThroughputRank::settle(Direction direction, u32 num_channels, u32 row_bytes) {
  SettleArgs a{};
  a.rank = world_.context(rank_);
  a.last = settled_.data();
  a.direction = static_cast<u32>(direction);
  a.num_channels = num_channels;
  a.row_bytes = row_bytes;
  recording.launch(throughput_settle, a, sizeof(SettleShared), LaunchShape{});
}

ThroughputCall ThroughputRank::call(const RowShape& shape, u32 num_tokens, const Routing& r, Direction direction) {
  ThroughputCall c{};
  c.layout = world_.throughput;
  c.shape = shape;
  c.geometry = StreamGeometry::make(world_.throughput.unit_bytes, r.channels, shape.bytes());
  auto& last = last_[static_cast<u32>(direction)];
  // What is recorded may run after anything, and anything after it.
  if (recording.on() || recording.size() != 0 || !(last && *last == c.geometry)) {
    drains_ += last.has_value();
    settle(direction, r.channels, c.geometry.row_bytes);
  }
  last = c.geometry;
  c.num_local_experts = case_.num_experts / world_.num_ranks();
  c.is_token_in_rank = r.is_token_in_rank.data();
  c.node_rows = r.node_rows.data();
  c.recv_tokens = r.recv_tokens.data();
  c.recv_begin = r.recv_begin.data();
  c.stream_rows = r.stream_rows.data();
  c.reducer_tokens = r.reducer_tokens.data();
  c.number = r.number.data();
  c.identities = identities_.data();
  c.num_tokens = num_tokens;
  c.readers = world_.max_readers;
  return c;
}

void ThroughputRank::dispatch(const RoundPlan& plan, const RankInput& in, u32 topk, const Routing& r, Dispatched* out,
                              bool pad) {
  DispatchArgs a{};
  a.rank = world_.context(rank_);
  a.call = call(dispatch_shape(plan, topk), in.num_tokens, r, Direction::kDispatch);
  a.call.identify = topk == 0;
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
  a.recv_total = r.recv_total.data();
  a.capacity = out->capacity;
  a.pad_tail = pad;
  recording.launch(throughput_dispatch, a, 0, blocks(2 * r.channels));
}

void ThroughputRank::combine(const RoundPlan& plan, u32 num_tokens, const Routing& r, const Combining& rows) {
  CombineArgs a{};
  RowShape shape;
  shape.payload_bytes = plan.combine_hidden * 2;
  shape.topk = plan.combine_topk;
  shape.has_weights = plan.combine_topk != 0;
  const bool several = world_.num_nodes > 1;
  struct Workspace {
    Poisoned<u16> scratch;
    Poisoned<PartialState> partials;
  };
  const auto workspace = std::make_shared<Workspace>(
      Workspace{Poisoned<u16>(several ? u64{r.channels} * case_.warps * plan.combine_hidden : 0),
                Poisoned<PartialState>(u64{r.channels} * world_.num_cells)});
  a.rank = world_.context(rank_);
  a.call = call(shape, num_tokens, r, Direction::kCombine);
  a.x = rows.x;
  a.topk_weights = rows.weights;
  a.recv_src_idx = rows.src_idx;
  a.bias0 = rows.bias0;
  a.bias1 = rows.bias1;
  a.out = rows.out;
  a.out_weights = rows.out_weights;
  a.scratch = workspace->scratch.data();
  a.partials = workspace->partials.data();
  a.hidden = plan.combine_hidden;
  a.arenas = case_.arenas ? world_.memories(rank_) : nullptr;
  a.x_in_arena = rows.in_arena;
  a.x_offset = reinterpret_cast<u64>(rows.x) - reinterpret_cast<u64>(world_.memory(rank_));
  recording.launch(throughput_combine, a, CombineShared::bytes(case_.warps), blocks((several ? 3 : 2) * r.channels),
                   workspace);
}

}  // namespace uccl::testing

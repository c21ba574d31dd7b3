// The calls of one rank, launched at once.
#include "kernels/low_latency/calls.h"

namespace uccl::testing {

namespace {

template <class Call>
Call close_call(std::deque<Call>* open, bool youngest) {
  const auto at = youngest ? open->end() - 1 : open->begin();
  const Call call = *at;
  open->erase(at);
  return call;
}

// Rows of an expert that there is room for the scales of.
u64 received_rows(const World& w, const LowLatencyCase& c) {
  const u64 rows = u64{w.num_ranks()} * w.shape().max_tokens;
  return c.format == RowFormat::kNvfp4 ? Nvfp4Scales::tiles(rows) * Nvfp4Scales::kTileRows : rows;
}

}  // namespace

Received::Received(const World& w, const LowLatencyCase& c)
    : x(u64{c.num_experts} * w.shape().max_tokens * LowLatencyLayout::payload_bytes(w.shape().hidden, c.format)),
      scales(c.num_experts / w.num_ranks() * received_rows(w, c) *
             (LowLatencyLayout::scale_bytes(w.shape().hidden, c.format) / 4)),
      count(c.num_experts / w.num_ranks()),
      src_info(3ull * c.num_experts * w.shape().max_tokens + 1),
      layout_range(c.num_experts) {}

LowLatencyRank::LowLatencyRank(World& world, u32 rank, const LowLatencyCase& c)
    : layout(world.low_latency),
      cumulative_stats(Poisoned<i32>(c.num_experts / world.num_ranks()).zeroed()),
      wait_stats(Poisoned<i64>(world.num_ranks()).zeroed()),
      world_(world),
      rank_(rank),
      case_(c),
      workspace_(Poisoned<u64>(LowLatencyCalls::workspace_bytes(world.num_ranks()) / sizeof(u64)).zeroed()) {}

LowLatencyCalls LowLatencyRank::calls() const {
  const DeviceShape device{case_.shape.grid, case_.shape.warps, !case_.gpu};
  return {world_.context(rank_), layout, case_.num_experts, reinterpret_cast<u8*>(workspace_.data()), device};
}
const LowLatencyState& LowLatencyRank::state() const { return calls().state(); }

void LowLatencyRank::dispatch_send(const TokenInput& input) {
  const auto words = dispatches_open_.emplace_back(std::make_shared<Poisoned<u64>>(calls().dispatch_words()));
  DispatchSendArgs a{};
  a.x = input.x.data();
  a.topk_idx = input.topk_idx.data();
  a.global_scale = &case_.global_scale;
  a.num_tokens = input.num_tokens;
  a.topk = input.topk;
  a.format = static_cast<u32>(case_.format);
  a.round_scale = case_.round_scale;
  a = calls().dispatch_send(words->data(), a).args;
  a.batch = std::min(case_.batch, simt::kWarp);
  recording.launch(low_latency_dispatch_send, a, case_.shape, words);
}

void LowLatencyRank::dispatch_recv(Received* out, bool youngest) {
  const auto words = close_call(&dispatches_open_, youngest);
  DispatchReceiveArgs a{};
  a.recv_x = out->x.data();
  a.recv_scales = case_.format == RowFormat::kBf16 ? nullptr : reinterpret_cast<u8*>(out->scales.data());
  a.recv_count = out->count.data();
  a.src_info = out->src_info.data();
  a.layout_range = out->layout_range.data();
  a.cumulative_stats = cumulative_stats.data();
  a.wait_stats = wait_stats.data();
  a.format = static_cast<u32>(case_.format);
  recording.launch(low_latency_dispatch_recv, calls().dispatch_recv(words->data(), a).args, case_.shape, words);
}

u32 LowLatencyRank::row_stride() const {
  const u32 hidden = world_.shape().hidden;
  return case_.zero_copy ? static_cast<u32>(align_up(hidden + hidden / 64, 8)) : hidden;
}

u16* LowLatencyRank::zero_copy_rows() const {
  const u64 sets = case_.in_place ? 3 : 2, set = world_.shape().zero_copy_bytes / sets / 128 * 128;
  return reinterpret_cast<u16*>(world_.zero_copy(rank_) + (num_combines_ + 1) % sets * set);
}

void LowLatencyRank::combine_send(const Received& from, const u16* x, const TokenInput* input) {
  CombineSendArgs a{};
  a.x = case_.zero_copy ? zero_copy_rows() : x;
  a.row_stride = row_stride();
  if (case_.zero_copy) {
    a.zero_copy_offset = world_.zero_copy_offset() + (reinterpret_cast<const u8*>(a.x) - world_.zero_copy(rank_));
    a.x_at = reinterpret_cast<u64>(a.x) - reinterpret_cast<u64>(world_.memory(rank_));
  }
  ++num_combines_;
  a.src_info = from.src_info.data();
  a.layout_range = from.layout_range.data();
  a.format = static_cast<u32>(case_.back);
  a.own_stay = case_.own_stay;
  a.signals = signals;
  a.signals_per_expert = signals_per_expert;
  a.signal_rows = signal_rows;
  a.signal_value = signal_value;
  if (case_.reduces) {
    a.num_tokens = input->num_tokens;
    a.topk = input->topk;
    a.topk_idx = input->topk_idx.data();
    a.weights = input->weights.data();
  }
  const auto words = std::make_shared<Poisoned<u64>>(LowLatencyCalls::kCombineWords);
  a = calls().combine_send(words->data(), a, case_.reduces, case_.in_place).args;
  if (a.node_rows == static_cast<u32>(NodeRows::kStay) && mix(case_.seed ^ num_combines_ << 16 ^ rank_) % 4 == 0)
    a.node_rows = static_cast<u32>(NodeRows::kCopiedAndMarked);  // ranks need not agree
  combines_open_.push_back({a, words});
  if (case_.reduces) reductions_open_.push_back({a, words});
  recording.launch(low_latency_combine_send, a, case_.shape, words);
}

const u8* const* LowLatencyRank::registered() const { return case_.in_place ? world_.memories(rank_) : nullptr; }

void LowLatencyRank::combine_reduce() {
  const auto [sent, words] = close_call(&reductions_open_, false);
  CombineReduceArgs a{};
  a.wait_stats = wait_stats.data();
  a.registered = registered();
  recording.launch(low_latency_combine_reduce, calls().combine_reduce(sent, a).args, case_.shape, words);
}

void LowLatencyRank::combine_recv(const TokenInput& input, Poisoned<u16>* out) {
  const auto [sent, words] = close_call(&combines_open_, false);
  CombineReceiveArgs a{};
  a.out = out->data();
  a.topk_idx = input.topk_idx.data();
  a.weights = input.weights.data();
  a.wait_stats = wait_stats.data();
  a.num_tokens = input.num_tokens;
  a.topk = input.topk;
  a.registered = registered();
  recording.launch(low_latency_combine_recv, calls().combine_recv(sent, a).args, case_.shape, words);
}

}  // namespace uccl::testing

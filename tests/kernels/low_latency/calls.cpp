// Arguments as uccl_ep/low_latency/launch.py fills them.
#include "kernels/low_latency/calls.h"

#include "kernels/low_latency/combine_recv.h"
#include "kernels/low_latency/combine_reduce.h"
#include "kernels/low_latency/combine_send.h"
#include "kernels/low_latency/dispatch_recv.h"
#include "kernels/low_latency/dispatch_send.h"

namespace uccl::testing {

struct LowLatencyRank::CallWords : LowLatencyCall {};

namespace {

using OpenCalls = std::deque<std::shared_ptr<Poisoned<u64>>>;
std::shared_ptr<Poisoned<u64>> open_call(OpenCalls* open) {
  return open->emplace_back(std::make_shared<Poisoned<u64>>(2));
}
std::shared_ptr<Poisoned<u64>> close_call(OpenCalls* open, bool youngest) {
  const auto at = youngest ? open->end() - 1 : open->begin();
  const std::shared_ptr<Poisoned<u64>> word = *at;
  open->erase(at);
  return word;
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
      layout_range(c.num_experts),
      counts(c.num_experts) {}

LowLatencyRank::LowLatencyRank(World& world, u32 rank, const LowLatencyCase& c)
    : layout(world.low_latency),
      cumulative_stats(Poisoned<i32>(c.num_experts / world.num_ranks()).zeroed()),
      wait_stats(Poisoned<i64>(world.num_ranks()).zeroed()),
      world_(world),
      rank_(rank),
      case_(c),
      tickets_(Poisoned<u32>(5).zeroed()),
      grid_barriers_(Poisoned<u32>(5 * kGridBarrierWords).zeroed()),
      num_writes_(Poisoned<u32>(world.num_cells).zeroed()),
      num_sums_(Poisoned<u32>(world.num_ranks()).zeroed()),
      staging_tickets_(Poisoned<u64>(world.shape().staging_rows).zeroed()),
      state_(Poisoned<u8>(LowLatencyState::bytes(world.num_ranks())).zeroed()) {}

const LowLatencyState& LowLatencyRank::state() const {
  return *reinterpret_cast<const LowLatencyState*>(state_.data());
}

void LowLatencyRank::fill_call(CallWords* call, u64* epoch, u32 which) {
  call->layout = layout;
  call->state = reinterpret_cast<LowLatencyState*>(state_.data());
  call->epoch = epoch;
  call->num_experts = case_.num_experts;
  call->num_local_experts = case_.num_experts / world_.num_ranks();
  call->ticket = tickets_.data() + which;
  call->grid_barrier = grid_barriers_.data() + which * kGridBarrierWords;
  call->reduces = which >= 2 && case_.reduces;
}

void LowLatencyRank::dispatch_send(const TokenInput& input) {
  DispatchSendArgs a{};
  CallWords call{};
  const auto epoch = open_call(&dispatches_open_);
  fill_call(&call, epoch->data(), 0);
  a.rank = world_.context(rank_);
  a.call = call;
  a.x = input.x.data();
  a.topk_idx = input.topk_idx.data();
  a.num_writes = num_writes_.data();
  a.global_scale = &case_.global_scale;
  a.num_tokens = input.num_tokens;
  a.topk = input.topk;
  a.format = static_cast<u32>(case_.format);
  a.round_scale = case_.round_scale;
  a.batch = std::min(case_.batch, simt::kWarp);
  recording.launch(low_latency_dispatch_send, a, sizeof(DispatchSendShared), case_.shape, epoch);
}

void LowLatencyRank::dispatch_recv(Received* out, bool youngest) {
  DispatchReceiveArgs a{};
  CallWords call{};
  const auto epoch = close_call(&dispatches_open_, youngest);
  fill_call(&call, epoch->data(), 1);
  a.rank = world_.context(rank_);
  a.call = call;
  a.recv_x = out->x.data();
  a.recv_scales = case_.format == RowFormat::kBf16 ? nullptr : reinterpret_cast<u8*>(out->scales.data());
  a.recv_count = out->count.data();
  a.src_info = out->src_info.data();
  a.layout_range = out->layout_range.data();
  a.cumulative_stats = cumulative_stats.data();
  a.wait_stats = wait_stats.data();
  a.counts = out->counts.data();
  a.format = static_cast<u32>(case_.format);
  recording.launch(low_latency_dispatch_recv, a, sizeof(DispatchReceiveShared), case_.shape, epoch);
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
  CallWords call{};
  if (case_.zero_copy) {
    a.x = zero_copy_rows();
    a.zero_copy_offset = world_.zero_copy_offset() + (reinterpret_cast<const u8*>(a.x) - world_.zero_copy(rank_));
  } else {
    a.x = x;
  }
  ++num_combines_;
  const auto epoch = open_call(&combines_open_);
  fill_call(&call, epoch->data(), 2);
  a.rank = world_.context(rank_);
  a.call = call;
  a.src_info = from.src_info.data();
  a.layout_range = from.layout_range.data();
  a.staging_ticket = staging_tickets_.data();
  a.row_stride = row_stride();
  a.format = static_cast<u32>(case_.back);
  a.own_stay = case_.own_stay && case_.back == CombineFormat::kBf16;
  own_rows_open_.push_back(a.own_stay ? a.x : nullptr);
  if (case_.in_place && case_.back == CombineFormat::kBf16) {
    const bool stays = case_.zero_copy && a.own_stay != 0 && mix(case_.seed ^ num_combines_ << 16 ^ rank_) % 4 != 0;
    a.node_rows = static_cast<u32>(stays ? NodeRows::kStay : NodeRows::kCopiedAndMarked);
    a.x_at = reinterpret_cast<u64>(a.x) - reinterpret_cast<u64>(world_.memory(rank_));
  }
  a.signals = signals;
  a.signals_per_expert = signals_per_expert;
  a.signal_rows = signal_rows;
  a.signal_value = signal_value;
  if (case_.reduces) {
    reductions_open_.push_back(epoch);
    a.num_tokens = input->num_tokens;
    a.topk = input->topk;
    a.topk_idx = input->topk_idx.data();
    a.weights = input->weights.data();
  }
  recording.launch(low_latency_combine_send, a, sizeof(CombineSendShared), case_.shape, epoch);
}

const u8* const* LowLatencyRank::registered() const { return case_.in_place ? world_.memories(rank_) : nullptr; }

void LowLatencyRank::combine_reduce() {
  CombineReduceArgs a{};
  CallWords call{};
  const auto epoch = close_call(&reductions_open_, false);
  fill_call(&call, epoch->data(), 4);
  call.reduces = 1;
  a.rank = world_.context(rank_);
  a.call = call;
  a.num_writes = num_sums_.data();
  a.wait_stats = wait_stats.data();
  a.registered = registered();
  recording.launch(low_latency_combine_reduce, a, sizeof(CombineReduceShared), case_.shape, epoch);
}

void LowLatencyRank::combine_recv(const TokenInput& input, Poisoned<u16>* out) {
  CombineReceiveArgs a{};
  CallWords call{};
  const auto epoch = close_call(&combines_open_, false);
  fill_call(&call, epoch->data(), 3);
  a.rank = world_.context(rank_);
  a.call = call;
  a.out = out->data();
  a.topk_idx = input.topk_idx.data();
  a.weights = input.weights.data();
  a.wait_stats = wait_stats.data();
  a.num_tokens = input.num_tokens;
  a.topk = input.topk;
  a.format = static_cast<u32>(case_.back);
  a.zero_copy = case_.zero_copy;
  a.own_rows = own_rows_open_.front();
  a.own_stride = row_stride();
  a.registered = registered();
  own_rows_open_.pop_front();
  recording.launch(low_latency_combine_recv, a, sizeof(CombineReceiveShared), case_.shape, epoch);
}

}  // namespace uccl::testing

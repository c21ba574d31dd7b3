// Arguments as uccl_ep/low_latency.py fills them.
#include "kernels/low_latency/calls.h"

#include <sched.h>

#include "kernels/low_latency/combine_recv.h"
#include "kernels/low_latency/combine_send.h"
#include "kernels/low_latency/dispatch_recv.h"
#include "kernels/low_latency/dispatch_send.h"

namespace uccl::testing {

struct LowLatencyRank::CallWords : LowLatencyCall {};

void PhaseEpochs::finish(u64 epoch) {
  ahead.insert(epoch);
  while (ahead.erase(consumed + 1) != 0) ++consumed;
}
bool PhaseEpochs::overdue() const {
  return static_cast<i64>(told) < std::min<i64>(consumed, static_cast<i64>(sent) - 1);
}

Received::Received(const World& w, const LowLatencyCase& c)
    : x(u64{c.num_experts} * w.shape().max_tokens * w.shape().hidden * (c.format == RowFormat::kBf16 ? 2 : 1)),
      scales(u64{c.num_experts} * w.shape().max_tokens *
             (LowLatencyLayout::scale_bytes(w.shape().hidden, c.format) / 4)),
      count(c.num_experts / w.num_ranks()),
      src_info(3ull * c.num_experts * w.shape().max_tokens),
      layout_range(c.num_experts),
      counts(c.num_experts) {}

LowLatencyRank::LowLatencyRank(World& world, u32 rank, const LowLatencyCase& c)
    : layout(world.low_latency),
      cumulative_stats(Poisoned<i32>(c.num_experts / world.num_ranks()).zeroed()),
      wait_stats(Poisoned<i64>(world.num_ranks()).zeroed()),
      world_(world),
      rank_(rank),
      case_(c),
      tickets_(Poisoned<u32>(4).zeroed()),
      grid_barriers_(Poisoned<u32>(4 * kGridBarrierWords).zeroed()),
      num_writes_(Poisoned<u32>(world.num_nodes).zeroed()),
      staging_tickets_(Poisoned<u64>(world.shape().staging_rows).zeroed()) {}

void LowLatencyRank::fill_call(CallWords* call, u64 epoch, u32 which, bool announce) {
  call->layout = layout;
  call->epoch = epoch;
  call->consumed_dispatch = dispatches_.consumed;
  call->consumed_combine = combines_.consumed;
  call->num_experts = case_.num_experts;
  call->num_local_experts = case_.num_experts / world_.num_ranks();
  call->ticket = tickets_.data() + which;
  call->grid_barrier = grid_barriers_.data() + which * kGridBarrierWords;
  call->announce_epoch = announce && world_.num_nodes > 1 ? announcement() : 0;
}

u64 LowLatencyRank::announcement() {
  // Here `sent` already counts this call; Python asks before it sends, about the next one.
  const bool due = dispatches_.overdue() || combines_.overdue();
  dispatches_.told = dispatches_.consumed;
  combines_.told = combines_.consumed;
  if (!due) return 0;
  while (!world_.rings_idle(rank_) && !world_.aborted(rank_)) sched_yield();  // words of the one before last
  return ++announcements_;
}

void LowLatencyRank::dispatch_send(const TokenInput& input) {
  DispatchSendArgs a{};
  CallWords call{};
  dispatches_open_.push_back(++dispatches_.sent);
  fill_call(&call, dispatches_.sent, 0, true);
  a.rank = world_.context(rank_);
  a.call = call;
  a.x = input.x.data();
  a.topk_idx = input.topk_idx.data();
  a.num_writes = num_writes_.data();
  a.num_tokens = input.num_tokens;
  a.topk = input.topk;
  a.format = static_cast<u32>(case_.format);
  a.round_scale = case_.round_scale;
  a.batch = case_.batch;
  launch_kernel(low_latency_dispatch_send, a, sizeof(DispatchSendShared), case_.shape);
}

void LowLatencyRank::dispatch_recv(Received* out) {
  DispatchReceiveArgs a{};
  CallWords call{};
  const u64 epoch = dispatches_open_.front();
  dispatches_open_.pop_front();
  dispatches_.finish(epoch);
  fill_call(&call, epoch, 1, false);
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
  launch_kernel(low_latency_dispatch_recv, a, sizeof(DispatchReceiveShared), case_.shape);
}

u32 LowLatencyRank::row_stride() const {
  const u32 hidden = world_.shape().hidden;
  return case_.zero_copy ? static_cast<u32>(align_up(hidden + hidden / 64, 8)) : hidden;
}

u16* LowLatencyRank::zero_copy_rows() const {
  const u64 set = world_.shape().zero_copy_bytes / 2 / 128 * 128;
  return reinterpret_cast<u16*>(world_.zero_copy(rank_) + (combines_.sent + 1) % 2 * set);
}

void LowLatencyRank::combine_send(const Received& from, const u16* x) {
  CombineSendArgs a{};
  CallWords call{};
  if (case_.zero_copy) {
    a.x = zero_copy_rows();
    a.zero_copy_offset = world_.zero_copy_offset() + (reinterpret_cast<const u8*>(a.x) - world_.zero_copy(rank_));
  } else {
    a.x = x;
  }
  combines_open_.push_back(++combines_.sent);
  fill_call(&call, combines_.sent, 2, true);
  a.rank = world_.context(rank_);
  a.call = call;
  a.src_info = from.src_info.data();
  a.layout_range = from.layout_range.data();
  a.staging_ticket = staging_tickets_.data();
  a.row_stride = row_stride();
  a.logfmt = case_.logfmt;
  launch_kernel(low_latency_combine_send, a, sizeof(CombineSendShared), case_.shape);
}

void LowLatencyRank::combine_recv(const TokenInput& input, Poisoned<u16>* out) {
  CombineReceiveArgs a{};
  CallWords call{};
  const u64 epoch = combines_open_.front();
  combines_open_.pop_front();
  combines_.finish(epoch);
  fill_call(&call, epoch, 3, false);
  a.rank = world_.context(rank_);
  a.call = call;
  a.out = out->data();
  a.topk_idx = input.topk_idx.data();
  a.weights = input.weights.data();
  a.wait_stats = wait_stats.data();
  a.num_tokens = input.num_tokens;
  a.topk = input.topk;
  a.logfmt = case_.logfmt;
  launch_kernel(low_latency_combine_recv, a, sizeof(CombineReceiveShared), case_.shape);
}

}  // namespace uccl::testing

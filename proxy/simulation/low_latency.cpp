// The low-latency calls of a simulated rank.
#include "simulation/low_latency.h"

namespace uccl::simulation {

LowLatencyRank::LowLatencyRank(Driver& driver, World& world, Attendance& attendance, LowLatencyOracle& oracle,
                               const Case& c, u32 rank)
    : driver_(driver),
      world_(world),
      attendance_(attendance),
      case_(c),
      oracle_(oracle),
      rank_(rank),
      workspace_(LowLatencyCalls::workspace_bytes(world.num_ranks()) / sizeof(u64)) {
  LowLatencyState& state = calls().state();
  const u64 age = c.world.age;
  state.dispatch = state.combine = PhaseEpochs{age, age, 0, age};
  state.announcements = age;
  combines_ = age;
}

LowLatencyCalls LowLatencyRank::calls() {
  return {world_.context(rank_), world_.low_latency, case_.num_experts, reinterpret_cast<u8*>(workspace_.data()),
          case_.device()};
}

template <class Args>
void LowLatencyRank::launch(Kernel which, void (*kernel)(Args), const Args& args) {
  simt::LaunchConfig config;
  config.grid = case_.grid;
  config.block = case_.warps * simt::kWarp;
  config.smem_bytes = static_cast<u32>(shared_bytes(args, case_.warps));
  config.seed = case_.in_turn ? 0 : key_of(case_.seed, 0x1a, rank_);
  driver_.launch(rank_, which, kernel, args, config);
}

void LowLatencyRank::dispatch_send(u64 round, Call& c) {
  const LowLatencyInput& in = oracle_.input(round, rank_);
  DispatchSendArgs a{};
  a.x = in.x.data();
  a.topk_idx = in.topk_idx.data();
  a.num_tokens = in.num_tokens;
  a.topk = in.topk;
  a.format = static_cast<u32>(case_.format);
  a.round_scale = case_.round_scale;
  a = calls().dispatch_send(c.dispatch_words.poison(calls().dispatch_words()), a).args;
  a.batch = case_.batch;
  launch(Kernel::kDispatchSend, low_latency_dispatch_send, a);
  attendance_.did(rank_, round, Deed::kRows);
}

void LowLatencyRank::dispatch_recv(u64, Call& c) {
  const u64 experts = case_.num_experts, rows = experts * case_.world.max_tokens, hidden = case_.world.hidden;
  const bool bf16 = case_.format == RowFormat::kBf16;
  DispatchReceiveArgs a{};
  a.recv_x = c.x.poison(rows * hidden * (bf16 ? 2 : 1));
  u32* const scales = c.scales.poison(rows * (LowLatencyLayout::scale_bytes(case_.world.hidden, case_.format) / 4));
  a.recv_scales = bf16 ? nullptr : reinterpret_cast<u8*>(scales);
  a.recv_count = c.count.poison(experts / world_.num_ranks());
  a.src_info = c.src_info.poison(3 * rows + 1);
  a.layout_range = c.layout_range.poison(experts);
  a.format = static_cast<u32>(case_.format);
  launch(Kernel::kDispatchReceive, low_latency_dispatch_recv, calls().dispatch_recv(c.dispatch_words.data(), a).args);
}

u32 LowLatencyRank::row_stride() const {
  const u64 hidden = case_.world.hidden;
  return static_cast<u32>(case_.zero_copy ? align_up(hidden + hidden / 64, 8) : hidden);
}

void LowLatencyRank::combine_send(u64 round, Call& c) {
  const u64 rows = u64{case_.num_experts} * case_.world.max_tokens;
  CombineSendArgs a{};
  a.row_stride = row_stride();
  ++combines_;
  u16* x;
  if (case_.zero_copy) {
    u8* const memory =
        world_.zero_copy(rank_) + combines_ % kZeroCopySets * (case_.world.zero_copy_bytes / kZeroCopySets);
    a.zero_copy_offset = world_.zero_copy_offset() + static_cast<u64>(memory - world_.zero_copy(rank_));
    x = reinterpret_cast<u16*>(memory);
  } else {
    x = c.rows.poison(rows * a.row_stride);
  }
  oracle_.fill_combine_rows(round, rank_, received(c), x, a.row_stride);
  a.x = x;
  a.src_info = c.src_info.data();
  a.layout_range = c.layout_range.data();
  a.own_stay = 1;
  a = calls().combine_send(c.combine_words, a, false, false).args;
  if (case_.rows_stay) {  // whatever memory they are in: ranks share all of it here
    a.node_rows = static_cast<u32>(NodeRows::kStay);
    a.x_at = reinterpret_cast<u64>(x);
  }
  c.sent = a;
  launch(Kernel::kCombineSend, low_latency_combine_send, a);
  attendance_.did(rank_, round, Deed::kCombine);
}

void LowLatencyRank::combine_recv(u64 round, Call& c) {
  const LowLatencyInput& in = oracle_.input(round, rank_);
  CombineReceiveArgs a{};
  a.out = c.out.poison(u64{case_.world.max_tokens} * case_.world.hidden);
  a.topk_idx = in.topk_idx.data();
  a.weights = in.weights.data();
  a.num_tokens = in.num_tokens;
  a.topk = in.topk;
  a.registered = case_.rows_stay ? world_.memories(rank_) : nullptr;
  launch(Kernel::kCombineReceive, low_latency_combine_recv, calls().combine_recv(c.sent, a).args);
}

Received LowLatencyRank::received(const Call& c) const {
  return Received{c.x.data(), c.scales.data(), c.count.data(), c.src_info.data(), c.layout_range.data(), c.x.size()};
}

// `count` rounds from `round` on, whose halves are interleaved as two outstanding results allow.
void LowLatencyRank::round_trip(u64 round, u64 count, bool combine) {
  for (u64 i = 0; i < count; ++i) dispatch_send(round + i, open_[i]);
  attendance_.leave_in_the_middle(rank_, round, round + count - 1);
  for (u64 i = 0; i < count; ++i) {
    dispatch_recv(round + i, open_[i]);
    const Presences from = attendance_.seen_by(rank_, round + i, Deed::kRows);
    rows_ += oracle_.check_received(round + i, rank_, received(open_[i]), from);
  }
  attendance_.notice_in_the_middle(rank_, round, round + count - 1);
  for (u64 i = 0; combine && i < count; ++i) combine_send(round + i, open_[i]);
  for (u64 i = 0; combine && i < count; ++i) {
    combine_recv(round + i, open_[i]);
    const Presences owners = attendance_.seen_by(rank_, round + i, Deed::kCombine);
    rows_ += oracle_.check_combined(round + i, rank_, open_[i].out, owners);
  }
}

void LowLatencyRank::run(u64* rows) {
  for (u64 round = 0; round < case_.rounds;) {
    const u64 key = key_of(case_.seed, 0x10, round);
    const u64 count = key % 4 == 0 && round + 1 < case_.rounds ? 2 : 1;
    rows_ = 0;
    attendance_.before(rank_, round, round + count - 1);
    round_trip(round, count, (key >> 8) % 5 != 0);
    *rows += rows_;
    round += count;
    if ((key >> 16) % 6 == 0) driver_.quiet(rank_);
    if ((key >> 24) % 6 == 0) driver_.barrier(rank_);
  }
}

}  // namespace uccl::simulation

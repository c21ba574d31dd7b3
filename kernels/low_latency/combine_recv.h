// Low-latency combine, receiving half: waits for every rank, then sums each token's rows in ascending k with one
// rounding at the end: acc = fma(row, weight, acc) in fp32 (facts B.1).
#pragma once
#include "kernels/device/copy.h"
#include "kernels/low_latency/common.h"
#include "kernels/low_latency/logfmt.h"

namespace uccl {

struct CombineReceiveArgs {
  RankContext rank;
  LowLatencyCall call;
  u16* out;              // bf16 [num_tokens, hidden]
  const i64* topk_idx;   // [num_tokens, topk], as dispatched
  const float* weights;  // [num_tokens, topk]
  i64* wait_stats;       // [N] ns, added to, or null
  u32 num_tokens, topk;
  u32 logfmt;
  u32 unused;
};
inline constexpr u32 kMaxCombineWarps = 32;
struct CombineReceiveShared {
  const u16* rows[kMaxCombineWarps][kMaxTopk];
  float weights[kMaxCombineWarps][kMaxTopk];
  u32 ok, last;
};

// Whole block: everything that any rank sent for this epoch is here, or that rank is masked.
DEV bool await_combine(const CombineReceiveArgs& a, const WaitContext& wait, u32* shared_ok) {
  if (simt::tid() == 0) simt::st_release_gpu(shared_ok, 1u);
  simt::sync_block();
  if (simt::lane() == 0)
    for (u32 r = simt::warp(); r < a.rank.topology.num_ranks; r += simt::num_warps()) {
      const u64* flag = a.rank.topology.is_local(r)
                            ? word(own_data(a.rank), a.rank.signals.flag(Phase::kCombine, r))
                            : word(own_control(a.rank), a.rank.control_layout.flag(Phase::kCombine, r));
      const u64 begin = simt::now_ns();
      bool absent;
      const WaitSite site{WaitPhase::kCombineReceive, r, ~0u, a.call.epoch};
      if (!wait_for_flag(a.rank, wait, site, flag, a.call.epoch, &absent)) simt::st_release_gpu(shared_ok, 0u);
      if (a.wait_stats != nullptr && simt::bid() == 0 && r != a.rank.topology.rank)
        simt::add_sys(reinterpret_cast<u64*>(&a.wait_stats[r]), simt::now_ns() - begin);
    }
  simt::sync_block();
  const bool ok = simt::ld_acquire_gpu(shared_ok) != 0;
  if (!ok && simt::tid() == 0) fail_launch(a.call.ticket);
  return ok;
}

// One warp: the rows of a token that take part, compacted in ascending k. A repeated expert was sent once.
DEV u32 gather_rows(const CombineReceiveArgs& a, u32 token, const u16** rows, float* weights) {
  const u32 k = static_cast<u32>(simt::lane());
  const u64 first = static_cast<u64>(token) * a.topk;
  bool use = false;
  u64 slot = 0;
  if (k < a.topk) {
    const i64 e = a.topk_idx[first + k];
    use = e >= 0 && e < static_cast<i64>(a.call.num_experts) &&
          !masked(a.rank, static_cast<u32>(e) / a.call.num_local_experts);
    u32 sent = 0;
    while (sent < k && a.topk_idx[first + sent] != e) ++sent;
    slot = first + sent;
  }
  const simt::mask_t taking = simt::ballot(use);
  if (use) {
    const u32 at = static_cast<u32>(simt::popcount(taking & simt::lane_mask_lt()));
    const u64 offset = a.call.layout.combine_slot(a.call.epoch, slot) + (a.logfmt ? 0 : sizeof(LogfmtHeader));
    rows[at] = reinterpret_cast<const u16*>(own_data(a.rank) + offset);
    weights[at] = a.weights[first + k];
  }
  simt::sync_warp();
  return static_cast<u32>(simt::popcount(taking));
}

DEV void reduce_logfmt(const CombineReceiveArgs& a, u32 token, const u16* const* rows, const float* weights,
                       u32 count) {
  const u32 hidden = a.call.layout.hidden, unit = logfmt_unit(hidden), chunk = unit / simt::kWarp;
  u16* out = a.out + static_cast<u64>(token) * hidden;
  for (u32 u = 0; u < hidden / unit; ++u) {
    float acc[32];
    for (u32 i = 0; i < chunk; ++i) acc[i] = 0.0f;
    for (u32 r = 0; r < count; ++r) logfmt_accumulate(reinterpret_cast<const u8*>(rows[r]), u, unit, weights[r], acc);
    for (u32 i = 0; i < chunk; ++i)
      out[u * unit + static_cast<u32>(simt::lane()) * chunk + i] = simt::f_to_bf16(acc[i]);
  }
}

KERNEL low_latency_combine_recv(CombineReceiveArgs a) {
  CombineReceiveShared& shared = simt::smem<CombineReceiveShared>();
  const WaitContext wait = wait_context(a.rank);
  if (await_combine(a, wait, &shared.ok)) {
    const u32 warps = static_cast<u32>(simt::nbid() * simt::num_warps());
    const u32 hidden = a.call.layout.hidden;
    const u16** rows = shared.rows[simt::warp()];
    float* weights = shared.weights[simt::warp()];
    for (u32 t = static_cast<u32>(simt::bid() * simt::num_warps() + simt::warp()); t < a.num_tokens; t += warps) {
      const u32 count = gather_rows(a, t, rows, weights);
      if (a.logfmt)
        reduce_logfmt(a, t, rows, weights, count);
      else
        reduce_rows(a.out + static_cast<u64>(t) * hidden, rows, weights, count, hidden);
      simt::sync_warp();
    }
  }
  if (last_block(a.call.ticket, &shared.last)) publish_consumed(a.rank, Phase::kCombine, a.call.consumed_combine);
}

}  // namespace uccl

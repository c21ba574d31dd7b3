// Low-latency dispatch, receiving half: waits for every source, works out from the routing blocks which rows belong to
// which local expert, and packs them. The order is fixed: expert, then source rank, then token.
#pragma once
#include "kernels/device/copy.h"
#include "kernels/low_latency/common.h"

namespace uccl {

struct DispatchReceiveArgs {
  RankContext rank;
  LowLatencyCall call;
  u8* recv_x;            // [L, P, row payload]; P = num_ranks * max_tokens
  u8* recv_scales;       // null for bf16; 4-byte words [L, words, P] (column-major scales)
  i32* recv_count;       // [L]
  i32* src_info;         // [3, L, P]: source token | slot at the source (token * topk + k) | source rank
  i64* layout_range;     // [L, N]: begin << 32 | count
  i32* cumulative_stats; // [L], added to, or null
  i64* wait_stats;       // [N] ns waited for each source, added to, or null
  u32* counts;           // [N, L] workspace
  u32 format;            // RowFormat
  u32 unused;
};
struct DispatchReceiveShared {
  u32 last;
};

// Where a source's rows and routing block are readable on this node.
struct SourceView {
  const u8* rows;
  const RoutingHeader* header;
  const short* ids;
};
DEV SourceView source_view(const DispatchReceiveArgs& a, u32 source) {
  const LowLatencyLayout& layout = a.call.layout;
  const TopologyView& topology = a.rank.topology;
  const u8* base;
  u64 rows, routing;
  if (topology.is_local(source)) {
    base = data_of(a.rank, source);
    rows = layout.staged_rows(a.call.epoch);
    routing = layout.staged_routing(a.call.epoch);
  } else {
    base = data_of(a.rank, topology.host_of(source, topology.node));
    const u32 slot = topology.hosted_slot(source, topology.node);
    rows = layout.hosted_rows(a.call.epoch, slot);
    routing = layout.hosted_routing(a.call.epoch, slot);
  }
  const RoutingHeader* header = reinterpret_cast<const RoutingHeader*>(base + routing);
  return SourceView{base + rows, header, reinterpret_cast<const short*>(header + 1)};
}

// Calls take(token, k) for each token of the source that names `expert`, in order, once per token.
template <class Take>
DEV void for_each_selection(const SourceView& v, u32 expert, Take&& take) {
  const u32 tokens = v.header->num_tokens, topk = v.header->topk;
  const short* id = v.ids;
  for (u32 t = 0; t < tokens; ++t, id += topk)
    for (u32 k = 0; k < topk; ++k)
      if (id[k] == static_cast<short>(expert)) {
        take(t, k);
        break;
      }
}

// One warp waits for a source and checks that it speaks of the same shapes.
DEV bool await_source(const DispatchReceiveArgs& a, const WaitContext& wait, u32 source, bool* absent) {
  bool ok = true, gone = false;
  if (simt::lane() == 0) {
    const u64 begin = simt::now_ns();
    const WaitSite site{WaitPhase::kDispatchReceive, source, ~0u, a.call.epoch};
    ok = wait_for_flag(a.rank, wait, site, arrival_flag(a.rank, Phase::kDispatch, source), a.call.epoch, &gone);
    if (a.wait_stats != nullptr && source != a.rank.topology.rank)
      simt::add_sys(reinterpret_cast<u64*>(&a.wait_stats[source]), simt::now_ns() - begin);
    if (ok && !gone) {
      const RoutingHeader& h = *source_view(a, source).header;
      const u32 theirs[] = {h.hidden, h.format, h.num_experts};
      const u32 mine[] = {a.call.layout.hidden, a.format, a.call.num_experts};
      for (u32 i = 0; ok && i < 3; ++i) {
        if (theirs[i] == mine[i]) continue;
        // `channel` says when it is the experts, by the number that the count exchange has for them (counts.h).
        const WaitSite what{WaitPhase::kDispatchReceive, source, i == 2 ? 1u : kNoChannel, mine[i]};
        record_fault(wait, what, FaultKind::kMismatch, theirs[i]);
        ok = false;
      }
    }
  }
  *absent = warp_agree(gone);
  return warp_agree(ok);
}

// Phase 1: rows of each (source, local expert). Units of one source and kWarp experts go round the warps.
DEV bool count_rows(const DispatchReceiveArgs& a, const WaitContext& wait, u32 warp, u32 warps) {
  const u32 experts = a.call.num_local_experts, groups = static_cast<u32>(ceil_div(experts, simt::kWarp));
  const u32 first_expert = a.rank.topology.rank * experts;
  for (u32 u = warp; u < a.rank.topology.num_ranks * groups; u += warps) {
    const u32 source = u / groups, e = u % groups * simt::kWarp + static_cast<u32>(simt::lane());
    bool absent;
    if (!await_source(a, wait, source, &absent)) return false;
    if (e >= experts) continue;
    u32 n = 0;
    if (!absent) for_each_selection(source_view(a, source), first_expert + e, [&](u32, u32) { ++n; });
    a.counts[source * experts + e] = n;
  }
  return true;
}

// Phase 2: begin of every block, and which row of the source each output row is.
DEV void place_rows(const DispatchReceiveArgs& a, u32 warp, u32 warps) {
  const u32 experts = a.call.num_local_experts, groups = static_cast<u32>(ceil_div(experts, simt::kWarp));
  const u32 ranks = a.rank.topology.num_ranks;
  const u64 stride = static_cast<u64>(ranks) * a.call.layout.max_tokens, plane = experts * stride;
  for (u32 u = warp; u < ranks * groups; u += warps) {
    const u32 source = u / groups, e = u % groups * simt::kWarp + static_cast<u32>(simt::lane());
    if (e >= experts) continue;
    u32 begin = 0;
    for (u32 s = 0; s < source; ++s) begin += a.counts[s * experts + e];
    const u32 n = a.counts[source * experts + e];
    a.layout_range[static_cast<u64>(e) * ranks + source] = static_cast<i64>(static_cast<u64>(begin) << 32 | n);
    if (source + 1 == ranks) {
      a.recv_count[e] = static_cast<i32>(begin + n);
      if (a.cumulative_stats != nullptr) a.cumulative_stats[e] += static_cast<i32>(begin + n);
    }
    if (n == 0) continue;
    const SourceView v = source_view(a, source);
    i32* out = a.src_info + e * stride + begin;
    const u32 topk = v.header->topk;
    for_each_selection(v, a.rank.topology.rank * experts + e, [&](u32 t, u32 k) {
      out[0] = static_cast<i32>(t);
      out[plane] = static_cast<i32>(t * topk + k);
      out[2 * plane] = static_cast<i32>(source);
      ++out;
    });
  }
}

// Phase 3: copies, one warp a row, rows dealt round all warps of the grid.
DEV void copy_rows(const DispatchReceiveArgs& a, u32 warp, u32 warps) {
  const u32 experts = a.call.num_local_experts, hidden = a.call.layout.hidden;
  const u64 stride = static_cast<u64>(a.rank.topology.num_ranks) * a.call.layout.max_tokens;
  const u64 plane = experts * stride;
  const RowFormat format = static_cast<RowFormat>(a.format);
  const u64 row = LowLatencyLayout::row_bytes(hidden, format);
  const u64 payload = format == RowFormat::kBf16 ? 2ull * hidden : hidden;
  const u32 words = static_cast<u32>(LowLatencyLayout::scale_bytes(hidden, format) / 4);
  u32 dealt = 0;
  for (u32 e = 0; e < experts; ++e) {
    const u32 n = static_cast<u32>(a.recv_count[e]);
    for (u32 i = (warp + warps - dealt % warps) % warps; i < n; i += warps) {
      const u64 at = e * stride + i;
      const u8* from = source_view(a, static_cast<u32>(a.src_info[2 * plane + at])).rows + a.src_info[at] * row;
      copy_row(a.recv_x + at * payload, from, payload);
      for (u32 w = static_cast<u32>(simt::lane()); w < words; w += simt::kWarp)
        reinterpret_cast<u32*>(a.recv_scales)[(static_cast<u64>(e) * words + w) * stride + i] =
            reinterpret_cast<const u32*>(from + payload)[w];
    }
    dealt += n;
  }
}

KERNEL low_latency_dispatch_recv(DispatchReceiveArgs a) {
  DispatchReceiveShared& shared = simt::smem<DispatchReceiveShared>();
  const WaitContext wait = wait_context(a.rank);
  const u32 warps = static_cast<u32>(simt::nbid() * simt::num_warps());
  const u32 warp = static_cast<u32>(simt::bid() * simt::num_warps() + simt::warp());
  bool ok = sync_launch(a.rank, wait, a.call, count_rows(a, wait, warp, warps));
  if (ok) place_rows(a, warp, warps);
  ok = sync_launch(a.rank, wait, a.call, ok);
  if (ok) {
    copy_rows(a, warp, warps);
    if (warp == 0)
      for (u32 s = static_cast<u32>(simt::lane()); s < a.rank.topology.num_ranks; s += simt::kWarp) {
        u64 rows = 0;
        for (u32 e = 0; e < a.call.num_local_experts; ++e) rows += a.counts[s * a.call.num_local_experts + e];
        add_stat(a.rank, s, PeerStat::kRowsIn, rows);
        add_stat(a.rank, s, PeerStat::kBytesIn,
                 rows * LowLatencyLayout::row_bytes(a.call.layout.hidden, static_cast<RowFormat>(a.format)));
      }
  }
  if (last_block(a.call.ticket, &shared.last)) publish_consumed(a.rank, Phase::kDispatch, a.call.consumed_dispatch);
}

}  // namespace uccl

// Low-latency dispatch, receiving half: waits for every source, works out from the routing blocks which rows belong to
// which local expert, and packs them. The order is fixed: expert, then source rank, then token.
#pragma once
#include "kernels/device/copy.h"
#include "kernels/device/match.h"
#include "kernels/low_latency/common.h"

namespace uccl {

struct DispatchReceiveArgs {
  RankContext rank;
  LowLatencyCall call;
  u8* recv_x;            // [L, P, row payload]; P = num_ranks * max_tokens
  u8* recv_scales;       // null for bf16; 4-byte words [L, words, P] (column-major scales), or as Nvfp4Scales says
  i32* recv_count;       // [L]
  i32* src_info;  // [3, L, P]: source token | slot at the source (token * topk + k) | source rank; behind it the
  // dispatch's number, which the combine that answers it shows to other ranks
  i64* layout_range;  // [L, N]: begin << 32 | count
  i32* cumulative_stats;  // [L], added to, or null
  i64* wait_stats;  // [N] ns waited for each source, added to, or null
  u32* counts;  // [N, L] workspace
  u32* sizes;  // [N] workspace: tokens << 8 | top-k of a source's routing block; 0: it is masked
  u32 format;  // RowFormat
  u32 unused;
};
struct DispatchReceiveShared {
  static_assert(simt::kMatchWidth <= 64, "begin has no place for them");
  u32 last;
  u32 found[kMaxBlockLanes];  // by lane: rows in its warp's part of a source's ids for the expert that it counts for
  u32 begin[64];  // of those experts, where this source's rows begin; as many as the widest warp has lanes
};

// A source's routing block on this node, with no more ids than there is room for.
struct SourceView {
  const short* ids;
  u32 num_tokens, topk;
};
// The memory of this node that has a source's rows and routing block, as offsets of `base`.
struct SourcePlace {
  const u8* base;
  u64 rows, routing;
};
DEV SourcePlace source_place(const DispatchReceiveArgs& a, u64 epoch, u32 source) {
  const LowLatencyLayout& layout = a.call.layout;
  const TopologyView& topology = a.rank.topology;
  if (topology.is_local(source))
    return SourcePlace{data_of(a.rank, source), layout.staged_rows(epoch), layout.staged_routing(epoch)};
  const u32 slot = topology.landing_slot(source, topology.cell);
  return SourcePlace{data_of(a.rank, topology.landing_rank(source, topology.cell)), layout.landing_rows(epoch, slot),
                     layout.landing_routing(epoch, slot)};
}
DEV const u8* rows_of(const DispatchReceiveArgs& a, u64 epoch, u32 source) {
  const SourcePlace place = source_place(a, epoch, source);
  return place.base + place.rows;
}
DEV const RoutingHeader* routing_header(const DispatchReceiveArgs& a, u64 epoch, u32 source) {
  const SourcePlace place = source_place(a, epoch, source);
  return reinterpret_cast<const RoutingHeader*>(place.base + place.routing);
}
DEV SourceView source_view(const DispatchReceiveArgs& a, u64 epoch, u32 source) {
  const u32 size = a.sizes[source];
  if (size == 0) return SourceView{nullptr, 0, 0};
  return SourceView{reinterpret_cast<const short*>(routing_header(a, epoch, source) + 1), size >> 8, size & 0xff};
}

// One lane: a source's routing block holds no more than there is room for. What its header says is read here only: it may
// lie in the host's memory.
DEV bool check_routing(const DispatchReceiveArgs& a, const Turn& turn, u32 source) {
  const RoutingHeader& h = *routing_header(a, turn.epoch, source);
  const u32 theirs[] = {h.num_tokens, h.topk}, most[] = {a.call.layout.max_tokens, a.call.layout.max_topk};
  for (u32 i = 0; i < 2; ++i)
    if (theirs[i] > most[i])
      return bad_arrival(turn.wait, WaitSite{WaitPhase::kDispatchReceive, source, {}, most[i]}, theirs[i]);
  a.sizes[source] = theirs[0] << 8 | theirs[1];
  return true;
}

// Where a source of another node announces, at its landing rank here; null where it is local.
DEV u8* landing_control(const DispatchReceiveArgs& a, u32 source) {
  const TopologyView& topology = a.rank.topology;
  return topology.is_local(source) ? nullptr : control_of(a.rank, topology.landing_rank(source, topology.cell));
}
DEV const u64* dispatch_flag(const DispatchReceiveArgs& a, u64 epoch, u32 source) {
  u8* const control = landing_control(a, source);
  if (control != nullptr) return flag_beside(a.rank, control, Phase::kDispatch, epoch, source);
  return node_flag(a.rank, Phase::kDispatch, epoch, source);
}

// One thread waits for a source, or finds that it is masked, and checks that it is in the same call.
DEV bool await_source(const DispatchReceiveArgs& a, const Turn& turn, u32 source) {
  const WaitSite site{WaitPhase::kDispatchReceive, source, {}, turn.epoch};
  const bool sent = is_sent(a.rank, a.call, source);
  if (!sent && !wait_and_count(a.rank, turn.wait, site, dispatch_flag(a, turn.epoch, source), a.wait_stats))
    return false;
  a.sizes[source] = 0;
  if (masked(a.rank, source)) return true;
  if (sent) return check_routing(a, turn, source);
  u8* const control = landing_control(a, source);
  const ExpectHeader* const announced =
      control != nullptr ? announced_by(a.rank, control, Phase::kDispatch, turn.epoch, source) : nullptr;
  return in_same_call(a.rank, turn, Phase::kDispatch, site, announced) && check_routing(a, turn, source);
}

// Whole block, in ask_once: everything of every source is here; a thread a source.
DEV bool await_sources(const DispatchReceiveArgs& a, const Turn& turn) {
  bool good = true;
  for (u32 s = simt::tid(); s < a.rank.topology.num_ranks; s += simt::ntid()) good = await_source(a, turn, s) && good;
  return good;
}

// The warp's group of neighbouring local experts.
struct ExpertGroup {
  u32 first, width;  // the lowest, as ids have it, and how many there are
};
DEV ExpertGroup expert_group(const DispatchReceiveArgs& a, u32 group) {
  const u32 experts = a.call.num_local_experts, begin = group * kMatchWidth;
  return ExpertGroup{a.rank.topology.rank * experts + begin,
                     experts - begin < kMatchWidth ? experts - begin : kMatchWidth};
}
// A local expert that this lane counts for.
DEV u32 expert_of_lane(u32 group, u32 i) { return group * kMatchWidth + i * simt::kWarp + simt::lane(); }

// A unit of work: one source and kMatchWidth experts. Units go round the warps, or round the blocks (`in_blocks`): then a
// block's warps take parts of the source's ids, which a single warp of a GPU takes longer to read than all rows take to copy.
// A warp of one lane counts for all experts by itself.
DEV bool in_blocks(const DispatchReceiveArgs& a) { return kMatchesPerLane == 1 && a.call.share_rows != 0; }
struct Units {
  u32 first, step;
};
DEV Units units_of(const DispatchReceiveArgs& a) {
  if (in_blocks(a)) return Units{static_cast<u32>(simt::bid()), static_cast<u32>(simt::nbid())};
  return Units{grid_warp(), grid_warps()};
}
// The warp's part of a source's ids.
struct Slots {
  u32 begin, end;
};
DEV Slots part_of(const DispatchReceiveArgs& a, const SourceView& v) {
  const u32 all = v.num_tokens * v.topk;
  if (!in_blocks(a)) return Slots{0, all};
  const u32 size = static_cast<u32>(align_up(ceil_div(all, simt::num_warps()), simt::kWarp));
  const u32 begin = simt::warp() * size < all ? simt::warp() * size : all;
  return Slots{begin, all - begin < size ? all : begin + size};
}

// int32 words of one plane of src_info.
DEV u64 plane_of(const DispatchReceiveArgs& a) {
  return a.call.num_local_experts * static_cast<u64>(a.rank.topology.num_ranks) * a.call.layout.max_tokens;
}

// Rows of the warp's part of a source's ids, by expert that a lane counts for.
DEV void count_part(const DispatchReceiveArgs& a, const SourceView& v, const ExpertGroup& g,
                    u32 (&n)[kMatchesPerLane]) {
  const Slots part = part_of(a, v);
  count_matches(v.ids + part.begin, part.end - part.begin, g.first, g.width, n);
}
// In blocks, in every lane: rows in the parts of the first `warps` warps, for the lane's one expert.
DEV u32 found_before(const DispatchReceiveShared& s, u32 warps) {
  u32 rows = 0;
  for (u32 w = 0; w < warps; ++w) rows += s.found[w * simt::kWarp + simt::lane()];
  return rows;
}

// Phase 1: rows of each (source, local expert). A token names an expert once: its source left repetitions out of the
// routing block.
DEV bool count_rows(const DispatchReceiveArgs& a, const Turn& turn, DispatchReceiveShared& shared) {
  const u32 experts = a.call.num_local_experts, groups = static_cast<u32>(ceil_div(experts, kMatchWidth));
  const Units units = units_of(a);
  bool fits = true;  // into the source's share of an expert's rows
  for (u32 u = units.first; u < a.rank.topology.num_ranks * groups; u += units.step) {
    const u32 source = u / groups, group = u % groups;
    u32 n[kMatchesPerLane] = {};
    const SourceView v = source_view(a, turn.epoch, source);
    count_part(a, v, expert_group(a, group), n);
    if (in_blocks(a)) {
      shared.found[simt::tid()] = n[0];
      simt::sync_block();
      n[0] = found_before(shared, simt::num_warps());
      simt::sync_block();  // all have read them
      if (simt::warp() != 0) continue;
    }
    const u32 most = v.num_tokens;
    for (u32 i = 0; i < kMatchesPerLane; ++i)
      if (const u32 e = expert_of_lane(group, i); e < experts) {
        a.counts[source * experts + e] = n[i];
        if (n[i] > most) fits = bad_arrival(turn.wait, WaitSite{WaitPhase::kDispatchReceive, source, {}, most}, n[i]);
      }
  }
  return simt::ballot(!fits) == 0;
}

// One lane: where a source's rows for local expert `e` begin, which is put down with their number (0: there are none).
DEV u32 place_block(const DispatchReceiveArgs& a, u32 source, u32 e, u32* begin) {
  const u32 experts = a.call.num_local_experts, ranks = a.rank.topology.num_ranks;
  *begin = 0;
  for (u32 s = 0; s < source; ++s) *begin += a.counts[s * experts + e];
  const u32 n = a.counts[source * experts + e];
  a.layout_range[static_cast<u64>(e) * ranks + source] = static_cast<i64>(static_cast<u64>(*begin) << 32 | n);
  if (source + 1 == ranks) {
    a.recv_count[e] = static_cast<i32>(*begin + n);
    if (a.cumulative_stats != nullptr) a.cumulative_stats[e] += static_cast<i32>(*begin + n);
  }
  return n;
}

// Phase 2: begin of every block, and which row of the source each output row is.
DEV void place_rows(const DispatchReceiveArgs& a, const Turn& turn, DispatchReceiveShared& shared) {
  const u32 experts = a.call.num_local_experts, groups = static_cast<u32>(ceil_div(experts, kMatchWidth));
  const u32 ranks = a.rank.topology.num_ranks;
  const u64 stride = static_cast<u64>(ranks) * a.call.layout.max_tokens, plane = experts * stride;
  const Units units = units_of(a);
  for (u32 u = units.first; u < ranks * groups; u += units.step) {
    const u32 source = u / groups, group = u % groups;
    const SourceView v = source_view(a, turn.epoch, source);
    const ExpertGroup g = expert_group(a, group);
    u32 begin[kMatchesPerLane] = {}, n = 0;
    if (!in_blocks(a) || simt::warp() == 0)
      for (u32 i = 0; i < kMatchesPerLane; ++i)
        if (const u32 e = expert_of_lane(group, i); e < experts) n += place_block(a, source, e, &begin[i]);
    if (in_blocks(a)) {
      u32 found[kMatchesPerLane] = {};
      count_part(a, v, g, found);
      shared.found[simt::tid()] = found[0];
      if (simt::warp() == 0) shared.begin[simt::lane()] = begin[0];
      simt::sync_block();
      n = found[0];
      begin[0] = shared.begin[simt::lane()] + found_before(shared, simt::warp());
      simt::sync_block();  // all have read them
    }
    if (simt::ballot(n != 0) == 0) continue;
    const Slots part = part_of(a, v);
    const u32 topk = v.topk, first = part.begin;
    i32* const rows = a.src_info + group * kMatchWidth * stride;
    for_each_match(v.ids + first, part.end - first, g.first, g.width, begin, [=](u32 j, u32 at, u32 index) {
      if (at >= stride) return;  // ids that were counted otherwise: overwritten since
      i32* out = rows + j * stride + at;
      const u32 slot = first + index;
      out[0] = static_cast<i32>(slot / topk);
      out[plane] = static_cast<i32>(slot);
      out[2 * plane] = static_cast<i32>(source);
    });
  }
}

// Phase 3: copies, one warp a row or a piece of it, dealt round all warps of the grid.
DEV void copy_rows(const DispatchReceiveArgs& a, const Turn& turn) {
  const u32 experts = a.call.num_local_experts, hidden = a.call.layout.hidden;
  const u64 stride = static_cast<u64>(a.rank.topology.num_ranks) * a.call.layout.max_tokens;
  const u64 plane = experts * stride;
  const RowFormat format = static_cast<RowFormat>(a.format);
  const u64 row = LowLatencyLayout::row_bytes(hidden, format);
  const u64 payload = LowLatencyLayout::payload_bytes(hidden, format);
  const u32 words = static_cast<u32>(LowLatencyLayout::scale_bytes(hidden, format) / 4);
  const bool swizzled = format == RowFormat::kNvfp4;
  u32* const scales = reinterpret_cast<u32*>(a.recv_scales);
  const u64 tile = words * (swizzled ? Nvfp4Scales::tiles(stride) * Nvfp4Scales::kTileRows : stride);  // of an expert
  const auto count = [&](u32 e) { return static_cast<u32>(a.recv_count[e]); };
  const u64 num_rows = rows_of_experts(experts, count), total = num_rows * payload;
  const u32 grain = kPieceBytes / static_cast<u32>(LowLatencyLayout::payload_bytes(1, format));
  const RowCut cut = cut_row(a.call, num_rows, grid_warps(), grain);
  simt::deal_rows(experts, cut.pieces, grid_warp(), grid_warps(), count, [&](u32 e, u32 i, u32 piece) {
    const u64 at = e * stride + i;
    const u8* from = rows_of(a, turn.epoch, static_cast<u32>(a.src_info[2 * plane + at])) + a.src_info[at] * row;
    const u64 begin = LowLatencyLayout::payload_bytes(cut.begin(piece), format);
    copy_row_out(a.recv_x + at * payload + begin, from + begin,
                 LowLatencyLayout::payload_bytes(cut.size(piece, hidden), format), total);
    for (u32 w = static_cast<u32>(simt::lane()); piece == 0 && w < words; w += simt::kWarp)
      scales[e * tile + (swizzled ? Nvfp4Scales::at(i, w, words) : w * stride + i)] =
          reinterpret_cast<const u32*>(from + payload)[w];
    return true;
  });
}

KERNEL KERNEL_BOUNDS(kMaxBlockLanes) low_latency_dispatch_recv(DispatchReceiveArgs a) {
  DispatchReceiveShared& shared = simt::smem<DispatchReceiveShared>();
  const Turn turn = begin_receive(a.rank, a.call, Phase::kDispatch);
  if (!ask_once(a.call, turn, [&] { return await_sources(a, turn); })) return;
  bool ok = sync_launch(a.rank, turn.wait, a.call, count_rows(a, turn, shared));
  if (ok) place_rows(a, turn, shared);
  ok = sync_launch(a.rank, turn.wait, a.call, ok);
  if (ok) {
    copy_rows(a, turn);
    if (grid_warp() == grid_warps() - 1)  // which has the least rows
      for (u32 s = static_cast<u32>(simt::lane()); s < a.rank.topology.num_ranks; s += simt::kWarp) {
        u64 rows = 0;
        for (u32 e = 0; e < a.call.num_local_experts; ++e) rows += a.counts[s * a.call.num_local_experts + e];
        add_stat(a.rank, s, PeerStat::kRowsIn, rows);
        add_stat(a.rank, s, PeerStat::kBytesIn,
                 rows * LowLatencyLayout::row_bytes(a.call.layout.hidden, static_cast<RowFormat>(a.format)));
      }
  }
  if (!last_block(a.call.ticket, &shared.last)) return;
  if (simt::tid() == 0) a.src_info[3 * plane_of(a)] = static_cast<i32>(turn.epoch);
  end_receive(a.rank, a.call, Phase::kDispatch, turn);
}

}  // namespace uccl

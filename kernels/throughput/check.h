// What a caller hands to dispatch as its layout must be what its topk_idx says: num_tokens_per_rank and the rest are
// compared while they are counted, one token a lane, so that no rank is sent rows that it does not expect. For each
// selection one id and one byte of is_token_in_rank are read; the tensors' sums are compared at the end.
//
// Masks may change between get_dispatch_layout and dispatch. What goes to a rank that is masked or absent now may be in
// the layout or not.
#pragma once
#include "kernels/layout/access.h"

namespace uccl {

// The argument that is wrong, numbered as uccl_ep/membership/fault_errors.py words it.
enum class LayoutPart : u32 { kNone = 0, kLacksRank, kNamesRank, kTokensPerRank, kTokensPerNode, kTokensPerExpert };

// What the host learns where it waits for the counts: who refused the call, and of its own arguments what is wrong where.
// Such a call ends for every rank after its count exchange, as if nobody had called. Where the host does not wait,
// kernels of the call are queued already, and the refusal is a fault of each rank.
struct LayoutRefusal {
  u32 part;  // LayoutPart; 0: the call goes on
  u32 source;
  u32 place;  // token, rank, node or expert, by part
  u32 right, given;  // of kLacksRank: the rank, and 0
};

// In CountsHeader::num_channels: this source refused its own call, because of the LayoutPart in num_local_experts.
inline constexpr u32 kRefusedCall = ~0u;

// The first disagreement, and what the comparison counts: [N] tokens by rank, then [E] selections by expert.
struct LayoutFindings {
  LayoutRefusal first;
  u32 claimed;  // `first` is somebody's to fill
  u32 told;  // the host's LayoutRefusal likewise
  static constexpr u64 words(u32 num_ranks, u32 num_experts) {
    return sizeof(LayoutFindings) / sizeof(u32) + num_ranks + num_experts;
  }
};

struct LayoutCheck {
  const RankContext* rank;
  LayoutFindings* findings;  // words()
  const i64* topk_idx;  // [num_tokens, topk] or null; outside [0, num_experts) = not routed
  const u8* is_token_in_rank;
  const i32* num_tokens_per_rank;  // [N]
  const i32* num_tokens_per_node;  // [nodes] or null
  const i32* num_tokens_per_expert;  // [E]
  const u32* channel_prefix;  // [N, C] what was counted in is_token_in_rank
  const u32* node_rows;  // [cells, C] likewise
  u32 num_tokens, topk, num_local_experts, num_channels;

  DEV_MEMBER u32 num_ranks() const { return rank->topology.num_ranks; }
  DEV_MEMBER u32 num_experts() const { return num_local_experts * num_ranks(); }
  DEV_MEMBER u32* by_rank() const { return reinterpret_cast<u32*>(findings + 1); }
  DEV_MEMBER u32* by_expert() const { return by_rank() + num_ranks(); }
  DEV_MEMBER bool takes_part(u32 r) const { return !rank->topology.is_absent(r) && !masked(*rank, r); }
  DEV_MEMBER u32 counted(u32 r) const { return channel_prefix[r * num_channels + num_channels - 1]; }
};

DEV void disagree(const LayoutCheck& c, LayoutPart part, u32 place, u64 right, u32 given) {
  LayoutRefusal& first = c.findings->first;
  if (simt::cas_sys(&c.findings->claimed, 0u, 1u) != 0) return;
  first.source = c.rank->topology.rank;
  first.place = place;
  first.right = right < ~0u ? static_cast<u32>(right) : ~0u;
  first.given = given;
  simt::st_release_gpu(&first.part, static_cast<u32>(part));
}

// The whole block; it meets before the findings are used.
DEV void begin_check(const LayoutCheck& c) {
  u32* words = reinterpret_cast<u32*>(c.findings);
  for (u64 i = simt::tid(); i < LayoutFindings::words(c.num_ranks(), c.num_experts()); i += simt::ntid()) words[i] = 0;
}

// Whether one of a token's selections before the k-th goes to this rank as well.
DEV bool rank_named_before(const LayoutCheck& c, const i64* ids, u32 k, u32 rank) {
  for (u32 i = 0; i < k; ++i)
    if (ids[i] >= 0 && ids[i] < static_cast<i64>(c.num_experts()) &&
        static_cast<u32>(ids[i]) / c.num_local_experts == rank)
      return true;
  return false;
}

// The whole block: every selection of a token is one of its expert, and its rank takes the token.
DEV void check_tokens(const LayoutCheck& c) {
  const u32 ranks = c.num_ranks();
  const i64 experts = c.num_experts();
  static_assert(kMaxExperts <= 1u << 16);
  const u64 inverse = (1ull << 32) / c.num_local_experts + 1;  // times an expert, in the high word: its rank, exactly
  for (u32 t = simt::tid(); c.topk_idx != nullptr && t < c.num_tokens; t += simt::ntid()) {
    const i64* ids = c.topk_idx + static_cast<u64>(t) * c.topk;
    const u8* row = c.is_token_in_rank + static_cast<u64>(t) * ranks;
    u64 named = 0;  // by rank modulo 64: a bit that is set says for sure which rank only when there are no more
    for (u32 k = 0; k < c.topk; ++k) {
      if (ids[k] < 0 || ids[k] >= experts) continue;
      const u32 expert = static_cast<u32>(ids[k]), rank = static_cast<u32>(expert * inverse >> 32);
      simt::add_cta(&c.by_expert()[expert], 1u);  // the kernel has one block
      const u64 bit = 1ull << rank % 64;
      const bool again = (named & bit) != 0 && (ranks <= 64 || rank_named_before(c, ids, k, rank));
      named |= bit;
      if (again) continue;
      if (row[rank] != 0)
        simt::add_cta(&c.by_rank()[rank], 1u);
      else if (c.takes_part(rank))
        disagree(c, LayoutPart::kLacksRank, t, rank, 0);
    }
  }
}

// The whole block, when it has met after check_tokens and after is_token_in_rank was counted.
DEV void check_ranks(const LayoutCheck& c) {
  for (u32 r = simt::tid(); r < c.num_ranks(); r += simt::ntid()) {
    const u32 given = static_cast<u32>(c.num_tokens_per_rank[r]), counted = c.counted(r);
    if (!c.takes_part(r)) {
      if (given > c.num_tokens) disagree(c, LayoutPart::kTokensPerRank, r, c.num_tokens, given);
    } else if (c.topk_idx != nullptr && counted != c.by_rank()[r]) {
      disagree(c, LayoutPart::kNamesRank, r, c.by_rank()[r], counted);
    } else if (given != counted) {
      disagree(c, LayoutPart::kTokensPerRank, r, counted, given);
    }
  }
}

// The whole block. Without ids a token has between none and the largest top-k selections of a rank's experts. A node's
// tokens are counted only where it is one cell and no rank of it can be masked.
DEV void check_sums(const LayoutCheck& c) {
  const TopologyView& topology = c.rank->topology;
  const bool whole = !c.rank->shrink && topology.num_cells == topology.num_nodes;
  for (u32 n = simt::tid(); c.num_tokens_per_node != nullptr && n < topology.num_nodes; n += simt::ntid()) {
    const u32 given = static_cast<u32>(c.num_tokens_per_node[n]);
    u32 rows = 0;
    for (u32 i = 0; whole && i < c.num_channels; ++i) rows += c.node_rows[n * c.num_channels + i];
    if (whole ? given != rows : given > c.num_tokens)
      disagree(c, LayoutPart::kTokensPerNode, n, whole ? rows : c.num_tokens, given);
  }
  for (u32 e = simt::tid(); e < c.num_experts(); e += simt::ntid()) {
    const u32 given = static_cast<u32>(c.num_tokens_per_expert[e]), rank = e / c.num_local_experts;
    const bool here = c.takes_part(rank);
    const u64 tokens = here ? c.counted(rank) : c.num_tokens;
    const u64 most = c.topk_idx != nullptr ? c.by_expert()[e] : tokens * kMaxTopk;
    const bool exact = c.topk_idx != nullptr && here;
    if (exact ? given != most : given > most) disagree(c, LayoutPart::kTokensPerExpert, e, most, given);
  }
}

// The whole block: what is wrong, when everything has been counted. Every thread gets the same.
DEV LayoutPart finish_check(const LayoutCheck& c) {
  simt::sync_block();  // all is counted
  check_ranks(c);
  simt::sync_block();
  check_sums(c);
  simt::sync_block();
  return static_cast<LayoutPart>(simt::ld_acquire_gpu(&c.findings->first.part));
}

// One thread: a source refused the call. False: that is a fault, now recorded. `host` is null where no host waits.
DEV bool tell_refusal(const WaitContext& wait, LayoutFindings* findings, LayoutRefusal* host,
                      const LayoutRefusal& what) {
  if (host == nullptr) {
    const u64 given = static_cast<u64>(what.place) << 32 | what.given;
    record_fault(wait, WaitSite{WaitPhase::kCounts, what.source, {DetailKind::kLayoutPart, what.part}, what.right},
                 FaultKind::kMismatch, given);
    return false;
  }
  if (simt::cas_sys(&findings->told, 0u, 1u) == 0) *host = what;
  return true;
}

}  // namespace uccl

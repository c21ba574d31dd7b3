// Which ids of a list name one of `width` neighbours first, first + 1, ...: lane l of a warp learns of those that name
// first + l + i * kWarp, for i below kMatchesPerLane. Warp-collective, every lane with the same list; width is at most
// kMatchWidth, ids are 0 to 32767, or -1 for none.
//
// On GPUs the warp reads kWarp ids side by side, and a ballot for each bit of the offset tells every lane which of them
// are its own, so a list is read once and not once a lane. On a CPU lane 0 reads it once for all.
#pragma once
#include "kernels/device/simt.h"

namespace uccl::simt {

// Neighbours of one search: a lane each, but for warps of one lane, which would have to read the list so much oftener. Not
// `inline`: files of one program may be of several widths.
constexpr u32 kMatchWidth = kWarp == 1 ? 32 : kWarp;
constexpr u32 kMatchesPerLane = kMatchWidth / kWarp;

namespace lanes {

// Lanes whose `offset` is this lane's index; no lane when that is `width` or more.
DEV mask_t match_lane(u32 offset, u32 width) {
  mask_t mine = ballot(offset < width);
  if (mine == 0) return 0;
  UCCL_UNROLL
  for (u32 bit = 1; bit < kWarp; bit <<= 1) {
    const mask_t set = ballot((offset & bit) != 0);
    mine &= (lane() & bit) != 0 ? set : static_cast<mask_t>(~set);
  }
  return mine;
}

// Calls found(index of the first, lanes that hold this lane's id) for kWarp ids at a time, in order.
template <class Found>
DEV void scan_ids(const short* ids, u32 n, u32 first, u32 width, Found found) {
  constexpr u32 kAhead = 4;  // loads in flight a lane: the list may lie in another GPU's memory
  for (u32 base = 0; base < n; base += kAhead * kWarp) {
    u32 offsets[kAhead];
    UCCL_UNROLL
    for (u32 i = 0; i < kAhead; ++i) {
      const u32 at = base + i * kWarp + lane();
      offsets[i] = at < n ? static_cast<u32>(ids[at]) - first : ~0u;  // -1 and smaller ids wrap far beyond any width
    }
    UCCL_UNROLL
    for (u32 i = 0; i < kAhead; ++i)
      if (base + i * kWarp < n) found(base + i * kWarp, match_lane(offsets[i], width));
  }
}

DEV u32 count_matches(const short* ids, u32 n, u32 first, u32 width) {
  u32 count = 0;
  scan_ids(ids, n, first, width, [&](u32, mask_t mine) { count += popcount(mine); });
  return count;
}

template <class Take>
DEV void for_each_match(const short* ids, u32 n, u32 first, u32 width, u32 position, Take take) {
  scan_ids(ids, n, first, width, [&](u32 base, mask_t mine) {
    for (; mine != 0; mine &= mine - 1) take(lane(), position++, base + first_lane(mine));
  });
}

}  // namespace lanes

// How often each of this lane's neighbours occurs among ids[0, n); 0 for those from `width` on.
DEV void count_matches(const short* ids, u32 n, u32 first, u32 width, u32 (&counts)[kMatchesPerLane]) {
#ifdef UCCL_SIMT_HOST
  u32 all[kMatchWidth + 1];  // the last one for ids that name nobody, so that there is no branch to guess
  if (lane() == 0) {
    for (u32 j = 0; j <= kMatchWidth; ++j) all[j] = 0;
    for (u32 i = 0; i < n; ++i) {
      const u32 offset = static_cast<u32>(ids[i]) - first;
      ++all[offset < width ? offset : kMatchWidth];
    }
  }
  const u32* const counted = reinterpret_cast<const u32*>(shfl(reinterpret_cast<u64>(all), 0));
  for (u32 i = 0; i < kMatchesPerLane; ++i) counts[i] = counted[lane() + i * kWarp];
  sync_warp();  // lane 0 keeps its counts until all have read theirs
#else
  counts[0] = lanes::count_matches(ids, n, first, width);
#endif
}

// Calls take(j, p, i) for every i, ascending, with ids[i] == first + j. p counts up from `positions`, the neighbour's among
// its lane's. On a GPU each lane calls for its own, on a CPU lane 0 for all: take() must not depend on who calls.
template <class Take>
DEV void for_each_match(const short* ids, u32 n, u32 first, u32 width, const u32 (&positions)[kMatchesPerLane],
                        Take take) {
#ifdef UCCL_SIMT_HOST
  u32 next[kMatchWidth];
  if constexpr (kWarp == 1) {
    for (u32 j = 0; j < kMatchWidth; ++j) next[j] = positions[j];
  } else {
    const u64* const theirs = gather_lanes(positions[0]);  // valid until lane 0 meets the others again
    if (lane() != 0) return;
    for (u32 j = 0; j < kMatchWidth; ++j) next[j] = static_cast<u32>(theirs[j]);
  }
  u32 found[kMatchWidth], num_found = 0;  // first collected, again without a branch to guess
  for (u32 i = 0; i < n; ++i) {
    found[num_found] = i;
    num_found += static_cast<u32>(ids[i]) - first < width;
    if (num_found != kMatchWidth && i + 1 != n) continue;
    for (u32 f = 0; f < num_found; ++f) {
      const u32 j = static_cast<u32>(ids[found[f]]) - first;
      take(j, next[j]++, found[f]);
    }
    num_found = 0;
  }
#else
  lanes::for_each_match(ids, n, first, width, positions[0], take);
#endif
}

}  // namespace uccl::simt

namespace uccl {
using simt::count_matches;
using simt::for_each_match;
using simt::kMatchesPerLane;
using simt::kMatchWidth;
}  // namespace uccl

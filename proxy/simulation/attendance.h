// Who takes part in what, in a run where ranks leave or are lost and the others leave them out: what each has done,
// what another must therefore find of it, and the leaving itself, at the same points of every rank's script.
#pragma once
#include <vector>

#include "simulation/case.h"

namespace uccl::simulation {

class Driver;
class World;

// What others wait for.
enum class Deed : u32 { kRows = 0, kRowsAgain, kCounts, kCombine };
inline constexpr u32 kNumDeeds = 4;

// What a call must have found of a rank: all of it, nothing, or either, where the rank was lost while it was at it.
enum class Presence : u8 { kHere, kGone, kEither };
using Presences = std::vector<Presence>;  // by rank; empty: everybody is here
inline Presence presence_of(const Presences& p, u32 rank) { return p.empty() ? Presence::kHere : p[rank]; }

// Whether fits(presences) for some subset of the ranks lost meanwhile, of those that `matters` is true of. The last one
// tried is that none of them was.
template <class Matters, class Fits>
bool fits_some_loss(const Presences& seen, Matters matters, Fits fits) {
  Presences exact = seen;  // without kEither
  std::vector<u32> open;
  for (u32 r = 0; r < seen.size(); ++r) {
    if (seen[r] != Presence::kEither) continue;
    exact[r] = Presence::kHere;
    if (matters(r)) open.push_back(r);
  }
  for (u64 lost = 1ull << open.size(); lost-- != 0;) {
    for (std::size_t i = 0; i < open.size(); ++i) exact[open[i]] = lost >> i & 1 ? Presence::kGone : Presence::kHere;
    if (fits(exact)) return true;
  }
  return false;
}

// `me` may have left `peer` out at some time: one of them leaves or dies, or the link between them ends.
bool may_leave_out(const Case& c, u32 me, u32 peer);
bool leaves(const Case& c, u32 rank);

class Attendance {
 public:
  Attendance(const Case& c, Driver& driver, World& world);

  // Before rounds [first, last]: who leaves there by agreement goes, after a barrier; the others leave it out. Throws
  // RankLeft in the one that goes.
  void before(u32 rank, u64 first, u64 last);
  // In the middle of them: who leaves there throws RankLeft ...
  void leave_in_the_middle(u32 rank, u64 first, u64 last) const;
  // ... and the others have noticed.
  void notice_in_the_middle(u32 rank, u64 first, u64 last);

  void did(u32 rank, u64 round, Deed deed) { done_[rank][round * kNumDeeds + static_cast<u32>(deed)] = 1; }
  // What `me` must have found after its call. Throws Violation when it has left out somebody whom it had no reason to.
  Presences seen_by(u32 me, u64 round, Deed deed) const;
  std::vector<u8> left_out_by(u32 me) const;  // by rank, now

 private:
  const Case& case_;
  Driver& driver_;
  World& world_;
  std::vector<std::vector<u8>> done_;   // [rank][round, deed]
  std::vector<u64> agreed_;             // by rank: leavings before this round have been seen to
};

}  // namespace uccl::simulation

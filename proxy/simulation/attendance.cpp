// The rules of attendance.h.
#include "simulation/attendance.h"

#include <algorithm>

#include "simulation/driver.h"

namespace uccl::simulation {
namespace {

// A fault of the network that may separate the two.
bool parted(const Case& c, u32 me, u32 peer) {
  return std::any_of(c.faults.begin(), c.faults.end(), [&](const FaultPlan& p) {
    if (p.kind == FaultPlanKind::kDeath) return p.source == peer || p.source == me;
    if (!p.lethal()) return false;
    return (p.source == me && p.target == peer) || (p.source == peer && p.target == me);
  });
}

}  // namespace

bool leaves(const Case& c, u32 rank) {
  return std::any_of(c.leavings.begin(), c.leavings.end(), [rank](const Leaving& l) { return l.rank == rank; });
}

bool may_leave_out(const Case& c, u32 me, u32 peer) { return leaves(c, me) || leaves(c, peer) || parted(c, me, peer); }

Attendance::Attendance(const Case& c, Driver& driver, World& world)
    : case_(c),
      driver_(driver),
      world_(world),
      done_(c.world.num_ranks(), std::vector<u8>(u64{c.rounds} * kNumDeeds)),
      agreed_(c.world.num_ranks()) {}

void Attendance::before(u32 rank, u64 first, u64 last) {
  for (const Leaving& l : case_.leavings)
    if (l.kind == LeavingKind::kSilent && l.launches == ~0u && l.rank == rank && l.round <= last) throw RankLeft{};
  std::vector<u32> going;
  for (const Leaving& l : case_.leavings)
    if (l.kind == LeavingKind::kAgreed && l.round >= agreed_[rank] && l.round <= last) going.push_back(l.rank);
  agreed_[rank] = last + 1;
  if (going.empty()) return;
  if (first != 0) driver_.barrier(rank);
  if (std::count(going.begin(), going.end(), rank) != 0) throw RankLeft{};
  for (const u32 peer : going) driver_.leave_out(rank, peer);
}

void Attendance::leave_in_the_middle(u32 rank, u64 first, u64 last) const {
  for (const Leaving& l : case_.leavings)
    if (l.kind == LeavingKind::kMiddle && l.rank == rank && l.round >= first && l.round <= last) throw RankLeft{};
}

void Attendance::notice_in_the_middle(u32 rank, u64 first, u64 last) {
  for (const Leaving& l : case_.leavings)
    if (l.kind == LeavingKind::kMiddle && l.round >= first && l.round <= last) driver_.leave_out(rank, l.rank);
}

Presences Attendance::seen_by(u32 me, u64 round, Deed deed) const {
  if (!case_.world.shrink) return {};
  Presences all(case_.world.num_ranks(), Presence::kHere);
  for (u32 r = 0; r < all.size(); ++r) {
    if (r == me || !world_.masked(me, r)) continue;
    if (!may_leave_out(case_, me, r))
      throw Violation("rank " + std::to_string(me) + ", round " + std::to_string(round) + ", after " +
                      name_of(driver_.kernel(me)) + ": has left out rank " + std::to_string(r) + ", which took part");
    const bool done = done_[r][round * kNumDeeds + static_cast<u32>(deed)] != 0;
    all[r] = parted(case_, me, r) ? Presence::kEither : done ? Presence::kHere : Presence::kGone;
  }
  return all;
}

std::vector<u8> Attendance::left_out_by(u32 me) const {
  std::vector<u8> out(case_.world.num_ranks());
  for (u32 r = 0; case_.world.shrink && r < out.size(); ++r) out[r] = world_.masked(me, r);
  return out;
}

}  // namespace uccl::simulation

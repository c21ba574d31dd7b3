// The rules of verdict.h.
#include "simulation/verdict.h"

#include <algorithm>

#include "simulation/attendance.h"

namespace uccl::simulation {
namespace {

std::string name(u32 rank) { return "rank " + std::to_string(rank); }

std::string text_of(const FaultRecord& f) {
  return "kind " + std::to_string(f.kind) + ", phase " + std::to_string(f.phase) + ", peer " +
         std::to_string(static_cast<int>(f.peer)) + ", detail " + std::to_string(f.detail) + ", expected " +
         std::to_string(f.expected) + ", seen " + std::to_string(f.seen);
}

// Phases that a launch may name. A proxy that learns of a loss has none: the call under way is the phase then.
bool plausible_phase(Kernel kernel, WaitPhase phase) {
  const auto any_of = [phase](std::initializer_list<WaitPhase> allowed) {
    return std::find(allowed.begin(), allowed.end(), phase) != allowed.end();
  };
  using P = WaitPhase;
  switch (kernel) {
    case Kernel::kDispatchSend: return any_of({P::kDispatchSend, P::kRing, P::kStagingReuse});
    case Kernel::kDispatchReceive: return any_of({P::kDispatchReceive, P::kBarrier});
    case Kernel::kCombineSend: return any_of({P::kCombineSend, P::kRing, P::kStagingReuse});
    case Kernel::kCombineReceive: return any_of({P::kCombineReceive, P::kStagingReuse});
    case Kernel::kCounts: return any_of({P::kCounts, P::kRing});
    case Kernel::kSettle: return any_of({P::kDispatchSend, P::kCombineSend});
    case Kernel::kDispatch: return any_of({P::kDispatchSend, P::kDispatchReceive, P::kRing});
    case Kernel::kCombine: return any_of({P::kCombineSend, P::kCombineReceive, P::kRing});
    case Kernel::kBarrier: return any_of({P::kBarrier, P::kBarrierSend, P::kRing});
    default: return false;
  }
}

bool culprit(const Case& c, u32 rank, u32 peer) {
  return std::any_of(c.faults.begin(), c.faults.end(), [&](const FaultPlan& p) {
    if (!p.lethal()) return false;
    if (p.kind == FaultPlanKind::kDeath) return p.source == peer;
    return p.source == peer || p.target == peer || p.source == rank || p.target == rank;
  });
}

std::string too_long(const Driver& driver) {
  const Driver::Longest& l = driver.longest_launch();
  return name(l.rank) + ": " + name_of(l.kernel) + " took " + std::to_string(l.ns) +
         " ns, which is beyond its deadline";
}

std::string judge_healthy(const Case& c, World& world, const Driver& driver) {
  for (u32 r = 0; r < world.num_ranks(); ++r) {
    const FaultRecord f = world.fault(r);
    if (!driver.finished(r) || f.kind != 0)
      return name(r) + " failed in " + name_of(driver.kernel(r)) + " though nothing was lost: " + text_of(f);
    if (world.num_nodes == 1) continue;
    if (!world.rings_idle(r)) return name(r) + ": commands are left in its rings";
    for (const WorkerCounters& w : world.worker_counters(r))
      if (w.refused != 0) return name(r) + ": refused " + std::to_string(w.refused) + " commands or arrivals";
    for (u32 p = 0; p < world.num_ranks(); ++p)
      if (world.peer_counters(r)[p].in_flight != 0 || world.peer_counters(r)[p].in_flight_bytes != 0)
        return name(r) + ": writes to rank " + std::to_string(p) + " are still counted as open";
    if (world.network().undelivered(r) != 0) return name(r) + ": writes never arrived";
  }
  if (driver.longest_launch().ns > c.world.timeout_ns) return too_long(driver);
  return "";
}

// A rank names whom it waited for: the lost rank, an end of the lost link, or one that failed because of it.
std::string judge_failed(const Case& c, World& world, const Driver& driver, u32 rank) {
  const FaultRecord f = world.fault(rank);
  const auto kind = static_cast<FaultKind>(f.kind);
  const std::string what = name(rank) + " in " + name_of(driver.kernel(rank)) + ": " + text_of(f);
  if (kind == FaultKind::kNone) return name(rank) + " did not finish and has no fault record";
  if (driver.kernel(rank) == Kernel::kQuiet && kind == FaultKind::kTimeout) return "";  // names the ring, not a peer
  if (kind == FaultKind::kRingFull) return "";  // behind a peer that takes nothing: the ring names the command's peer
  if (kind == FaultKind::kWithdrawn && f.peer < world.num_ranks())
    return world.network().dead(f.peer) || world.fault(f.peer).kind != 0
               ? ""
               : "says that a rank gave up which has no fault: " + what;
  if (kind != FaultKind::kPeerLost && kind != FaultKind::kTimeout && kind != FaultKind::kTransport)
    return "the wrong kind of fault: " + what;
  const bool proxy_said_it = kind != FaultKind::kTimeout && f.phase == static_cast<u32>(WaitPhase::kNone);
  if (!proxy_said_it && driver.kernel(rank) != Kernel::kQuiet &&
      !plausible_phase(driver.kernel(rank), static_cast<WaitPhase>(f.phase)))
    return "a phase that was not under way: " + what;
  if (f.peer == ~0u) {  // the proxy knows whom such a wait is for
    const auto phase = static_cast<WaitPhase>(f.phase);
    const bool of_the_proxy =
        phase == WaitPhase::kBarrier || phase == WaitPhase::kBarrierSend || phase == WaitPhase::kStagingReuse;
    return of_the_proxy ? "" : "nobody is named: " + what;
  }
  if (f.peer >= world.num_ranks()) return "a rank that does not exist: " + what;
  if (kind != FaultKind::kTimeout && !culprit(c, rank, f.peer)) return "the wrong rank was called lost: " + what;
  if (culprit(c, rank, f.peer) || !driver.finished(f.peer)) return "";
  return "blames a rank that had done its part: " + what;
}

// With enable_shrink nobody fails, and nobody is left out without a reason.
std::string judge_shrunk(const Case& c, World& world, const Driver& driver) {
  for (u32 r = 0; r < world.num_ranks(); ++r) {
    if (world.network().dead(r) || leaves(c, r)) continue;
    const FaultRecord f = world.fault(r);
    if (!driver.finished(r) || f.kind != 0)
      return name(r) + " failed in " + name_of(driver.kernel(r)) + " where it should leave others out: " + text_of(f);
    for (u32 p = 0; p < world.num_ranks(); ++p)
      if (world.masked(r, p) && !may_leave_out(c, r, p))
        return name(r) + " has left out " + name(p) + ", which took part";
    if (world.num_nodes > 1 && !world.rings_idle(r)) return name(r) + ": commands are left in its rings";
  }
  if (driver.longest_launch().ns > 4 * c.world.timeout_ns) return too_long(driver);
  return "";
}

}  // namespace

std::string judge(const Case& c, World& world, const Driver& driver) {
  if (c.absences()) return judge_shrunk(c, world, driver);
  if (!c.lethal()) return judge_healthy(c, world, driver);
  for (u32 r = 0; r < world.num_ranks(); ++r) {
    if (world.network().dead(r) || driver.finished(r)) continue;
    const std::string wrong = judge_failed(c, world, driver, r);
    if (!wrong.empty()) return wrong;
  }
  // Some waits hold out twice the timeout, and look at the clock every 16 turns.
  if (driver.longest_launch().ns > 2 * c.world.timeout_ns + c.world.timeout_ns / 2) return too_long(driver);
  return "";
}

}  // namespace uccl::simulation

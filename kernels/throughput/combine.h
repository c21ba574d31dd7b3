// Throughput combine. Blocks of a channel: (0) puts this rank's rows into one ring per source that another rank sums
// for; (1) sums this rank's own tokens: rows of its node, then the partial sums of other nodes' cells; (2), with several
// nodes, sums its cell's rows of the remote sources that this rank stands for and sends one partial row per token.
//
// Rounding (facts B.1). One node: fp32 sum of bias and rows in ascending rank, one round. Several: the rows of each
// cell (topology.h) in ascending rank, rounded to bf16, this rank's own node being one; then bias and cells in ascending
// order, rounded. With a cell a rank, other nodes' rows are thus added one by one as they are.
#pragma once
#include "kernels/throughput/node_sums.h"

namespace uccl {

// The whole block, before it reads what other ranks have written. One block of the launch compares.
DEV bool identify_combine(const CombineArgs& a, const WaitContext& wait, u32 channel, bool own) {
  const bool ok = channel != 0 || !own || identify(a.rank, a.call, CallKind::kCombine, wait);
  const IdentityState& seen = *a.call.identities;  // sums for other nodes go out before those have come
  const bool all = simt::sync_block_and(simt::warp() != 0 ||
                                        await_identified(a.rank, a.call, own ? &seen.compared : &seen.node, wait));
  return ok && all;
}

// The whole warp: what it does in a block that gives rows, or that sums for other nodes.
DEV void combine_in_team(const CombineArgs& a, const WaitContext& wait, CombineShared& s, u32 channel, bool sums) {
  const GivingPlan plan = plan_giving(a, channel);
  const u32 ranks = a.rank.topology.num_ranks, warps = simt::num_warps(), summing = sums ? warps - plan.helpers : 0;
  const bool share = a.call.share_rows != 0;
  if (simt::warp() >= summing) {  // a warp of a CPU gives by itself
    Team team = share ? team_of(s.teams, summing, warps - summing) : team_of(s.teams, simt::warp(), 1);
    const Receivers to = !share ? Receivers{simt::warp(), ranks}
                         : sums ? Receivers{plan.sources, ranks}
                                : Receivers{0, plan.sources};
    contribute_all(a, wait, team, to, channel);
  } else if (share || simt::warp() == 0) {
    Team team = team_of(s.teams, 0, share ? summing : 1);
    combine_for_others(a, wait, s, team, channel);
  }
}

KERNEL KERNEL_BOUNDS(kMaxBlockLanes) throughput_combine(CombineArgs a) {
  CombineShared& shared = simt::smem<CombineShared>();
  const WaitContext wait = wait_context(a.rank);
  const u32 roles = a.rank.topology.num_nodes > 1 ? 3 : 2, channel = simt::bid() / roles, role = simt::bid() % roles;
  open_teams(shared.teams);
  if (!may_start(wait)) return;
  if (role != 0 && !identify_combine(a, wait, channel, role == 1)) return;
  if (role == 1)
    combine_own(a, wait, shared, channel);
  else
    combine_in_team(a, wait, shared, channel, role == 2);
  end_identified(a.call);
}

}  // namespace uccl

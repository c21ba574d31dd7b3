// Warps of a block that work on streams together: a leader, which waits for other ranks and tells them how far it has
// come, and helpers, which hear from it. In turns: the leader says of which streams there is a chunk, all do their share
// of its rows, and only when all have done does the leader pass it on. A team of one warp says nothing.
#pragma once
#include "kernels/throughput/common.h"

namespace uccl {

// What a reading team does in a turn, a bit a lane that stands for a source: whose streams have a chunk here, and who is
// masked.
struct TeamRound {
  simt::mask_t here, gone;
};

// In shared memory, zeroed before the first turn: words of each warp of the block.
struct TeamWords {
  u32 told[kMaxBlockWarps];  // of a leader: 4 x turn + what it said
  u32 done[kMaxBlockWarps];  // turns that a helper has finished
  TeamRound round[kMaxBlockWarps];  // of a leader that has said kGo
};
DEV void open_teams(TeamWords& words) {
  for (u32 i = simt::tid(); i < kMaxBlockWarps; i += simt::ntid()) words.told[i] = words.done[i] = 0;
}

enum class TeamWord : u32 { kGo = 0, kNone, kFailed };
inline constexpr u32 kTeamGone = ~0u;

struct Team {
  TeamWords* words;
  u32 leader, size;  // its warps follow each other
  u32 turn;
  DEV_MEMBER u32 member() const { return simt::warp() - leader; }  // this warp's place, 0 = the leader
};
DEV Team team_of(TeamWords& words, u32 first, u32 size) { return Team{&words, first, size, 0}; }

// The whole warp: what the leader says of the next turn; `mine` is what this warp says if it leads. Unless that is kFailed,
// all then finish the turn: a leader that said more before all have heard would be heard wrong.
DEV TeamWord hear_leader(Team& t, TeamWord mine) {
  ++t.turn;
  if (t.size == 1) {
    simt::sync_warp();  // what lane 0 wrote is visible to all
    return mine;
  }
  u32 word = t.turn << 2 | static_cast<u32>(mine);
  if (simt::lane() == 0) {
    u32* const told = &t.words->told[t.leader];
    if (t.member() == 0)
      simt::st_release_cta(told, word);  // pairs with the helpers' acquire
    else
      wait_for_block(BlockWord{told}, [&](u64 seen) { return (word = static_cast<u32>(seen)) >> 2 >= t.turn; });
  }
  word = simt::shfl(word, 0);
  simt::sync_warp();  // what lane 0 acquired, or wrote if it leads, is visible to all
  return static_cast<TeamWord>(word & 3);
}

// The same of a round, which the leader knows. False: the leader has failed.
DEV bool hear_round(Team& t, bool ok, TeamRound* round) {
  TeamRound& said = t.words->round[t.leader];
  if (t.size != 1 && t.member() == 0 && simt::lane() == 0) said = *round;  // all have finished the turn before
  if (hear_leader(t, ok ? TeamWord::kGo : TeamWord::kFailed) != TeamWord::kGo) return false;
  if (t.size != 1) *round = said;
  return true;
}

// The whole warp: it has done its share of the turn. In the leader all have, and what they wrote is visible; false: one of
// them has failed.
DEV bool finish_turn(const Team& t) {
  simt::sync_warp();
  if (t.size == 1) return true;
  if (t.member() != 0) {
    if (simt::lane() == 0)
      simt::st_release_cta(&t.words->done[simt::warp()], t.turn);  // pairs with the leader's acquire
    return true;
  }
  bool ok = true;
  for (u32 i = 1 + simt::lane(); i < t.size; i += simt::kWarp)
    wait_for_block(BlockWord{&t.words->done[t.leader + i]},
                   [&](u64 seen) { return (ok = ok && seen != kTeamGone, seen >= t.turn); });
  const bool all = simt::ballot(!ok) == 0;
  simt::sync_warp();
  return all;
}

// The whole warp: it has failed, and takes no further turn, or none at all. The others of its team would wait for it
// forever: a wait in a team has no deadline.
DEV bool leave_team(const Team& t) {
  if (t.size == 1 || simt::lane() != 0) return false;
  if (t.member() == 0)
    simt::st_release_cta(&t.words->told[t.leader], ~3u | static_cast<u32>(TeamWord::kFailed));
  else
    simt::st_release_cta(&t.words->done[simt::warp()], kTeamGone);
  return false;
}

// How `warps` warps from `first` on are shared out among `num` teams, the first ones a warp larger where it does not go
// even.
struct TeamPlan {
  u32 first, warps, num;
  DEV_MEMBER u32 begin(u32 team) const {
    if (num == 0) return first;
    const u32 rest = warps % num;
    return first + team * (warps / num) + (team < rest ? team : rest);
  }
  DEV_MEMBER u32 size(u32 team) const { return begin(team + 1) - begin(team); }
  // Of a warp at or behind `first`; `num` or more: it is in none.
  DEV_MEMBER u32 team_of_warp(u32 warp) const {
    if (warp >= first + warps) return num;
    u32 team = 0;
    while (team < num && warp >= begin(team + 1)) ++team;
    return team;
  }
};
// `share`: all warps are in some team; else a team has one.
DEV TeamPlan share_out(u32 first, u32 warps, u32 most, bool share) {
  const u32 num = most < warps ? most : warps;
  return TeamPlan{first, share ? warps : num, num};
}

// Sources that the reading warps of a block share: those from `first` on, below `end`; a team takes each `teams.num`-th.
struct ReadPlan {
  TeamPlan teams;
  u32 first, end;
};

// How the warps of a channel's two blocks are shared out: those that send are the first of the even block, all others
// read. On a GPU the readers of a block are one team, which goes round its sources, and senders and sources are shared
// out by the rows that there are, so that all warps have as much to do. On a CPU one block sends, the other reads.
struct ChannelPlan {
  u32 senders, audiences;
  u32 even, sources;  // sources that the even block reads, the first ones, and all

  DEV_MEMBER TeamPlan send(bool share) const { return share_out(0, senders, audiences, share); }
  DEV_MEMBER ReadPlan read(bool in_even, bool share) const {
    const u32 warps = simt::num_warps(), teams = share ? 1 : sources;
    if (in_even) return ReadPlan{share_out(senders, warps - senders, even == 0 ? 0 : teams, share), 0, even};
    return ReadPlan{share_out(0, warps, teams, share), even, sources};
  }
};

// The whole warp: how many sources, from the first on, have nearest to `wanted` rows; *rows: of those.
template <class Count>
DEV u32 sources_with(u32 sources, u32 wanted, u32* rows, Count count) {
  u32 best = 0, before = 0;
  *rows = 0;
  for (u32 base = 0; base < sources; base += simt::kWarp) {
    const u32 source = base + simt::lane();
    const u32 mine = source < sources ? count(source) : 0;
    for (u32 i = 0; i < simt::kWarp && base + i < sources; ++i) {
      before += simt::shfl(mine, i);
      const u32 off = before < wanted ? wanted - before : before - wanted;
      if (off >= (*rows < wanted ? wanted - *rows : *rows - wanted)) continue;
      best = base + i + 1;
      *rows = before;
    }
  }
  return best;
}

DEV ChannelPlan plan_channel(const RankContext& c, const ThroughputCall& call, u32 channel) {
  const TopologyView& t = c.topology;
  const u32 warps = simt::num_warps(), channels = call.geometry.num_channels;
  u32 audiences = 0;
  for (u32 n = 0; n < t.num_cells; ++n) audiences += t.is_audience(n);
  ChannelPlan plan{warps, audiences, 0, t.num_ranks};
  if (call.share_rows == 0 || warps == 1) return plan;
  u32 out = 0, in = 0;
  for (u32 n = simt::lane(); n < t.num_cells; n += simt::kWarp) out += call.node_rows[n * channels + channel];
  const auto taken = [&](u32 source) { return call.recv_tokens[source * channels + channel]; };
  for (u32 r = simt::lane(); r < t.num_ranks; r += simt::kWarp) in += taken(r);
  const u32 sent = simt::warp_sum(out), half = (sent + simt::warp_sum(in)) / 2;
  u32 read = 0;
  if (sent < half) plan.even = sources_with(t.num_ranks, half - sent, &read, taken);
  if (plan.even == 0) return plan;
  const u32 rows = sent + read;
  const u32 senders = static_cast<u32>((static_cast<u64>(warps) * sent + rows / 2) / rows);
  plan.senders = senders < 1 ? 1 : senders < warps ? senders : warps - 1;
  return plan;
}

}  // namespace uccl

// Warps of a block that work on one stream together: a leader, which waits for other ranks and tells them how far it has
// come, and helpers, which hear from it. In turns: the leader says that there is a chunk (or that there is none), all
// do their share of its rows, and only when all have done does the leader pass it on. A team of one warp says nothing.
#pragma once
#include "kernels/throughput/common.h"

namespace uccl {

// In shared memory, zeroed before the first turn: a word of each warp of the block.
struct TeamWords {
  u32 told[kMaxBlockWarps];  // of a leader: 4 x turn + what it said
  u32 done[kMaxBlockWarps];  // turns that a helper has finished
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

// The whole warp: what the leader says of the next turn; `mine` is what this warp says if it leads.
DEV TeamWord hear_leader(Team& t, TeamWord mine) {
  ++t.turn;
  if (t.size == 1) return mine;
  u32 word = t.turn << 2 | static_cast<u32>(mine);
  if (simt::lane() == 0) {
    u32* const told = &t.words->told[t.leader];
    if (t.member() == 0)
      simt::st_release_cta(told, word);  // pairs with the helpers' acquire
    else
      wait_for_block(BlockWord{told}, [&](u64 seen) { return (word = static_cast<u32>(seen)) >> 2 >= t.turn; });
  }
  word = simt::shfl(word, 0);
  simt::sync_warp();  // what lane 0 acquired is visible to all
  return static_cast<TeamWord>(word & 3);
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

// The whole warp: it has failed, and takes no further turn.
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

// How the warps of a channel's two blocks are shared out: those that send are the first of the even block, all others
// read. By the rows that there are of both on a GPU, so that all have as much to do; a block each on a CPU.
struct ChannelPlan {
  u32 senders, audiences;
  u32 even, readers;  // reading teams of the even block, and of both

  DEV_MEMBER TeamPlan send(bool share) const { return share_out(0, senders, audiences, share); }
  DEV_MEMBER TeamPlan read(bool in_even, bool share) const {
    const u32 warps = simt::num_warps();
    return in_even ? share_out(senders, warps - senders, even, share) : share_out(0, warps, readers - even, share);
  }
};
DEV ChannelPlan plan_channel(const RankContext& c, const ThroughputCall& call, u32 channel) {
  const TopologyView& t = c.topology;
  const u32 warps = simt::num_warps(), channels = call.geometry.num_channels;
  u32 audiences = 0;
  for (u32 n = 0; n < t.num_cells; ++n) audiences += t.is_audience(n);
  if (call.share_rows == 0) return ChannelPlan{warps, audiences, 0, t.num_ranks < warps ? t.num_ranks : warps};
  u32 out = 0, in = 0;
  for (u32 n = simt::lane(); n < t.num_cells; n += simt::kWarp) out += call.node_rows[n * channels + channel];
  for (u32 r = simt::lane(); r < t.num_ranks; r += simt::kWarp) in += call.recv_tokens[r * channels + channel];
  const u64 sent = simt::warp_sum(out), all = sent + simt::warp_sum(in);
  u32 senders = all == 0 ? 1 : static_cast<u32>((2 * warps * sent + all / 2) / all);
  senders = senders < 1 ? 1 : senders > warps ? warps : senders;
  const u32 others = 2 * warps - senders, teams = t.num_ranks < others ? t.num_ranks : others;
  return ChannelPlan{senders, audiences, (teams * (warps - senders) + others / 2) / others, teams};
}

}  // namespace uccl

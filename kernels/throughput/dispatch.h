// Throughput dispatch. Two blocks a channel: the even one writes this rank's streams to every audience (topology.h),
// the odd one reads every source's stream to this rank's crowd and packs the rows that name this rank, by source rank
// and then token. The rank that holds a remote source's ring also returns the credits for it.
#pragma once
#include "kernels/throughput/identify.h"
#include "kernels/throughput/receive.h"

namespace uccl {

struct DispatchShared {
  TeamWords teams;
  u32 total;  // *recv_total, which one thread of a block reads: it may lie in the host's memory
};

// One warp: a header's token into its place in a chunk.
DEV void write_row(const DispatchArgs& a, const RowHeader& header, u8* row) {
  const RowShape& shape = a.call.shape;
  const u32 lane = simt::lane(), token = header.token;
  if (lane == 0) *reinterpret_cast<RowHeader*>(row) = header;
  copy_row_shared(row + sizeof(RowHeader), a.x + static_cast<u64>(token) * shape.payload_bytes, shape.payload_bytes);
  u32* scales = reinterpret_cast<u32*>(row + shape.scales());
  for (u32 i = lane; i < shape.scale_bytes / 4; i += simt::kWarp)
    scales[i] = a.scales[token * a.scale_token_stride + i * a.scale_stride];
  for (u32 k = lane; k < shape.topk; k += simt::kWarp) {
    const u64 at = static_cast<u64>(token) * shape.topk + k;
    if (shape.has_weights) reinterpret_cast<float*>(row + shape.weights())[k] = a.topk_weights[at];
    if (!shape.has_ids) continue;
    const i64 expert = a.topk_idx[at];  // anything may stand here; what names no expert must not wrap into one
    reinterpret_cast<short*>(row + shape.ids())[k] =
        static_cast<short>(expert >= 0 && expert < static_cast<i64>(kMaxExperts) ? expert : -1);
  }
}

// The writing end of this rank's stream to one audience.
struct OutgoingStream {
  u32 cell, peer, channel;
  bool local;
  u8* unit;          // where rows are written
  u64 unit_offset;
  u64* sent_word;    // local: the tail that readers acquire; remote: this rank's own note
};
DEV OutgoingStream outgoing_stream(const DispatchArgs& a, u32 cell, u32 channel) {
  const TopologyView& t = a.rank.topology;
  const ThroughputLayout& layout = a.call.layout;
  OutgoingStream s{};
  s.cell = cell;
  s.channel = channel;
  s.local = cell == t.cell;
  s.peer = s.local ? t.rank : t.landing_rank(t.rank, cell);
  s.unit_offset = s.local ? layout.own_stream() : layout.dispatch_staging(cell);
  s.unit = own_data(a.rank) + s.unit_offset;
  s.sent_word = word(own_data(a.rank), s.local ? a.rank.signals.stream_tail(Direction::kDispatch, t.rank, channel)
                                               : a.rank.signals.sent(Direction::kDispatch, s.peer, channel));
  return s;
}

// One lane: chunk `number` may be written. False also when there is nobody left to write it for.
DEV bool outgoing_room(const DispatchArgs& a, const WaitContext& wait, const OutgoingStream& s, u64 number) {
  WaitSite site{WaitPhase::kDispatchSend, s.peer, s.channel, number};
  for (;;) {
    bool absent;
    const auto head = [&] { return dispatch_head(a.rank, s.cell, s.channel, &site.peer); };
    if (!wait_for_slot(a.rank, wait, site, a.call.geometry, head, &absent)) return false;
    if (!absent || !s.local) return !absent;
    site.peer = s.peer;  // one reader of the node fewer: the others may let it
  }
}
// One lane: chunk `number` with `rows` rows is complete.
DEV bool publish_chunk(const DispatchArgs& a, const WaitContext& wait, const OutgoingStream& s, u64 number, u32 rows) {
  const u64 bytes = static_cast<u64>(rows) * a.call.geometry.row_bytes;
  add_stat(a.rank, s.peer, PeerStat::kRowsOut, rows);
  add_stat(a.rank, s.peer, PeerStat::kBytesOut, bytes);
  if (s.local) {
    simt::st_release_sys(s.sent_word, number + 1);  // pairs with the readers' acquire of the tail
    return true;
  }
  simt::st_relaxed_sys(s.sent_word, number + 1);
  const TopologyView& t = a.rank.topology;
  const u64 landing = a.call.layout.dispatch_hosted(t.landing_slot(t.rank, s.cell));
  const OutgoingChunk chunk{Direction::kDispatch, s.peer, s.channel, number, s.unit_offset, landing, bytes};
  return send_chunk(a.rank, wait, chunk, a.call.geometry);
}

DEV u32 rows_to(const DispatchArgs& a, u32 cell, u32 channel) {
  return a.call.node_rows[cell * a.call.geometry.num_channels + channel];
}
// One lane: is_token_in_rank, which the caller's handle holds, does not name as many rows as were announced.
DEV void bad_handle(const DispatchArgs& a, const WaitContext& wait, u32 channel, u32 cell, u32 seen) {
  bad_arrival(wait, WaitSite{WaitPhase::kDispatchSend, a.rank.topology.rank, channel, rows_to(a, cell, channel)}, seen);
}

// A team writes the whole stream of one channel to one audience: each warp counts all rows and writes those whose turn it
// is. False: the call has failed.
DEV bool send_stream(const DispatchArgs& a, const WaitContext& wait, Team& team, u32 channel, u32 cell) {
  const StreamGeometry& g = a.call.geometry;
  const bool leads = team.member() == 0;
  u32 left = rows_to(a, cell, channel);
  if (left == 0) return true;
  const OutgoingStream s = outgoing_stream(a, cell, channel);
  u64 number = simt::ld_relaxed_sys(s.sent_word);
  const u32 end = channel_begin(a.call.num_tokens, g.num_channels, channel + 1);
  u32 in_chunk = 0;
  for (u32 base = channel_begin(a.call.num_tokens, g.num_channels, channel); base < end; base += simt::kWarp) {
    const u32 token = base + simt::lane();
    const u64 mine = token < end ? destinations(a.rank, a.call.is_token_in_rank, token, cell) : 0;
    for (simt::mask_t going = simt::ballot(mine != 0); going != 0; going &= going - 1) {
      const u32 from = simt::first_lane(going);
      if (left-- == 0) {
        if (simt::lane() == 0) bad_handle(a, wait, channel, cell, rows_to(a, cell, channel) + 1);
        return leave_team(team);
      }
      if (in_chunk == 0) {
        const bool room = !leads || warp_agree(simt::lane() != 0 || outgoing_room(a, wait, s, number));
        if (hear_leader(team, room ? TeamWord::kGo : TeamWord::kNone) != TeamWord::kGo) return finish_turn(team);
      }
      const u64 takers = simt::shfl(mine, from);
      if (left % team.size == team.member())
        write_row(a, RowHeader::make(takers, base + from, RowHeader::position(number, left)),
                  s.unit + g.chunk(channel, number) + static_cast<u64>(in_chunk) * g.row_bytes);
      if (++in_chunk < g.rows_per_chunk && left != 0) continue;
      if (!finish_turn(team)) return leave_team(team);  // all lanes' stores are before the leader's release
      if (leads && !warp_agree(simt::lane() != 0 || publish_chunk(a, wait, s, number, in_chunk)))
        return leave_team(team);
      ++number;
      in_chunk = 0;
    }
  }
  if (left == 0) return true;
  if (simt::lane() == 0) bad_handle(a, wait, channel, cell, rows_to(a, cell, channel) - left);
  return leave_team(team);
}

// Rows beyond the real count, shared out over the reading blocks.
DEV void pad_tail(const DispatchArgs& a, u32 channel, u32 total) {
  const u64 first = static_cast<u64>(total) * a.call.shape.topk;
  const u64 end = static_cast<u64>(a.capacity) * a.call.shape.topk;
  for (u64 i = first + channel * simt::ntid() + simt::tid(); i < end; i += a.call.geometry.num_channels * simt::ntid())
    a.recv_topk_idx[i] = -1;
}

// A warp of a sending team, which takes each plan.num-th audience.
DEV void send_streams(const DispatchArgs& a, const WaitContext& wait, DispatchShared& s, const TeamPlan& plan,
                      u32 channel) {
  const u32 index = plan.team_of_warp(simt::warp());
  if (index >= plan.num) return;
  Team team = team_of(s.teams, plan.begin(index), plan.size(index));
  u32 audience = 0;
  for (u32 n = 0; n < a.rank.topology.num_cells; ++n)
    if (a.rank.topology.is_audience(n) && audience++ % plan.num == index)
      if (!send_stream(a, wait, team, channel, n)) return;
}

// One warp, before it reads: this call's identities have been compared. A warp that writes goes on meanwhile.
DEV bool identify_again(const DispatchArgs& a, const WaitContext& wait, u32 channel) {
  const bool compares = channel == 0 && simt::bid() % 2 == 1;
  const bool ok = !compares || identify(a.rank, a.call, CallKind::kCachedDispatch, wait);
  return await_identified(a.rank, a.call, &a.call.identities->compared, wait) && ok;
}

KERNEL KERNEL_BOUNDS(kMaxBlockLanes) throughput_dispatch(DispatchArgs a) {
  DispatchShared& shared = simt::smem<DispatchShared>();
  WaitContext wait = wait_context(a.rank);
  const u32 channel = simt::bid() / 2;
  open_teams(shared.teams);
  if (simt::tid() == 0) shared.total = *a.recv_total;
  if (!may_start(wait)) return;
  if (shared.total > a.capacity) {
    if (simt::tid() == 0 && simt::bid() == 0)
      record_fault(
          wait, WaitSite{WaitPhase::kDispatchReceive, a.rank.topology.rank, MismatchField::kReceivedRows, a.capacity},
          FaultKind::kMismatch, shared.total);
    return;
  }
  const ChannelPlan plan = plan_channel(a.rank, a.call, channel);
  const bool even = simt::bid() % 2 == 0, share = a.call.share_rows != 0, sends = even && simt::warp() < plan.senders;
  const bool same = sends || !a.call.identify || identify_again(a, wait, channel);
  if (sends) {
    if (a.call.identify)
      wait.deadline_ns = later_deadline(a.rank, wait);  // its readers identify first, and name who is missing
    send_streams(a, wait, shared, plan.send(share), channel);
  } else {
    const ReadPlan readers = plan.read(even, share);
    const u32 here = readers.teams.team_of_warp(simt::warp());
    Team team = team_of(shared.teams, readers.teams.begin(here), readers.teams.size(here));
    if (here < readers.teams.num && same) receive_streams(a, wait, team, readers, here, channel);
    if (here < readers.teams.num && !same) leave_team(team);  // others of it may have seen what this warp has not
    if (same && !even && a.pad_tail) pad_tail(a, channel, shared.total);
  }
  if (a.call.identify) end_identified(a.call);
}

}  // namespace uccl

// Throughput dispatch. Two blocks a channel: the even one writes this rank's streams to every audience (topology.h),
// the odd one reads every source's stream to this rank's crowd and packs the rows that name this rank, by source rank
// and then token. The rank that holds a remote source's ring also returns the credits for it.
#pragma once
#include "kernels/throughput/identify.h"
#include "kernels/throughput/team.h"

namespace uccl {

struct DispatchArgs {
  RankContext rank;
  ThroughputCall call;
  const u8* x;               // [num_tokens, payload]
  const u32* scales;         // 4-byte words, strided; null without scales
  i64 scale_token_stride, scale_stride;
  const i64* topk_idx;       // [num_tokens, topk] or null
  const float* topk_weights; // [num_tokens, topk] or null
  u8* recv_x;                // [capacity, payload]
  u32* recv_scales;          // [capacity, words]
  i64* recv_topk_idx;        // [capacity, topk] local expert or -1
  float* recv_topk_weights;  // [capacity, topk]; 0 where the index is -1
  i32* recv_src_idx;         // [capacity] token index at its source
  const u32* recv_total;     // [1]
  u32 capacity;              // rows of the outputs
  u32 pad_tail;              // rows beyond recv_total get index -1
};
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

// One warp: takes a row that names this rank.
DEV void take_row(const DispatchArgs& a, const u8* row, u32 token, u32 at) {
  const RowShape& shape = a.call.shape;
  const u32 lane = simt::lane();
  copy_row_out(a.recv_x + static_cast<u64>(at) * shape.payload_bytes, row + sizeof(RowHeader), shape.payload_bytes,
               static_cast<u64>(a.capacity) * shape.payload_bytes);
  const u32* scales = reinterpret_cast<const u32*>(row + shape.scales());
  for (u32 i = lane; i < shape.scale_bytes / 4; i += simt::kWarp)
    a.recv_scales[static_cast<u64>(at) * (shape.scale_bytes / 4) + i] = scales[i];
  if (lane == 0) a.recv_src_idx[at] = static_cast<i32>(token);
  if (!shape.has_ids) return;
  const i32 first = static_cast<i32>(a.rank.topology.rank * a.call.num_local_experts);
  for (u32 k = lane; k < shape.topk; k += simt::kWarp) {
    const i32 e = reinterpret_cast<const short*>(row + shape.ids())[k] - first;
    const bool here = e >= 0 && e < static_cast<i32>(a.call.num_local_experts);
    a.recv_topk_idx[static_cast<u64>(at) * shape.topk + k] = here ? e : -1;
    if (shape.has_weights)
      a.recv_topk_weights[static_cast<u64>(at) * shape.topk + k] =
          here ? reinterpret_cast<const float*>(row + shape.weights())[k] : 0.0f;
  }
}

// The reading end of a source's stream, as the lane that stands for the source knows it.
struct Reading {
  StreamAddress stream;
  u64 head;  // chunks that this rank has read
  u64 told;  // at the landing rank of a remote source's ring: chunks that the source knows to be read here
  u32 source, channel;
  u32 left;  // rows that are still to come
  u32 at, owed, taken;  // rows that name this rank: where they go, and how many were announced and found
  bool landing, absent;
};
DEV Reading reading(const DispatchArgs& a, u32 channel, u32 source, u32 end) {
  const TopologyView& t = a.rank.topology;
  Reading k{};
  k.channel = channel;
  if (source >= end || t.is_absent(source)) return k;
  const u32 table = source * a.call.geometry.num_channels + channel;
  k.source = source;
  k.stream = dispatch_stream(a.rank, a.call.layout, source, channel);
  k.head = k.told = simt::ld_relaxed_sys(k.stream.heads + t.place_in_crowd(source));
  k.left = a.call.stream_rows[table];
  k.at = a.call.recv_begin[table];
  k.owed = a.call.recv_tokens[table];
  k.landing = !t.is_local(source) && t.landing_rank(source, t.cell) == t.rank;
  return k;
}

// One lane: tells the source when the slowest reader has gone on by `news` chunks.
DEV bool return_credit(const DispatchArgs& a, const WaitContext& wait, Reading& k, u64 news) {
  u32 who;
  const u64 head = slowest_head(a.rank, k.source, k.stream, &who);
  if (head < k.told + news) return true;
  k.told = head;
  return send_credit(a.rank, wait, Direction::kDispatch, k.source, k.channel, head);
}
// One warp: the same for each lane that `returns`, one after the other: lanes do not push side by side (ring_push.h).
DEV bool return_credits(const DispatchArgs& a, const WaitContext& wait, Reading& k, bool returns, u64 news) {
  bool ok = true;
  for (simt::mask_t left = simt::ballot(returns); left != 0; left &= left - 1)
    if (simt::lane() == simt::first_lane(left)) ok = return_credit(a, wait, k, news);
  return simt::ballot(!ok) == 0;
}

// One lane: stays until every reader here has finished this call's part of the stream.
DEV bool finish_credits(const DispatchArgs& a, const WaitContext& wait, Reading& k) {
  while (k.told < k.head) {
    WaitSite site{WaitPhase::kDispatchReceive, a.rank.topology.rank, k.channel, k.head};
    const auto slowest = [&] { return slowest_head(a.rank, k.source, k.stream, &site.peer); };
    if (!wait_until(wait, site, slowest, [&](u64 head) { return head > k.told; })) return false;
    if (!return_credit(a, wait, k, 1)) return false;
  }
  return true;
}

// One warp: what a masked source still owed comes out as rows of zeros that name no expert and no token.
DEV void take_nothing(const DispatchArgs& a, u32 from, u32 end) {
  const RowShape& shape = a.call.shape;
  const u32 lane = simt::lane();
  for (u32 at = from; at < end; ++at) {
    u8* const row = a.recv_x + static_cast<u64>(at) * shape.payload_bytes;
    for (u32 i = lane; i < shape.payload_bytes; i += simt::kWarp) row[i] = 0;
    for (u32 i = lane; i < shape.scale_bytes / 4; i += simt::kWarp)
      a.recv_scales[static_cast<u64>(at) * (shape.scale_bytes / 4) + i] = 0;
    if (lane == 0) a.recv_src_idx[at] = -1;
    for (u32 k = lane; shape.has_ids && k < shape.topk; k += simt::kWarp) {
      a.recv_topk_idx[static_cast<u64>(at) * shape.topk + k] = -1;
      if (shape.has_weights) a.recv_topk_weights[static_cast<u64>(at) * shape.topk + k] = 0.0f;
    }
  }
}

// Rows of a stream's next chunk, when `left` are still to come.
DEV u32 rows_in_chunk(const StreamGeometry& g, u32 left) { return left < g.rows_per_chunk ? left : g.rows_per_chunk; }

// One warp: waits until the source of some lane has a chunk here, or is masked. Whoever it waits for longest is the first
// that is not finished: in ascending order on every rank, so the smallest unfinished source of all has all its readers.
// False: the call has failed.
DEV bool await_chunks(const DispatchArgs& a, const WaitContext& wait, Reading& k, TeamRound* round) {
  const bool on = k.left != 0;
  const bool first = simt::lane() == simt::first_lane(simt::ballot(on));
  const WaitSite site{WaitPhase::kDispatchReceive, k.source, k.channel, k.head + 1};
  WaitContext bounded = wait;
  if (a.rank.shrink) bounded.fault = nullptr;  // expiry is not a fault then
  const u64* const flag = k.stream.tail;
  SpinClock clock;
  u64 tail = on ? simt::ld_acquire_sys(flag) : 0;  // pairs with publish_chunk, or with the proxy's release
  u64 begin = 0;
  bool ok = true, gone = on && a.rank.shrink && masked(a.rank, k.source);
  while (simt::ballot(gone || (on && tail > k.head)) == 0) {
    if (begin == 0) begin = simt::now_ns();
    // While this rank waits, slower readers go on; a source may be waiting for exactly their progress.
    return_credits(a, wait, k, k.landing && k.told < k.head, 1);
    simt::pause();
    if (first && !clock.keep_waiting(bounded, site, FaultKind::kTimeout, tail))
      ok = mask_late(a.rank, wait, site, [&] { return tail; });
    if (simt::ballot(!ok) != 0) return false;
    gone = on && masked(a.rank, k.source);
    if (on) tail = simt::ld_relaxed_sys(flag);
  }
  const bool here = on && !gone && tail > k.head;
  if (begin != 0) {
    simt::end_spin();
    if (here) tail = simt::ld_acquire_sys(flag);
    if (first && k.channel == 0) add_stat(a.rank, k.source, PeerStat::kWaitNs, simt::now_ns() - begin);
  }
  if (here) ok = tail_fits(wait, site, a.call.geometry, k.head, tail);
  *round = TeamRound{simt::ballot(here), simt::ballot(gone)};
  const bool all = simt::ballot(!ok) == 0;
  simt::sync_warp();  // what each lane acquired is visible to all
  return all;
}

// One warp takes its share of the next chunk of the stream of lane `of`: of the rows that name this rank, each
// team.size-th, counted over all chunks (`*dealt`). Headers are read a lane each. False: a row is not the one that must
// stand there.
DEV bool take_rows(const DispatchArgs& a, const WaitContext& wait, const Team& team, Reading& k, u32 of, u32* dealt) {
  const StreamGeometry& g = a.call.geometry;
  const u32 source = simt::shfl(k.source, of), left = simt::shfl(k.left, of), n = rows_in_chunk(g, left);
  const u32 at = simt::shfl(k.at, of), owed = simt::shfl(k.owed, of), place = a.rank.topology.place_in_crowd(source);
  const u64 number = simt::shfl(k.head, of);
  const u8* const rows = dispatch_stream(a.rank, a.call.layout, source, k.channel).unit + g.chunk(k.channel, number);
  u32 taken = simt::shfl(k.taken, of);
  for (u32 base = 0; base < n && taken <= owed; base += simt::kWarp) {
    const u32 i = base + simt::lane();
    RowHeader header{0, 0, 0};
    bool good = true;
    if (i < n) {
      header = *reinterpret_cast<const RowHeader*>(rows + static_cast<u64>(i) * g.row_bytes);
      const WaitSite site{WaitPhase::kDispatchReceive, source, k.channel, left - 1 - i};
      good = header.is_at(RowHeader::position(number, site.expected)) || bad_arrival(wait, site, header.seal);
    }
    if (simt::ballot(!good) != 0) return false;
    for (simt::mask_t named = simt::ballot(header.destinations >> place & 1); named != 0; named &= named - 1) {
      const u32 from = simt::first_lane(named), token = simt::shfl(header.token, from);
      if (taken++ == owed) break;
      if ((*dealt)++ % team.size == team.member())
        take_row(a, rows + static_cast<u64>(base + from) * g.row_bytes, token, at + taken - 1);
    }
  }
  if (simt::lane() == of) k.taken = taken;
  return true;
}

// One lane of the leader: nothing more comes of its source.
DEV void end_stream(const DispatchArgs& a, const WaitContext& wait, const Reading& k) {
  if (k.taken != k.owed) {  // its rows name this rank otherwise than it has announced
    bad_arrival(wait, WaitSite{WaitPhase::kDispatchReceive, k.source, k.channel, k.owed}, k.taken);
    return;
  }
  add_stat(a.rank, k.source, PeerStat::kRowsIn, k.taken);
  add_stat(a.rank, k.source, PeerStat::kBytesIn, static_cast<u64>(k.taken) * a.call.geometry.row_bytes);
}

// One lane, when its team has taken the chunk that was here: its place may be written again.
DEV void pass_chunk(const DispatchArgs& a, const WaitContext& wait, Reading& k, bool leads) {
  const u32 n = rows_in_chunk(a.call.geometry, k.left);
  ++k.head;
  k.left = k.taken > k.owed ? 0 : k.left - n;
  if (!leads) return;
  // Pairs with slowest_head.
  simt::st_release_sys(k.stream.heads + a.rank.topology.place_in_crowd(k.source), k.head);
  if (k.left == 0) end_stream(a, wait, k);
}

// A team reads the streams of the lanes' sources to their end, in rounds: a chunk of each that has one. Its leader waits,
// and returns heads and credits. False: the call failed.
DEV bool read_streams(const DispatchArgs& a, const WaitContext& wait, Team& team, Reading& k) {
  const bool leads = team.member() == 0;
  const u32 slots = a.call.geometry.num_slots;
  for (u32 dealt = 0; simt::ballot(k.left != 0) != 0;) {
    TeamRound round{0, 0};
    const bool ok = !leads || await_chunks(a, wait, k, &round);
    if (!hear_round(team, ok, &round)) return false;
    for (simt::mask_t here = round.here; here != 0; here &= here - 1)
      if (!take_rows(a, wait, team, k, simt::first_lane(here), &dealt)) return leave_team(team);
    if (!finish_turn(team)) return leave_team(team);  // every lane has read the chunks
    const bool here = round.here >> simt::lane() & 1;
    if (here) pass_chunk(a, wait, k, leads);
    if (round.gone >> simt::lane() & 1) {
      k.left = 0;
      k.absent = true;
    }
    if (leads && !return_credits(a, wait, k, here && k.landing, slots / 4 > 0 ? slots / 4 : 1)) return leave_team(team);
  }
  return true;
}

// A team, number `here` of those that share the sources of a plan.
DEV void receive_streams(const DispatchArgs& a, const WaitContext& wait, Team& team, const ReadPlan& plan, u32 here,
                         u32 channel) {
  const u32 teams = plan.teams.num;
  const bool leads = team.member() == 0;
  for (u32 base = plan.first + here; base < plan.end; base += teams * simt::kWarp) {
    Reading k = reading(a, channel, base + teams * simt::lane(), plan.end);
    if (leads && k.left == 0 && k.owed != 0) end_stream(a, wait, k);
    if (!read_streams(a, wait, team, k)) return;
    if (!leads) continue;
    for (simt::mask_t left = simt::ballot(k.absent); left != 0; left &= left - 1) {
      const u32 of = simt::first_lane(left), at = simt::shfl(k.at, of);
      take_nothing(a, at + simt::shfl(k.taken, of), at + simt::shfl(k.owed, of));
    }
    for (simt::mask_t left = simt::ballot(k.landing && !k.absent); left != 0; left &= left - 1)
      if (simt::lane() == simt::first_lane(left)) finish_credits(a, wait, k);
  }
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
  } else if (same) {
    const ReadPlan readers = plan.read(even, share);
    const u32 here = readers.teams.team_of_warp(simt::warp());
    Team team = team_of(shared.teams, readers.teams.begin(here), readers.teams.size(here));
    if (here < readers.teams.num) receive_streams(a, wait, team, readers, here, channel);
    if (!even && a.pad_tail) pad_tail(a, channel, shared.total);
  }
  if (a.call.identify) end_identified(a.call);
}

}  // namespace uccl

// What dispatch is told, and its reading half: a team takes the rows that name this rank out of the streams of its sources.
#pragma once
#include "kernels/throughput/team.h"

namespace uccl {

struct DispatchArgs {
  RankContext rank;
  ThroughputCall call;
  const u8* x;  // [num_tokens, payload]
  const u32* scales;  // 4-byte words, strided; null without scales
  i64 scale_token_stride, scale_stride;
  const i64* topk_idx;  // [num_tokens, topk] or null
  const float* topk_weights;  // [num_tokens, topk] or null
  u8* recv_x;  // [capacity, payload]
  u32* recv_scales;  // [capacity, words]
  i64* recv_topk_idx;  // [capacity, topk] local expert or -1
  float* recv_topk_weights;  // [capacity, topk]; 0 where the index is -1
  i32* recv_src_idx;  // [capacity] token index at its source
  const u32* recv_total;  // [1]
  u32 capacity;  // rows of the outputs
  u32 pad_tail;  // rows beyond recv_total get index -1
};
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

}  // namespace uccl

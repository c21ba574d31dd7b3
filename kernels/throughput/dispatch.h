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

// The reading end of a source's stream; at the landing rank of a remote source's ring, also how far the source has been
// told that its slowest reader here is.
struct Crediting {
  StreamAddress stream;
  u32 source, channel;
  u64 told;
  bool landing;
};
// One lane: tells the source when the slowest reader has gone on by `news` chunks.
DEV bool return_credit(const DispatchArgs& a, const WaitContext& wait, Crediting& c, u64 news) {
  u32 who;
  const u64 head = slowest_head(a.rank, c.source, c.stream, &who);
  if (head < c.told + news) return true;
  c.told = head;
  return send_credit(a.rank, wait, Direction::kDispatch, c.source, c.channel, head);
}

// One lane: stays until every reader here has finished this call's part of the stream.
DEV bool finish_credits(const DispatchArgs& a, const WaitContext& wait, Crediting& c, u64 end) {
  while (c.told < end) {
    WaitSite site{WaitPhase::kDispatchReceive, a.rank.topology.rank, c.channel, end};
    const auto slowest = [&] { return slowest_head(a.rank, c.source, c.stream, &site.peer); };
    if (!wait_until(wait, site, slowest, [&](u64 head) { return head > c.told; })) return false;
    if (!return_credit(a, wait, c, 1)) return false;
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

// One warp: the next chunk of a stream, when the reader's head is at `head`. False: the call failed, or (`*absent`) the
// source is masked.
DEV bool await_chunk(const DispatchArgs& a, const WaitContext& wait, Crediting& credits, u64 head, bool* absent) {
  bool ok = true, gone = false;
  if (simt::lane() == 0) {
    const WaitSite site{WaitPhase::kDispatchReceive, credits.source, credits.channel, head + 1};
    u64 tail = simt::ld_acquire_sys(credits.stream.tail);  // pairs with publish_chunk, or with the proxy's release
    if (tail <= head) {
      const u64 begin = simt::now_ns();
      // While this rank waits, slower readers go on; the source may be waiting for exactly their progress.
      ok = wait_or_mask(
          a.rank, wait, site,
          [&] {
            if (credits.landing) return_credit(a, wait, credits, 1);
            return tail = simt::ld_acquire_sys(credits.stream.tail);
          },
          [&](u64 seen) { return seen > head; }, &gone);
      if (credits.channel == 0) add_stat(a.rank, credits.source, PeerStat::kWaitNs, simt::now_ns() - begin);
    }
    ok = ok && (gone || tail_fits(wait, site, a.call.geometry, head, tail));
  }
  *absent = warp_agree(gone);
  return warp_agree(ok) && !*absent;
}

// A chunk of a source's stream that is here: `n` rows, which stand behind `site.expected` - n more.
struct ArrivedChunk {
  const u8* rows;
  u64 number;
  u32 n;
  WaitSite site;
};
// What this rank takes of a stream: rows that name it by `place`, from row `at` of the output on.
struct Taking {
  u32 place, at, owed, taken;
};
// One warp takes its share of a chunk: of the rows that name this rank, every team.size-th. Headers are read a lane each.
// False: a row is not the one that must stand there.
DEV bool take_rows(const DispatchArgs& a, const WaitContext& wait, const Team& team, const ArrivedChunk& chunk,
                   Taking* mine) {
  const u32 row_bytes = a.call.geometry.row_bytes;
  for (u32 base = 0; base < chunk.n && mine->taken <= mine->owed; base += simt::kWarp) {
    const u32 i = base + simt::lane();
    RowHeader header{0, 0, 0};
    bool good = true;
    if (i < chunk.n) {
      header = *reinterpret_cast<const RowHeader*>(chunk.rows + static_cast<u64>(i) * row_bytes);
      WaitSite site = chunk.site;
      site.expected -= 1 + i;
      good = header.is_at(RowHeader::position(chunk.number, site.expected)) || bad_arrival(wait, site, header.seal);
    }
    if (simt::ballot(!good) != 0) return false;
    for (simt::mask_t named = simt::ballot(header.destinations >> mine->place & 1); named != 0; named &= named - 1) {
      const u32 from = simt::first_lane(named), token = simt::shfl(header.token, from);
      if (mine->taken++ == mine->owed) break;
      if ((mine->taken - 1) % team.size == team.member())
        take_row(a, chunk.rows + static_cast<u64>(base + from) * row_bytes, token, mine->at + mine->taken - 1);
    }
  }
  return true;
}

// A team reads one source's stream of one channel. Its leader waits, and returns heads and credits. False: the call failed.
DEV bool receive_stream(const DispatchArgs& a, const WaitContext& wait, Team& team, u32 channel, u32 source) {
  const StreamGeometry& g = a.call.geometry;
  const TopologyView& t = a.rank.topology;
  const bool leads = team.member() == 0;
  u32 left = a.call.stream_rows[source * g.num_channels + channel];
  if (t.is_absent(source)) return true;
  const StreamAddress s = dispatch_stream(a.rank, a.call.layout, source, channel);
  const u32 place = t.place_in_crowd(source);
  u64* head_word = s.heads + place;
  u64 head = simt::ld_relaxed_sys(head_word);
  Crediting credits{s, source, channel, head, !t.is_local(source) && t.landing_rank(source, t.cell) == t.rank};
  const u32 table = source * g.num_channels + channel;
  Taking mine{place, a.call.recv_begin[table], a.call.recv_tokens[table], 0};
  bool absent = leads && warp_agree(a.rank.shrink && masked(a.rank, source));
  for (; left != 0; ++head) {
    const bool there = !leads || (!absent && await_chunk(a, wait, credits, head, &absent));
    const TeamWord word = hear_leader(team, there ? TeamWord::kGo : absent ? TeamWord::kNone : TeamWord::kFailed);
    absent = word == TeamWord::kNone;
    if (word == TeamWord::kFailed) return false;
    const u32 n = left < g.rows_per_chunk ? left : g.rows_per_chunk;
    const ArrivedChunk chunk{s.unit + g.chunk(channel, head), head, n,
                             WaitSite{WaitPhase::kDispatchReceive, source, channel, left}};
    if (!absent && !take_rows(a, wait, team, chunk, &mine)) return leave_team(team);
    if (!finish_turn(team)) return leave_team(team);  // every lane has read the chunk
    if (absent || mine.taken > mine.owed) break;
    left -= n;
    bool ok = true;
    if (leads && simt::lane() == 0) {
      simt::st_release_sys(head_word, head + 1);  // pairs with slowest_head
      if (credits.landing) ok = return_credit(a, wait, credits, g.num_slots / 4 > 0 ? g.num_slots / 4 : 1);
    }
    if (leads && !warp_agree(ok)) return leave_team(team);
  }
  if (!leads) return true;
  if (absent) take_nothing(a, mine.at + mine.taken, mine.at + mine.owed);
  if (simt::lane() != 0) return true;
  if (mine.taken != mine.owed && !absent) {  // its rows name this rank otherwise than it has announced
    bad_arrival(wait, WaitSite{WaitPhase::kDispatchReceive, source, channel, mine.owed}, mine.taken);
    return true;
  }
  add_stat(a.rank, source, PeerStat::kRowsIn, mine.taken);
  add_stat(a.rank, source, PeerStat::kBytesIn, static_cast<u64>(mine.taken) * g.row_bytes);
  if (credits.landing && !absent) finish_credits(a, wait, credits, head);
  return true;
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

// A warp of a reading team, number `here` of this block's plan, which takes each `teams`-th source from `first` on.
DEV void receive_streams(const DispatchArgs& a, const WaitContext& wait, Team& team, u32 first, u32 teams,
                         u32 channel) {
  // Ascending on every rank: the smallest unfinished source of all has all its readers, so none starves.
  for (u32 source = first; source < a.rank.topology.num_ranks; source += teams)
    if (!receive_stream(a, wait, team, channel, source)) return;
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
    const TeamPlan readers = plan.read(even, share);
    const u32 here = readers.team_of_warp(simt::warp());
    Team team = team_of(shared.teams, readers.begin(here), readers.size(here));
    if (here < readers.num) receive_streams(a, wait, team, even ? here : plan.even + here, plan.readers, channel);
    if (!even && a.pad_tail) pad_tail(a, channel, shared.total);
  }
  if (a.call.identify) end_identified(a.call);
}

}  // namespace uccl

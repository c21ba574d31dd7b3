// What the low-latency kernels share: their state, and the rule for reusing a buffer set.
//
// Epochs. Dispatch and combine calls are numbered from 1, separately; epoch e uses set e & 1. A set may be overwritten
// by epoch e only when every reader has finished epoch e - 2. Readers of the node store their progress into the
// writer's region. Remote readers announce theirs inside the ExpectHeader of whatever they send next, which in the
// usual dispatch-combine alternation has always arrived long before it is needed, so nothing is waited for and no
// message is added. Only when a rank has read something and sent nothing since does it announce on its own.
//
// Arrivals are counted by the calls of one form of combine, since the forms have other senders: a rank that sends
// nothing in one form would leave a gap in the numbers of the other.
//
// The numbers live beside the kernels and only they count on, so launches recorded in a graph stay right when the graph
// is replayed with the same argument bytes.
#pragma once
#include "kernels/device/barrier.h"
#include "kernels/device/ring_push.h"
#include "kernels/layout/access.h"
#include "kernels/layout/low_latency.h"

namespace uccl {

// In a combine slot, before the row's place: the row is not there but that many bytes into the registered memory of
// the expert's rank. 0: it is there.
inline constexpr u64 kRowStays = 1ull << 63;

// One lane: the bf16 row of a slot whose rank is of this node, in the slot or in registered memory; null: the slot says
// neither. `registered` as row_in_memory's.
DEV const u16* row_of_mark(const TopologyView& topology, const u8* const* registered, u32 rank, const u8* slot,
                           u32 hidden) {
  const u64 mark = *reinterpret_cast<const u64*>(slot);
  if (mark == 0) return reinterpret_cast<const u16*>(slot + LowLatencyLayout::row_in_slot(RowFormat::kBf16));
  if ((mark & kRowStays) == 0) return nullptr;
  return row_in_memory(registered, topology.local_size, topology.local_of[rank], mark & ~kRowStays, 2ull * hidden);
}

// How far this rank is with the calls of one phase. Changed by the last block of a launch only, so every block of one
// launch reads the same numbers; launches of one rank do not overlap. So these words need no order of their own.
struct PhaseEpochs {
  u64 sent;  // calls whose sending half has finished
  u64 consumed;  // this rank has received every call up to here
  u64 ahead;  // a call received before the one that precedes it, or 0: at most two results are outstanding
  u64 told;  // the `consumed` that other nodes have been told
};

struct LowLatencyState {
  PhaseEpochs dispatch, combine;
  u64 announcements;  // made so far
  u64 reduced;  // of combine.sent, those that were reduced in the node
  // Behind it: u64 [2][num_ranks], ticket + 1 of the last announcement of each parity to each rank; 0 = none.
  static constexpr u64 bytes(u32 num_ranks) { return sizeof(LowLatencyState) + 16ull * num_ranks; }
};

struct LowLatencyCall {
  LowLatencyLayout layout;
  LowLatencyState* state;  // of this rank, zeroed once
  u64* epoch;  // [2] this call's Turn::epoch and Turn::number: the sending half leaves them here for the receiving half
  u32 num_experts;
  u32 num_local_experts;
  u32* ticket;  // zero between launches
  u32* grid_barrier;  // kGridBarrierWords, zero between launches
  u64* admitted;  // epoch of the last launch that block 0 has let go on (ask_once)
  u32 reduces;  // a combine: rows of other nodes' tokens are summed in this node first (combine_reduce.h)
  u32 share_rows;  // 1: several warps take a row together where there are fewer rows than warps (RowCut)
};

// What a launch knows from its start on, the same in every block.
struct Turn {
  WaitContext wait;
  u64 epoch;  // the call's number in its phase: buffers go by it
  u64 number;  // its number among the calls of its form: arrivals from other nodes go by it
  u64 consumed_dispatch, consumed_combine;  // to be told to peers
  u64 announcement;  // number of an extra message that tells them, 0 = none is due
};

// What every rank of a call must have been called with. `format`: RowFormat.
DEV CallIdentity identity_of(const RankContext& c, const LowLatencyCall& call, CallKind kind, u32 format,
                             u32 answered) {
  using S = LowLatencyShape;
  return CallIdentity{S::call().put(static_cast<u64>(kind)) | S::max_tokens().put(call.layout.max_tokens) |
                          S::hidden().put(call.layout.hidden) | S::experts().put(call.num_experts) |
                          S::format().put(format) | S::form().put(call.reduces),
                      CallIdentity::origin_of(answered, c.tag)};
}

// One lane: site.peer, whose flag has been acquired, is in the same call as this rank. `announced`: the ExpectHeader of
// a rank of another node; one of this node has its identity beside its flag.
DEV bool in_same_call(const RankContext& c, const Turn& turn, Phase phase, const WaitSite& site,
                      const ExpectHeader* announced) {
  const CallIdentity* const theirs =
      c.topology.is_local(site.peer)
          ? reinterpret_cast<const CallIdentity*>(data_of(c, site.peer) + c.signals.identity(phase, turn.epoch))
          : &announced->identity;
  return same_call(turn.wait, site.phase, site.peer, *own_identity(c, phase, turn.epoch), theirs);
}
// What `source` announced of its call number `number`, where the control segment `control` has it.
DEV const ExpectHeader* announced_by(const RankContext& c, u8* control, Phase phase, u64 number, u32 source) {
  return reinterpret_cast<const ExpectHeader*>(control + c.control_layout.expect(phase, number, source));
}
// The flag for which that is waited: it costs a GPU no further read of the host's memory.
DEV const u64* flag_beside(const RankContext& c, u8* control, Phase phase, u64 number, u32 source) {
  return word(control, c.control_layout.flag_beside(phase, number, source));
}

// The same of a rank of this node, which raises it when all that it has for its node is stored.
DEV u64* node_flag(const RankContext& c, Phase phase, u64 epoch, u32 source) {
  return word(data_of(c, source), c.signals.flag_beside(phase, epoch));
}

// That of a combine, whose rows lie here. Where ranks may leave each other out it is this rank's own word, which a
// source that masks this rank does not raise.
DEV const u64* rows_flag(const RankContext& c, u64 epoch, u32 source) {
  if (c.shrink) return word(own_data(c), c.signals.flag(Phase::kCombine, source));
  return node_flag(c, Phase::kCombine, epoch, source);
}

DEV PhaseEpochs& epochs_of(const LowLatencyCall& call, Phase phase) {
  return phase == Phase::kDispatch ? call.state->dispatch : call.state->combine;
}

// Of the call with this epoch, which has not been counted yet.
DEV u64 number_of(const LowLatencyCall& call, Phase phase, u64 epoch) {
  if (phase == Phase::kDispatch) return epoch;
  const u64 reduced = call.state->reduced;
  return call.reduces ? reduced + 1 : epoch - reduced;
}

// Peers may soon wait for what they have not been told: call `sent` + 1 reuses the set of `sent` - 1.
DEV bool overdue(const PhaseEpochs& p, u64 sent) {
  const u64 told = p.told;
  return told < p.consumed && told + 1 < sent;
}

// Every thread of a sending half, first of all. Until its last block has come to its end there is no such call.
DEV Turn begin_send(const RankContext& c, const LowLatencyCall& call, Phase phase) {
  const LowLatencyState& s = *call.state;
  const u64 dispatches = s.dispatch.sent + (phase == Phase::kDispatch ? 1 : 0);
  const u64 combines = s.combine.sent + (phase == Phase::kCombine ? 1 : 0);
  const bool due = c.topology.num_nodes > 1 && (overdue(s.dispatch, dispatches) || overdue(s.combine, combines));
  if (simt::bid() == 0 && simt::tid() == 0) call.epoch[0] = 0;
  const u64 epoch = phase == Phase::kDispatch ? dispatches : combines;
  return Turn{wait_context(c),
              epoch,
              number_of(call, phase, epoch),
              s.dispatch.consumed,
              s.combine.consumed,
              due ? s.announcements + 1 : 0};
}

// One thread of the last block: the call is on its way.
DEV void end_send(const LowLatencyCall& call, Phase phase, const Turn& turn) {
  call.state->dispatch.told = turn.consumed_dispatch;
  call.state->combine.told = turn.consumed_combine;
  if (turn.announcement != 0) call.state->announcements = turn.announcement;
  epochs_of(call, phase).sent = turn.epoch;
  if (call.reduces) call.state->reduced = turn.number;
  call.epoch[1] = turn.number;
  call.epoch[0] = turn.epoch;
}

// Every thread of a receiving half. After a sending half that failed it waits for the call that never was, and the
// rank's fault ends that wait.
DEV Turn begin_receive(const RankContext& c, const LowLatencyCall& call, Phase phase) {
  const u64 sent = call.epoch[0];
  const u64 epoch = sent != 0 ? sent : epochs_of(call, phase).sent + 1;
  const u64 number = sent != 0 ? call.epoch[1] : number_of(call, phase, epoch);
  return Turn{wait_context(c), epoch, number, call.state->dispatch.consumed, call.state->combine.consumed, 0};
}

// In a receiving half: `r` is this rank, and its sending half has come to its end, as a word of this device says. So its
// own flag, which may lie in the host's memory, needs no look.
DEV bool is_sent(const RankContext& c, const LowLatencyCall& call, u32 r) {
  return r == c.topology.rank && call.epoch[0] != 0;
}

// The finished epoch of a phase that a reader has made known here. One of another node says it to whoever it sends
// something, and that landing rank has a second word, which is looked at where the first one does not suffice.
struct KnownConsumed {
  const u64 *direct, *hosted;  // hosted null: there is no second word
  u64 wanted;
  DEV_MEMBER u64 operator()() const {
    return larger(SystemWord{direct}(), [&] { return SystemWord{hosted}(); });
  }
  DEV_MEMBER u64 peek() const {
    return larger(SystemWord{direct}.peek(), [&] { return SystemWord{hosted}.peek(); });
  }

 private:
  template <class Second>
  DEV_MEMBER u64 larger(u64 first, Second second) const {
    if (first >= wanted || hosted == nullptr) return first;
    const u64 other = second();
    return first > other ? first : other;
  }
};
DEV KnownConsumed known_consumed(const RankContext& c, Phase phase, u32 reader, u64 wanted) {
  if (c.topology.is_local(reader))
    return KnownConsumed{word(own_data(c), c.signals.consumed(phase, reader)), nullptr, wanted};
  const u64 at = c.control_layout.consumed(phase, reader);
  const u32 landing = c.topology.landing_rank(reader, c.topology.cell);
  return KnownConsumed{word(own_control(c), at),
                       landing == c.topology.rank ? nullptr : word(control_of(c, landing), at), wanted};
}

// Block 0 asks, by ask(), which each of its threads answers; every other block goes by its word in this device's memory.
// So a launch reads each word of other ranks and of the host once, however many blocks it has. False in every thread of
// a block when block 0 was not answered, and so the launch has failed.
//
// Block 0 has the deadline and names whom it waits for. It ends the others' wait in any case, by its word or by the failed
// launch. An epoch has one launch of each kernel, unless that failed, and then its ticket says so for good.
template <class Ask>
DEV bool ask_once(const LowLatencyCall& call, const Turn& turn, Ask ask) {
  if (simt::bid() == 0) {
    const bool ok = simt::sync_block_and(ask());
    if (simt::tid() == 0) {
      if (!ok)
        fail_launch(call.ticket);
      else if (simt::nbid() != 1)
        simt::st_release_gpu(call.admitted, turn.epoch);  // pairs with the acquire below
    }
    return ok;
  }
  bool ok = true;
  if (simt::tid() == 0) {
    const u64* const admitted = call.admitted;
    wait_for_block(DeviceWord{admitted}, [&](u64 seen) { return seen == turn.epoch || launch_fails(call.ticket); });
    ok = !launch_failed(call.ticket);
  }
  return simt::sync_block_and(ok);
}

// This warp among all of the grid. Neighbours are in different blocks, so that few units of work go to many processors.
DEV u32 grid_warp() { return simt::warp() * static_cast<u32>(simt::nbid()) + static_cast<u32>(simt::bid()); }
DEV u32 grid_warps() { return static_cast<u32>(simt::nbid()) * simt::num_warps(); }

// How a row is cut for several warps: `pieces` of `channels` each, the last one the rest.
struct RowCut {
  u32 pieces, channels;
  DEV_MEMBER u32 begin(u32 piece) const { return piece * channels; }
  DEV_MEMBER u32 size(u32 piece, u32 hidden) const {
    return hidden - piece * channels < channels ? hidden - piece * channels : channels;
  }
};
// So that `rows` rows occupy all warps, in multiples of `grain` channels, below which a lane would have too little to do
// at once.
DEV RowCut cut_row(const LowLatencyCall& call, u64 rows, u32 warps, u32 grain) {
  const u32 hidden = call.layout.hidden;
  if (call.share_rows == 0 || rows == 0 || rows * 2 > warps) return RowCut{1, hidden};
  const u32 grains = static_cast<u32>(ceil_div(hidden, grain)), most = warps / static_cast<u32>(rows);
  const u32 channels = static_cast<u32>(ceil_div(grains, most < grains ? most : grains)) * grain;
  return RowCut{static_cast<u32>(ceil_div(hidden, channels)), channels};
}
// Four 16-byte units a lane.
inline constexpr u32 kPieceBytes = 4 * 16 * (simt::kWarp == 1 ? 32 : simt::kWarp);

// The rows of all local experts.
template <class Count>
DEV u64 rows_of_experts(u32 experts, Count count) {
  u32 rows = 0;
  for (u32 e = simt::lane(); e < experts; e += simt::kWarp) rows += count(e);
  return simt::warp_sum(rows);
}

// The whole grid: false in every thread of a block that gave up, or when any warp of any block had `ok` false. It has
// a timeout of its own behind the kernel's: blocks that are here already outwait those that still wait for peers, so a
// fault names the missing peer, and with `shrink` a missing peer is none.
DEV bool sync_launch(const RankContext& c, const WaitContext& wait, const LowLatencyCall& call, bool ok) {
  if (!ok && simt::lane() == 0) fail_launch(call.ticket);
  WaitContext patient = wait;
  patient.deadline_ns = later_deadline(c, wait);
  const auto gave_up = [&] { return launch_fails(call.ticket); };
  if (!sync_grid(call.grid_barrier, patient, gave_up) && simt::tid() == 0) fail_launch(call.ticket);
  return simt::sync_block_and(!launch_failed(call.ticket));
}

// Waits until every rank has finished epoch - 2 of `phase`; a thread a rank. Whole block, in ask_once.
DEV bool wait_for_reuse(const RankContext& c, const Turn& turn, Phase phase) {
  const u64 epoch = turn.epoch;
  if (epoch <= 2) return true;
  // Other ranks wait for what this half is about to send, and some of them began to wait before it did. So it gives up a
  // rank that does not come a little earlier than they would: otherwise they would give up this rank instead.
  WaitContext patience = turn.wait;
  if (c.shrink && patience.deadline_ns != ~0ull) patience.deadline_ns -= c.timeout_ns / kSendersGiveUpEarly;
  bool good = true;
  for (u32 r = simt::tid(); r < c.topology.num_ranks; r += simt::ntid()) {
    if (r == c.topology.rank || masked(c, r)) continue;
    const WaitPhase name = phase == Phase::kDispatch ? WaitPhase::kDispatchSend : WaitPhase::kCombineSend;
    bool absent;
    u64 consumed = 0;
    const bool ok = wait_or_mask<true>(
        c, patience, WaitSite{name, r, {}, epoch - 2}, known_consumed(c, phase, r, epoch - 2),
        [&](u64 seen) { return (consumed = seen) >= epoch - 2; }, &absent);
    // What this rank has not sent yet nobody can have read.
    good = good && ok && keeps_step(c, turn.wait, WaitSite{name, r, {}, 0}, consumed, epoch - 1);
  }
  return good;
}

// The last block of a receiving half: counts the call as read and tells the ranks of this node how far that brings it.
DEV void end_receive(const RankContext& c, const LowLatencyCall& call, Phase phase, const Turn& turn) {
  PhaseEpochs& p = epochs_of(call, phase);
  u64 consumed = p.consumed, ahead = p.ahead;
  if (turn.epoch == consumed + 1) {
    consumed = ahead == turn.epoch + 1 ? ahead : turn.epoch;
    ahead = 0;
  } else if (turn.epoch > consumed) {
    ahead = turn.epoch;
  }
  simt::sync_block();  // all have read them
  if (simt::tid() == 0) {
    p.consumed = consumed;
    p.ahead = ahead;
  }
  const u64 word_offset = c.signals.consumed(phase, c.topology.rank);
  for (u32 i = simt::tid(); i < c.topology.local_size; i += simt::ntid())
    if (i != c.topology.local) simt::st_release_sys(word(c.data[i], word_offset), consumed);
}

// "So many writes of (phase, epoch) are on their way to you."
struct Announcement {
  Phase phase;
  u32 peer;
  u64 epoch, num_writes;
  u32 header;  // LowLatencyLayout::header's kind: where the outgoing ExpectHeader is kept
  CallIdentity identity{};
};
// Writes the ExpectHeader into the outgoing area and sends it. One lane; returns its ticket, or kNoTicket.
DEV u64 send_expect(const RankContext& c, const Turn& turn, const LowLatencyCall& call, const Announcement& a) {
  const u64 from = call.layout.header(a.epoch, a.header, a.peer);
  *reinterpret_cast<ExpectHeader*>(own_data(c) + from) =
      ExpectHeader::make(a.epoch, a.num_writes, turn.consumed_dispatch, turn.consumed_combine, a.identity);
  Command m;
  m.op = Op::kCount;
  m.peer = a.peer;
  m.key = epoch_key(a.phase, a.epoch);
  m.local_offset = from;
  m.remote_offset = c.control_offset + c.control_layout.expect(a.phase, a.epoch, c.topology.rank);
  m.bytes = sizeof(ExpectHeader);
  return push(ring_to(c, a.peer), m, turn.wait);
}

// The rare announcement (see above): an ExpectHeader of Phase::kSpare that expects nothing, to every remote rank.
DEV void announce_consumed(const RankContext& c, const Turn& turn, const LowLatencyCall& call) {
  if (turn.announcement == 0 || simt::bid() != 0) return;
  if (simt::lane() != 0) return;  // lanes of one warp do not push side by side (ring_push.h)
  u64* last = reinterpret_cast<u64*>(call.state + 1) + (turn.announcement & 1) * c.topology.num_ranks;
  WaitContext wait = turn.wait;
  if (c.shrink) wait.fault = nullptr;  // a peer that is gone is left out, as in wait_for_flag
  for (u32 r = simt::warp(); r < c.topology.num_ranks; r += simt::num_warps()) {
    if (c.topology.is_local(r) || masked(c, r)) continue;
    // The announcement before last went out from the same bytes: they must have been read.
    const WaitSite site{WaitPhase::kStagingReuse, r, {}, 0};
    if (last[r] != 0 && !wait_done(ring_to(c, r), last[r] - 1, wait, site)) {
      if (!c.shrink || aborted(turn.wait)) fail_launch(call.ticket);
      continue;
    }
    last[r] = send_expect(c, turn, call, Announcement{Phase::kSpare, r, turn.announcement, 0, 2}) + 1;
  }
}

// Waits for an arrival flag. One lane. As wait_or_mask; a source that is `*absent` is to be treated as having sent
// nothing. So is one that has left this rank out and gone on: what it sent for this call has been overwritten.
DEV bool wait_for_flag(const RankContext& c, const WaitContext& wait, const WaitSite& site, const u64* flag, u64 epoch,
                       bool* absent) {
  u64 last = 0;
  const bool ok =
      wait_or_mask<true>(c, wait, site, SystemWord{flag}, [&](u64 seen) { return (last = seen) >= epoch; }, absent);
  if (!ok || *absent) return ok;
  *absent = c.shrink && last > epoch + 1;
  if (*absent) mask_peer(c, site.peer);
  return keeps_step(c, wait, site, last, epoch + 1);  // its call after next needs this one read
}

// As wait_for_flag, until the flag is `site.expected`. How long that took is added to the peer's sums and to `wait_stats`
// (null: there are none). One lane, once a launch.
DEV bool wait_and_count(const RankContext& c, const WaitContext& wait, const WaitSite& site, const u64* flag,
                        i64* wait_stats) {
  const u64 begin = simt::now_ns();
  bool absent;
  const bool ok = wait_for_flag(c, wait, site, flag, site.expected, &absent);
  const u64 waited = simt::now_ns() - begin;
  add_stat(c, site.peer, PeerStat::kWaitNs, waited);
  if (wait_stats != nullptr && site.peer != c.topology.rank)
    simt::add_sys(reinterpret_cast<u64*>(&wait_stats[site.peer]), waited);
  return ok;
}

}  // namespace uccl

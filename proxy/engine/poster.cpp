// The sending half of a worker; the rules are in poster.h.
#include "engine/poster.h"

#include "engine/words.h"
#include "wire/immediate.h"

namespace uccl {
namespace {

// wr_id: [62:48] ring of this worker, [47:0] low bits of the ticket. Bit 63 marks a barrier's immediate.
constexpr int kTicketBits = 48;
constexpr u64 make_token(u32 ring, u64 ticket) { return u64{ring} << kTicketBits | (ticket & low_bits(kTicketBits)); }

}  // namespace

Poster::Poster(const WorkerContext& context, Barrier& barrier)
    : settings_(context.settings),
      worker_(context.index),
      lane_(context.lane),
      counters_(context.counters),
      ledger_(context.ledger),
      faults_(context.faults),
      barrier_(barrier),
      credit_gate_(settings_.num_ranks, settings_.control_layout.num_channels),
      events_(context.events),
      traced_(events_.traced()),
      recording_(events_.enabled()) {
  const u32 capacity = settings_.ring_capacity;
  for (std::size_t i = worker_; i < settings_.rings.size(); i += settings_.num_workers) {
    Ring& ring = rings_.emplace_back();
    ring.consumer = RingConsumer(settings_.rings[i], capacity);
    ring.slots.assign(capacity, Slot{0, 0, kNoStream, 0, SlotState::kEmpty});
    ring.done = ring.published_done = ring.consumer.next_ticket();
  }
}

u32 Poster::turn() {
  u32 moved = 0;
  now_ns_ = 0;
  const u32 n = static_cast<u32>(rings_.size());
  for (u32 i = 0; i < n; ++i) {
    const u32 index = first_ + i < n ? first_ + i : first_ + i - n;
    moved += turn(rings_[index], index);
  }
  if (++first_ >= n) first_ = 0;
  quiet_ = moved == 0;
  return moved;
}

u32 Poster::turn(Ring& ring, u32 index) {
  u32 moved = ring.staged_end - ring.staged_begin;
  if (push_staged(ring)) {
    u32 taken = 0;
    Command command;
    // A ticket's slot is free once the ticket a lap before it is done.
    while (ring.staged_end < kBatch && taken < kBatch &&
           ring.consumer.next_ticket() - ring.done < settings_.ring_capacity && ring.consumer.peek(&command)) {
      if (take(ring, index, command) == Step::kWait) break;
      ++taken;
    }
    if (taken != 0) {
      bump(counters_.commands, taken);
      ring.consumer.publish_tail();
      moved += taken + ring.staged_end;
      push_staged(ring);
    }
  }
  moved -= ring.staged_end - ring.staged_begin;
  if (ring.done != ring.published_done) ring.consumer.publish_done(ring.published_done = ring.done);
  if (ring.stall_told != kNobody && ring.done == ring.consumer.next_ticket()) ring.stall_told = kNobody;
  return moved;
}

Poster::Step Poster::take(Ring& ring, u32 index, const Command& command) {
  switch (command.op) {
    case Op::kWrite:
    case Op::kCount:
    case Op::kSequence:
    case Op::kCredit: return take_write(ring, index, command);
    case Op::kQuiet:
      bump(counters_.quiets);
      finish(ring);
      return Step::kTaken;
    case Op::kBarrier: return take_barrier(ring, command);
    default: refuse(ring, command, CommandError::kOp); return Step::kTaken;
  }
}

Poster::Step Poster::take_barrier(Ring& ring, const Command& command) {
  if (worker_ != 0) {  // rounds are one sequence, so one thread counts them
    refuse(ring, command, CommandError::kOp);
    return Step::kTaken;
  }
  if (ring.done != ring.consumer.next_ticket()) return Step::kWait;  // quiet first
  if (barrier_.active() && barrier_ring_ != &ring) return Step::kWait;
  if (!barrier_.active()) {
    u64 round;
    if (!barrier_.round_of(command.key, &round)) {
      refuse(ring, command, CommandError::kKey);
      return Step::kTaken;
    }
    barrier_ring_ = &ring;
    barrier_.begin(round);
    if (recording_) events_.record({now(), EventKind::kBarrier, kNobody, 0, round});
  }
  if (!barrier_.progress()) return Step::kWait;
  const u64 over = read_word(control_word(settings_.control, ControlLayout::kBarrier));
  if (recording_) events_.record({now(), EventKind::kBarrier, kNobody, 1, over});
  finish(ring);
  return Step::kTaken;
}

Poster::Step Poster::take_write(Ring& ring, u32 index, const Command& command) {
  // Not for one that is only left out: what was pushed before that is owed to it, and it may be taken back. A worker
  // parts with it, and comes here again, when it reads nothing (Worker::follow_exclusions).
  if (ledger_.is_peer(command.peer) && ledger_.gone(command.peer)) {
    finish(ring);
    return Step::kTaken;
  }
  const u8* source = nullptr;
  const CommandError error = refusal(command, &source);
  if (error != CommandError::kOk) {
    refuse(ring, command, error);
    return Step::kTaken;
  }
  if (!in_window(ring, command) || !ledger_.has_room(command.peer, command.bytes)) {
    stall(ring, command.peer);
    return Step::kWait;
  }
  const u64 ticket = ring.consumer.advance();
  u32 stream = kNoStream;
  if (command.op == Op::kCredit) {
    stream = credit_gate_.stream(command.peer, command.key);
    credit_gate_.opened(stream, key_position(command.key));
  }
  ring.slots[ticket & (settings_.ring_capacity - 1)] =
      Slot{ticket, static_cast<u32>(command.bytes), stream, static_cast<u16>(command.peer), SlotState::kOpen};
  ring.staged[ring.staged_end++] =
      WriteRequest{command.peer,  pack(Immediate{kind_of(command.op), settings_.rank, command.key}),
                   source,        command.remote_offset,
                   command.bytes, make_token(index, ticket)};
  if (recording_ && (traced_ || quiet_ || command.op == Op::kCount)) record_popped(ring.staged[ring.staged_end - 1]);
  ledger_.opened(command.peer, command.bytes);
  bump(counters_.writes);
  bump(counters_.write_bytes, command.bytes);
  return Step::kTaken;
}

// Whether the receiver can still put this one in order. Chunks of a stream share a ring, so the oldest that is open has
// a ticket of at least `done`, and the tickets between bound the chunks between.
bool Poster::in_window(const Ring& ring, const Command& command) const {
  if (command.op == Op::kSequence) return ring.consumer.next_ticket() - ring.done < kMaxSequenceInFlight;
  if (command.op != Op::kCredit) return true;
  return credit_gate_.may_send(credit_gate_.stream(command.peer, command.key), key_position(command.key));
}

CommandError Poster::refusal(const Command& c, const u8** source) const {
  if (!ledger_.is_peer(c.peer)) return CommandError::kPeer;
  const bool stream = c.op == Op::kSequence || c.op == Op::kCredit;
  if (stream && key_channel(c.key) >= settings_.control_layout.num_channels) return CommandError::kKey;
  if (c.op == Op::kCredit && c.bytes != 0) return CommandError::kLength;
  if (c.op == Op::kCount && c.bytes != sizeof(ExpectHeader)) return CommandError::kLength;
  if (c.bytes == 0) return CommandError::kOk;
  *source = settings_.local.resolve(c.local_offset, c.bytes);
  if (*source == nullptr) return CommandError::kLocalOffset;
  const u64 limit = settings_.peer_bytes[c.peer];
  if (c.bytes > limit || c.remote_offset > limit - c.bytes) return CommandError::kRemoteOffset;
  return CommandError::kOk;
}

void Poster::refuse(Ring& ring, const Command& command, CommandError error) {
  bump(counters_.refused);
  faults_.raise({.kind = FaultKind::kBadCommand,
                 .phase = WaitPhase::kRing,
                 .peer = command.peer,
                 .seen = static_cast<u64>(error)});
  finish(ring);  // whoever waits for `done` must not wait for ever
}

void Poster::finish(Ring& ring) {
  const u64 ticket = ring.consumer.advance();
  ring.slots[ticket & (settings_.ring_capacity - 1)] = Slot{ticket, 0, kNoStream, 0, SlotState::kOpen};
  settle(ring, ticket);
}

void Poster::stall(Ring& ring, u32 peer) {
  if (ring.stalled_ticket == ring.consumer.next_ticket()) return;
  ring.stalled_ticket = ring.consumer.next_ticket();
  bump(counters_.stalls);
  ledger_.stalled(peer);
  if (!recording_ || (!traced_ && ring.stall_told == peer)) return;
  ring.stall_told = peer;  // a ring that is always full would otherwise leave nothing else to read
  const u64 index = static_cast<u64>(&ring - rings_.data());
  events_.record({now(), EventKind::kStalled, peer, index, ring.stalled_ticket});
}

void Poster::record_popped(const WriteRequest& request) {
  quiet_ = false;
  events_.record({now(), EventKind::kPopped, request.peer, request.bytes << 32 | request.immediate, request.wr_id});
}

// The lane has accepted what was staged since `from`. A clock read of its own: the lane may have copied all the bytes.
void Poster::record_posted(const Ring& ring, u32 from) {
  const u64 now_ns = steady_ns();
  for (u32 i = from; i < ring.staged_begin; ++i) {
    const WriteRequest& r = ring.staged[i];
    events_.record({now_ns, EventKind::kPosted, r.peer, r.bytes << 32 | r.immediate, r.wr_id});
  }
}

// True when nothing is left over. The lane takes from the front, so ring order is kept.
bool Poster::push_staged(Ring& ring) {
  if (ring.staged_begin != ring.staged_end) {
    const std::span<const WriteRequest> left(&ring.staged[ring.staged_begin], ring.staged_end - ring.staged_begin);
    const u32 from = ring.staged_begin;
    ring.staged_begin += static_cast<u32>(lane_.post(left));
    if (traced_) record_posted(ring, from);
    if (ring.staged_begin != ring.staged_end) {
      stall(ring, ring.staged[ring.staged_begin].peer);
      return false;
    }
  }
  ring.staged_begin = ring.staged_end = 0;
  return true;
}

void Poster::settle(Ring& ring, u64 ticket) {
  const u64 mask = settings_.ring_capacity - 1;
  Slot& slot = ring.slots[ticket & mask];
  slot.state = SlotState::kComplete;
  if (slot.credit_stream != kNoStream) credit_gate_.completed(slot.credit_stream);
  for (; ring.slots[ring.done & mask].state == SlotState::kComplete; ++ring.done)
    ring.slots[ring.done & mask].state = SlotState::kEmpty;
}

void Poster::complete(std::span<const u64> wr_ids) {
  const u64 now_ns = traced_ ? steady_ns() : 0;
  for (const u64 wr_id : wr_ids) {
    if (wr_id & Barrier::kWrId) {
      const u32 peer = static_cast<u32>(wr_id & ~Barrier::kWrId);
      if (ledger_.is_peer(peer) && !ledger_.gone(peer)) ledger_.completed(peer, 0);
      continue;
    }
    const u64 index = wr_id >> kTicketBits;
    if (index >= rings_.size()) continue;
    Ring& ring = rings_[index];
    Slot& slot = ring.slots[wr_id & (settings_.ring_capacity - 1)];
    // A completion of a lost peer may come late: its ticket was settled when the peer was dropped.
    if (slot.state != SlotState::kOpen || ((slot.ticket ^ wr_id) & low_bits(kTicketBits)) != 0) continue;
    ledger_.completed(slot.peer, slot.bytes);
    if (traced_) events_.record({now_ns, EventKind::kCompleted, slot.peer, u64{slot.bytes} << 32, wr_id});
    settle(ring, slot.ticket);
  }
  bump(counters_.completions, wr_ids.size());
}

void Poster::drop_peer(u32 peer) {
  ledger_.forget(peer);
  for (Ring& ring : rings_)
    for (u64 ticket = ring.done; ticket != ring.consumer.next_ticket(); ++ticket) {
      const Slot& slot = ring.slots[ticket & (settings_.ring_capacity - 1)];
      if (slot.state == SlotState::kOpen && slot.ticket == ticket && slot.peer == peer) settle(ring, ticket);
    }
}

bool Poster::drained() const {
  Command command;
  for (const Ring& ring : rings_)
    if (ring.done != ring.consumer.next_ticket() || ring.published_done != ring.done || ring.consumer.peek(&command))
      return false;
  return true;
}

}  // namespace uccl

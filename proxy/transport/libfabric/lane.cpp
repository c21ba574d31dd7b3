// The data path of libfabric: requests in, pieces out, completions and arrivals back.
#include "transport/libfabric/lane.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include "transport/libfabric/codes.h"
#include "wire/immediate.h"

namespace uccl {
namespace {

constexpr u32 kArrivalsKept = 4096;
constexpr std::size_t kEventsPerRead = 64;
constexpr int kReadsPerPoll = 8;
constexpr u32 kMostOperations = 1u << 20;
// After so many peers in a row whose writes the provider did not take, its own queue is full.
constexpr int kMostRefusals = 3;

u32 pool_capacity(const LaneShape& s) {
  const u64 requests = static_cast<u64>(s.num_ranks) * s.max_in_flight;
  return static_cast<u32>(std::min<u64>(requests, kMostOperations)) + 3 * s.num_ranks;  // a record of each kind
}

}  // namespace

LibfabricLane::LibfabricLane(const LaneShape& shape, std::unique_ptr<RmaPort> port, MailboxSlot* inbox,
                             MailboxSlot* outbox)
    : JudgingLane(shape.num_ranks),
      shape_(shape),
      port_(std::move(port)),
      inbox_(inbox),
      outbox_(outbox),
      pool_(pool_capacity(shape)),
      peers_(shape.num_ranks),
      waiting_(shape.num_ranks),
      arrivals_(kArrivalsKept) {}

std::size_t LibfabricLane::take(std::span<const WriteRequest> requests) {
  std::size_t n = 0;
  for (; n < requests.size(); ++n) {
    const WriteRequest& r = requests[n];
    if (!book_.is_open(r.peer)) continue;
    Peer& p = peers_[r.peer];
    const RemoteMemory* target = r.bytes == 0 ? &p.mailbox : find_span(p.spans, r.remote_offset, r.bytes);
    if (target == nullptr) {
      refuse(r.peer, ERANGE);
      continue;
    }
    if (p.open == shape_.max_in_flight || pool_.free() <= 3 * shape_.num_ranks) break;
    const u32 i = pool_.take();
    Operation& o = pool_[i];
    o.source = r.bytes == 0 ? reinterpret_cast<const u8*>(&outbox_[r.peer].pad) : r.source;
    o.remote_address = r.bytes == 0 ? target->address + offsetof(MailboxSlot, pad)
                                    : target->address + (r.remote_offset - target->offset);
    o.key = target->key;
    o.bytes = r.bytes;
    o.wr_id = r.wr_id;
    o.immediate = r.immediate;
    o.peer = r.peer;
    p.queue.push(pool_, i);
    waiting_.push(r.peer);
    ++p.open;
    ++counters_.writes;
    counters_.write_bytes += r.bytes;
  }
  return n;
}

void LibfabricLane::flush() { pump(); }

// Hands queued operations to the provider, a peer after the other. Those that it does not take stay first in their
// queues; their peers are asked again in the next turn.
void LibfabricLane::pump() {
  int refusals = 0;
  for (std::size_t left = waiting_.size(); left != 0 && refusals < kMostRefusals; --left) {
    const u32 peer = waiting_.pop();
    Peer& p = peers_[peer];
    while (!p.queue.empty()) {
      const u32 i = p.queue.pop(pool_);
      int error = 0;
      const Step step = issue(pool_[i], !p.queue.empty(), &error);
      if (step != Step::kAgain) p.refused = false;
      if (step == Step::kGiven) {
        if (error != 0) settle(pool_[i], error);
        continue;
      }
      p.queue.push_front(pool_, i);
      if (step == Step::kAgain) {
        ++refusals;
        if (gave_up(p))
          fail(peer, PeerFault::kLost, ETIMEDOUT, false);
        else
          waiting_.push(peer);
      }
      break;  // kWait: the completion of a piece wakes the peer up
    }
  }
}

bool LibfabricLane::gave_up(Peer& p) {
  const auto now = std::chrono::steady_clock::now();
  if (!p.refused) p.refused_since = now;
  p.refused = true;
  return now - p.refused_since > std::chrono::nanoseconds(shape_.unreachable_ns);
}

// Only the last piece carries the immediate; unless the provider keeps order it follows when the others are complete,
// because an immediate must never come before its data.
LibfabricLane::Step LibfabricLane::issue(Operation& o, bool more, int* error) {
  for (;;) {
    const u64 left = o.bytes - o.given;
    const bool last = left <= shape_.max_piece;
    if (last && o.pieces_open != 0 && !shape_.ordered) return Step::kWait;
    const u64 bytes = last ? left : shape_.max_piece;
    *error = issue_piece(o, bytes, last, more);
    if (*error == EAGAIN) return Step::kAgain;
    if (*error != 0) return Step::kGiven;  // and never again
    ++o.pieces_open;
    ++pieces_open_;
    o.given += bytes;
    o.complete_given = last;
    if (last) return Step::kGiven;
  }
}

int LibfabricLane::issue_piece(Operation& o, u64 bytes, bool last, bool more) {
  const Peer& p = peers_[o.peer];
  RmaWrite w;
  w.destination = p.destination;
  w.source = o.source + o.given;
  w.bytes = bytes;
  w.remote_address = o.remote_address + o.given;
  w.key = o.key;
  w.context = &o;
  w.confirmed = o.record == 0;
  w.with_data = last && o.record == 0;
  w.data = shape_.source_form == SourceForm::kTag ? static_cast<u64>(p.tag_out) << 32 | o.immediate : o.immediate;
  // Never when the provider might be full: it would wait for a write that it cannot take.
  w.more = more && pieces_open_ + 1 < shape_.transmit_entries;
  return port_->write(w);
}

// Something of an operation has completed, or (`error`) has not and never will. It is in no queue.
void LibfabricLane::settle(Operation& o, int error) {
  const u32 peer = o.peer;
  const bool record = o.record != 0;
  if (record) {
    peers_[peer].records[o.record - 1] = error == 0 ? Record::kSent : Record::kFailed;
    if (error != 0) peers_[peer].record_error = error;
  }
  if (error != 0) o.dropped = true;
  if (o.pieces_open == 0 && (o.complete_given || o.dropped)) retire(o);
  if (error != 0 && !record) {
    fail(peer, error == EFAULT ? PeerFault::kProtocol : libfabric_fault_of(error), error, true);
  }
}

// Nothing of it is with the provider any more, nor in a queue.
void LibfabricLane::retire(Operation& o) {
  const u32 i = pool_.index(&o);
  Peer& p = peers_[o.peer];
  if (o.record == 0 && !o.dropped) {
    ++p.completed;
    done_.push(pool_, i);
    return;
  }
  if (o.record == 0) --p.open;
  pool_.give_back(i);
}

std::size_t LibfabricLane::poll_completions(std::span<u64> wr_ids) {
  std::size_t n = 0;
  while (n < wr_ids.size() && !done_.empty()) {
    const u32 i = done_.pop(pool_);
    const Operation& o = pool_[i];
    --peers_[o.peer].open;
    if (book_.state(o.peer) != PeerState::kClosed) wr_ids[n++] = o.wr_id;
    pool_.give_back(i);
  }
  return n;
}

std::size_t LibfabricLane::read(std::size_t most) {
  std::array<RmaEvent, kEventsPerRead> events;
  const std::size_t n = port_->poll(std::span(events).first(std::min(most, events.size())));
  for (std::size_t i = 0; i < n; ++i) {
    if (events[i].arrival) {
      on_arrival(events[i]);
      continue;
    }
    if (!pool_.owns(events[i].context)) continue;  // an error that belongs to no write of ours
    Operation& o = *static_cast<Operation*>(events[i].context);
    --o.pieces_open;
    --pieces_open_;
    OperationQueue& queue = peers_[o.peer].queue;
    if (queue.head == pool_.index(&o)) {  // some of it has not been handed over yet: only the first of a queue
      waiting_.push(o.peer);
      if (events[i].error == 0) continue;
      queue.pop(pool_);
    }
    settle(o, events[i].error);
  }
  return n;
}

u32 LibfabricLane::sender_of(const RmaEvent& e) const {
  u32 rank = shape_.num_ranks;
  switch (shape_.source_form) {
    case SourceForm::kTag: {
      const u32 tag = static_cast<u32>(e.data >> 32);
      rank = tag >> (32 - kSourceBits);
      if (rank < shape_.num_ranks && peers_[rank].tag_in != tag) rank = shape_.num_ranks;
      break;
    }
    case SourceForm::kAddress: rank = e.source < rank_of_.size() ? rank_of_[e.source] : shape_.num_ranks; break;
    case SourceForm::kImmediate: rank = unpack_immediate(static_cast<u32>(e.data)).source; break;
  }
  return rank < shape_.num_ranks && peers_[rank].known ? rank : shape_.num_ranks;
}

void LibfabricLane::on_arrival(const RmaEvent& e) {
  const u32 peer = sender_of(e);
  if (peer == shape_.num_ranks) {
    ++counters_.refused;
    return;
  }
  ++peers_[peer].arrived;
  // Not yet open: it has finished its greeting before we have.
  if (!book_.is_open(peer) && book_.state(peer) != PeerState::kAbsent) return;
  ++counters_.arrivals;
  counters_.arrival_bytes += e.bytes;
  arrivals_.push(Arrival{static_cast<u32>(e.data), peer});
}

std::size_t LibfabricLane::poll_arrivals(std::span<Arrival> out) {
  std::size_t n = 0;
  const auto take = [&] {
    while (n < out.size() && !arrivals_.empty()) {
      const Arrival a = arrivals_.pop();
      if (book_.state(a.peer) != PeerState::kClosed) out[n++] = a;
    }
  };
  take();
  for (int i = 0; i < kReadsPerPoll; ++i) {
    const std::size_t got = read(arrivals_.room());
    take();
    if (got == 0 || n == out.size()) break;
  }
  if (waiting_.size() != 0) pump();
  return n;
}

}  // namespace uccl

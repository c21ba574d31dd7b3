// What goes wrong on a verbs lane, and how a lane ends: failed completions, farewells, probes, the NIC's own faults.
#include <arpa/inet.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "transport/verbs/errors.h"
#include "transport/verbs/lane.h"

namespace uccl {
namespace {

using State = VerbsQueue::State;

constexpr u32 kFarewellAbrupt = 1u << 31;  // other queue pairs of the sender end without a farewell
constexpr u32 kFlushPatience = 64;  // polls that a flushed queue pair waits for its reason

u64 now_in_ns() {
  return static_cast<u64>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

PeerFault fault_of(int code) {
  if (code >= kVerbsEvent || code < kVerbsStatus) return PeerFault::kNetwork;  // kVerbsFlush too
  return verbs_fault(static_cast<u32>(code - kVerbsStatus));
}

}  // namespace

// Without a farewell: the peer has said its own, or is not reached.
void VerbsLane::end_peer(u32 peer, PeerFault fault, int code) {
  book_.fail(peer, fault, code);
  for (const u32 i : peers_[peer].queues) end_queue(queues_[i]);
}

void VerbsLane::fail_queue(VerbsQueue& q, int code) {
  const bool retries = code == (kVerbsStatus | static_cast<int>(ibv::kWcRetryExcErr));
  if (retries && nics_[q.endpoint]->link_down()) code = kVerbsEvent | static_cast<int>(ibv::kEventPortErr);
  end_peer(q.peer, fault_of(code), on_nic(code, q.endpoint));
}

void VerbsLane::fail_endpoint(u32 endpoint, int code) {
  for (VerbsQueue& q : queues_)
    if (q.endpoint == endpoint && q.state == State::kOpen) fail_queue(q, code);
}

// The first error of a queue pair says what happened; everything after it is only flushed. A flush that comes first
// means that the reason is on its way elsewhere: in the receive queue, or as an event.
void VerbsLane::completion_failed(VerbsQueue& q, u32 status) {
  if (q.state == State::kLeaving) {
    if (q.idle() || status != ibv::kWcWrFlushErr) end_queue(q);
    return;
  }
  if (q.state != State::kOpen && q.state != State::kBroken) return;
  if (status != ibv::kWcWrFlushErr) {
    num_broken_ -= q.state == State::kBroken;
    q.state = State::kOpen;
    fail_queue(q, kVerbsStatus | static_cast<int>(status));
  } else if (q.state == State::kOpen) {
    q.state = State::kBroken;
    q.patience = kFlushPatience;
    ++num_broken_;
  }
}

void VerbsLane::hear_farewell(VerbsQueue& q, u32 immediate) {
  q.heard_farewell = true;
  const bool abrupt = (immediate & kFarewellAbrupt) != 0;
  bool all = true;  // each queue pair's own farewell comes after its own writes
  for (const u32 i : peers_[q.peer].queues) all &= queues_[i].heard_farewell || queues_[i].state == State::kEnded;
  if (all || abrupt) end_peer(q.peer, PeerFault::kLost, static_cast<int>(immediate & ~kFarewellAbrupt));
}

// Says goodbye where nothing is on its way; elsewhere the queue pair is broken off, because what is on its way may not
// be read from its source any more. The peer then learns it from its own writes or probes.
void VerbsLane::part(u32 peer, u32 farewell) {
  u32 abrupt = 0;
  for (const u32 i : peers_[peer].queues) {
    VerbsQueue& q = queues_[i];
    drop_staged(q);
    if (q.state != State::kOpen || !q.idle()) {
      if (q.state != State::kEnded) abrupt = kFarewellAbrupt;
      end_queue(q);
    }
  }
  for (const u32 i : peers_[peer].queues) {
    VerbsQueue& q = queues_[i];
    if (q.state != State::kOpen) continue;
    Staged& s = stage(q, ibv::kWrSendWithImm, 0, false);
    s.wr.imm_data = htonl(farewell | abrupt);
    q.state = State::kLeaving;
    ibv::SendWr* bad = nullptr;
    s.wr.send_flags |= ibv::kSendSignaled;
    const bool sent = q.pair.send(&s.wr, &bad) == 0;
    if (sent) q.first = q.last = nullptr;
    if (!sent) end_queue(q);
  }
}

void VerbsLane::end_queue(VerbsQueue& q) {
  if (q.state == State::kEnded) return;
  num_broken_ -= q.state == State::kBroken;
  q.state = State::kEnded;
  drop_staged(q);
  q.pair.to_error();
}

// The staged entries themselves are reclaimed by the next flush().
void VerbsLane::drop_staged(VerbsQueue& q) {
  u32 n = 0;
  for (const ibv::SendWr* w = q.first; w != nullptr; w = w->next) ++n;
  q.first = q.last = nullptr;
  q.posted -= n;
  endpoints_[q.endpoint]->give_room(n);
}

// After the arrivals that came before them, so that a peer's last words are heard before its end is.
std::size_t VerbsLane::poll_events(std::span<PeerEvent> out) {
  if (const u64 now_ns = now_in_ns(); rounds_.looks(now_ns)) look_around(now_ns);
  for (std::size_t i = 0; num_broken_ != 0 && i < queues_.size(); ++i) {
    VerbsQueue& q = queues_[i];
    if (q.state == State::kBroken && --q.patience == 0) fail_queue(q, kVerbsStatus | int{ibv::kWcWrFlushErr});
  }
  return receives_drained_ ? book_.take_events(out) : 0;
}

void VerbsLane::look_around(u64 now_ns) {
  for (u32 e = 0; e < endpoints_.size(); ++e) {
    if (hears_events_) nics_[e]->poll_async();
    if (const int fault = nics_[e]->fault(); fault != 0) fail_endpoint(e, fault);
  }
  probe_some(now_ns);
}

// A NIC says nothing of a peer that has gone until something is sent there.
void VerbsLane::probe_some(u64 now_ns) {
  for (u64 left = rounds_.due(now_ns, queues_.size()); left != 0; --left) {
    VerbsQueue& q = queues_[next_probed_];
    next_probed_ = static_cast<u32>((next_probed_ + 1) % queues_.size());
    if (q.state != State::kOpen || !q.idle() || q.held() != 0 || !endpoints_[q.endpoint]->has_room(1)) continue;
    stage(q, ibv::kWrRdmaWrite, 0, false);
  }
  flush();
}

bool VerbsLane::all_sent() const {
  return std::all_of(queues_.begin(), queues_.end(),
                     [](const VerbsQueue& q) { return q.state != State::kOpen || q.idle(); });
}

bool VerbsLane::all_left() const {
  return std::none_of(queues_.begin(), queues_.end(), [](const VerbsQueue& q) { return q.state == State::kLeaving; });
}

// Polls as a worker would, so that completions, and farewells of peers that leave at the same moment, are heard.
bool VerbsLane::wait_all(bool (VerbsLane::*done)() const, u64 limit_ns) {
  const u64 deadline = now_in_ns() + limit_ns;
  u64 wr_ids[kBatch];
  Arrival dropped[kBatch];
  while (!(this->*done)()) {
    poll_completions(wr_ids);
    poll_arrivals(dropped);
    if (now_in_ns() > deadline) return false;
    sched_yield();
  }
  return true;
}

void VerbsLane::leave() {
  flush();
  wait_all(&VerbsLane::all_sent, tuning_.farewell_ns);
  for (u32 p = 0; p < peers_.size(); ++p) close_peer(p);
  wait_all(&VerbsLane::all_left, tuning_.farewell_ns);
}

}  // namespace uccl

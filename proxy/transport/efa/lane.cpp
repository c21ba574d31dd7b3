// Posting, completions and arrivals of EFA. Nothing here allocates, locks or throws once the lane is connected.
#include "transport/efa/lane.h"

#include <arpa/inet.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "transport/verbs/errors.h"

namespace uccl {
namespace {

constexpr u32 kControlCode = 0xffff;
constexpr auto kFarewellTime = std::chrono::seconds(1);

u64 now_in_ns() {
  return static_cast<u64>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

}  // namespace

u32 EfaLane::least_outstanding(const Peer& peer) const {
  u32 best = 0;
  for (u32 i = 1; i < peer.paths.size(); ++i) {
    if (rails_[peer.paths[i].nic]->outstanding < rails_[peer.paths[best].nic]->outstanding) best = i;
  }
  return best;
}

Route EfaLane::route_of(const WriteRequest& r, u32 path) const {
  const Peer& p = peers_[r.peer];
  const u32 nic = p.paths[path].nic;
  return {shared_.memories[nic].get(), p.spans.find(r), p.spans.chunk_bytes(), shared_.devices[nic].largest};
}

std::size_t EfaLane::take(std::span<const WriteRequest> requests) {
  std::size_t n = 0;
  for (; n < requests.size(); ++n) {
    const WriteRequest& r = requests[n];
    if (!book_.is_open(r.peer)) continue;
    Peer& p = peers_[r.peer];
    if (p.open == settings_.max_in_flight || free_.size() <= kControls) break;
    const u32 path = least_outstanding(p);
    Rail& rail = *rails_[p.paths[path].nic];
    const Route route = route_of(r, path);
    const Cut first = r.bytes == 0 || route.span == nullptr ? Cut{} : route.cut(r, 0);
    const u32 pieces = first.bytes == r.bytes ? 1 : first.bytes == 0 ? 0 : route.count_pieces(r);
    if (pieces == 0 || pieces > rail.depth) {
      refuse(r.peer, pieces != 0 ? EMSGSIZE : route.span == nullptr ? ERANGE : EFAULT);
      continue;
    }
    if (rail.outstanding + pieces > rail.depth) break;
    const u32 index = free_.back();
    free_.pop_back();
    requests_[index] = Request{r, 0, path, 0, Kind::kLast};
    start_request(index, route, first);
    ++p.open;
    ++counters_.writes;
    counters_.write_bytes += r.bytes;
  }
  return n;
}

// All pieces but the last; that one, with the immediate, when they are complete. `c` is the first, of most requests the
// only one.
void EfaLane::start_request(u32 index, const Route& route, Cut c) {
  Request& q = requests_[index];
  for (; q.at + c.bytes < q.write.bytes; c = route.cut(q.write, q.at)) {
    emit_piece(index, c, false);
    q.at += c.bytes;
  }
  if (q.left == 0) emit_piece(index, c, true);
}

ibv::QpEx* EfaLane::begin(u32 index, Kind kind, const EfaPath& path) {
  Rail& rail = *rails_[path.nic];
  ibv::QpEx* x = rail.pair->extended();
  if (!rail.started) x->wr_start(x);
  rail.started = true;
  x->wr_id = static_cast<u64>(index) << 8 | static_cast<u8>(kind);
  x->wr_flags = ibv::kSendSignaled;
  ++rail.outstanding;
  ++peers_[requests_[index].write.peer].outstanding;
  ++requests_[index].left;
  return x;
}

void EfaLane::emit_piece(u32 index, const Cut& c, bool last) {
  const Request& q = requests_[index];
  const EfaPath& path = peers_[q.write.peer].paths[q.path];
  ibv::QpEx* x = begin(index, last ? Kind::kLast : Kind::kPiece, path);
  const bool empty = c.bytes == 0;  // goes to where it touches nothing
  const u64 address = empty ? path.greeting_address : c.remote_address;
  const u32 rkey = empty ? path.greeting_rkey : path.rkeys[c.chunk];
  if (last)
    x->wr_rdma_write_imm(x, rkey, address, htonl(q.write.immediate));
  else
    x->wr_rdma_write(x, rkey, address);
  // The device looks at the key of a source without bytes too.
  const ibv::Sge& dummy = rails_[path.nic]->dummy;
  if (empty)
    x->wr_set_sge(x, dummy.lkey, dummy.addr, 0);
  else
    x->wr_set_sge(x, c.lkey, reinterpret_cast<u64>(q.write.source + q.at), static_cast<u32>(c.bytes));
  x->wr_set_ud_addr(x, path.handle, path.queue_pair, path.qkey);
}

bool EfaLane::send_control(u32 peer, u32 path_idx, u32 immediate) {
  const EfaPath& path = peers_[peer].paths[path_idx];
  if (free_.empty() || rails_[path.nic]->outstanding == rails_[path.nic]->depth) return false;
  const u32 index = free_.back();
  free_.pop_back();
  requests_[index] = Request{WriteRequest{peer, immediate}, 0, path_idx, 0, Kind::kControl};
  ibv::QpEx* x = begin(index, Kind::kControl, path);
  x->wr_send_imm(x, htonl(immediate));
  const ibv::Sge& dummy = rails_[path.nic]->dummy;
  x->wr_set_sge(x, dummy.lkey, dummy.addr, 0);
  x->wr_set_ud_addr(x, path.handle, path.queue_pair, path.qkey);
  return true;
}

bool EfaLane::greet(u32 peer, u32 path_idx, u64 proof_address, u32 lkey) {
  const EfaPath& path = peers_[peer].paths[path_idx];
  if (free_.empty() || rails_[path.nic]->outstanding == rails_[path.nic]->depth) return false;
  const u32 index = free_.back();
  free_.pop_back();
  requests_[index] = Request{WriteRequest{peer, 0}, 0, path_idx, 0, Kind::kGreeting};
  ibv::QpEx* x = begin(index, Kind::kGreeting, path);
  x->wr_rdma_write(x, path.greeting_rkey, path.greeting_address);
  x->wr_set_sge(x, lkey, proof_address, kProofBytes);
  x->wr_set_ud_addr(x, path.handle, path.queue_pair, path.qkey);
  return true;
}

bool EfaLane::take_refused(u32 peer, u32 path) {
  u64& refused = peers_[peer].refused;
  const bool was = (refused >> path & 1) != 0;
  refused &= ~(1ull << path);
  return was;
}

void EfaLane::flush() {
  for (u32 nic = 0; nic < rails_.size(); ++nic) ring(nic);
}

void EfaLane::ring(u32 nic) {
  Rail& rail = *rails_[nic];
  if (!rail.started) return;
  rail.started = false;
  const int error = rail.pair->extended()->wr_complete(rail.pair->extended());
  for (u32 p = 0; error != 0 && p < peers_.size(); ++p) {  // the queue pair is shared, so is its end
    if (!peers_[p].paths.empty() && peers_[p].paths[0].nic == nic)
      book_.fail(p, PeerFault::kNetwork, on_nic(error, nic));
  }
}

std::size_t EfaLane::poll_completions(std::span<u64> wr_ids) {
  for (u32 nic = 0; nic < rails_.size(); ++nic) {
    // libefa holds the send queue's lock from wr_start to wr_complete, and takes it for every completion it hands out.
    ring(nic);
    Completion batch[kBatch];
    const int n = rails_[nic]->sends.poll(batch);
    for (int i = 0; i < n; ++i) complete(batch[i]);
  }
  flush();  // last pieces and farewells that became possible
  std::size_t n = 0;
  while (num_complete_ != 0 && n < wr_ids.size()) {
    const u32 index = complete_[complete_begin_];
    complete_begin_ = (complete_begin_ + 1) % static_cast<u32>(complete_.size());
    --num_complete_;
    const WriteRequest& w = requests_[index].write;
    --peers_[w.peer].open;
    if (book_.is_open(w.peer)) wr_ids[n++] = w.wr_id;
    release(index);
  }
  return n;
}

void EfaLane::complete(const Completion& c) {
  const u32 index = static_cast<u32>(c.wr_id >> 8);
  const Kind kind = static_cast<Kind>(c.wr_id & 0xff);
  Request& q = requests_[index];
  Peer& p = peers_[q.write.peer];
  --rails_[p.paths[q.path].nic]->outstanding;
  --p.outstanding;
  --q.left;
  const bool greets = kind == Kind::kGreeting || (kind == Kind::kControl && q.write.immediate == kEfaGreeting);
  if (greets && c.status == ibv::kWcRemOpErr)
    p.refused |= 1ull << q.path;
  else if (c.status != ibv::kWcSuccess && !p.leaving)
    book_.fail(q.write.peer, verbs_fault(c.status),
               on_nic(kVerbsStatus | static_cast<int>(c.status), p.paths[q.path].nic));
  if (q.left == 0) {
    if (c.status == ibv::kWcSuccess && book_.state(q.write.peer) < PeerState::kLost)
      succeed(index, kind);
    else
      release(index);
  }
  if (p.leaving) say_farewells(q.write.peer);
}

void EfaLane::succeed(u32 index, Kind kind) {
  const Request& q = requests_[index];
  if (kind == Kind::kPiece) {
    emit_piece(index, route_of(q.write, q.path).cut(q.write, q.at), true);  // into the place that just became free
  } else if (kind == Kind::kLast) {
    complete_[(complete_begin_ + num_complete_++) % complete_.size()] = index;
  } else if (kind == Kind::kProbe) {
    release(index);
  } else {
    const u32 peer = q.write.peer, path = q.path;
    peers_[peer].greetings_done += kind == Kind::kControl && q.write.immediate == kEfaGreeting;
    release(index);
    if (kind == Kind::kGreeting) send_control(peer, path, kEfaGreeting);  // its request and place were just given back
  }
}

std::size_t EfaLane::poll_arrivals(std::span<Arrival> out) {
  std::size_t n = 0;
  for (; n < out.size() && stash_taken_ < stash_.size(); ++stash_taken_) {
    const Arrival& a = stash_[stash_taken_];
    if (book_.state(a.peer) != PeerState::kClosed) out[n++] = a;
  }
  receives_drained_ = stash_taken_ == stash_.size();
  for (u32 nic = 0; nic < rails_.size(); ++nic) {
    Rail& rail = *rails_[nic];
    Completion batch[kBatch];
    const std::size_t want = std::min<std::size_t>(kBatch, out.size() - n);
    const int got = rail.arrivals.poll(std::span(batch, want));
    for (int i = 0; i < got; ++i) n += arrive(batch[i], nic, &out[n]);
    if (got >= 0 && static_cast<std::size_t>(got) == want) receives_drained_ = false;
    refill(rail, got <= 0);
  }
  if (receives_drained_ && n == 0 && num_farewells_ != 0) report_farewells();
  return n;
}

bool EfaLane::arrive(const Completion& c, u32 nic, Arrival* out) {
  Rail& rail = *rails_[nic];
  const bool write = c.opcode == ibv::kWcRecvRdmaWithImm;
  if (c.status != ibv::kWcSuccess) return false;
  rail.owed_receives += !(write && rail.unsolicited);
  const u32 peer = rail.senders.find(c.source_handle, c.source_queue_pair);
  if (peer == EfaSenders::kNobody) {
    ++counters_.refused;
    return false;
  }
  Peer& p = peers_[peer];
  const PeerState state = book_.state(peer);
  if (!write && (c.immediate & ~kControlCode) == kEfaGreeting) ++p.greetings_heard;
  if (!write && (c.immediate & ~kControlCode) == kEfaFarewell && !p.heard_farewell) {
    p.heard_farewell = true;
    p.farewell_code = c.immediate & kControlCode;
    ++num_farewells_;
  }
  if (!write || state == PeerState::kClosed) return false;
  ++counters_.arrivals;
  counters_.arrival_bytes += c.bytes;
  *out = Arrival{c.immediate, peer};
  return true;
}

// Data of a peer that has finished connecting may come before its greeting was seen here: any order.
void EfaLane::poll_greetings() {
  u64 none[1];
  poll_completions(std::span(none, 0));
  for (u32 nic = 0; nic < rails_.size(); ++nic) {
    Completion batch[kBatch];
    const int got = rails_[nic]->arrivals.poll(batch);
    for (int i = 0; i < got; ++i) {
      Arrival a{};
      if (arrive(batch[i], nic, &a)) stash_.push_back(a);
    }
    refill(*rails_[nic], true);
  }
}

void EfaLane::refill(Rail& rail, bool now) {
  while (rail.owed_receives >= (now ? 1 : std::min(kBatch, rail.receives / 4 + 1))) {
    const u32 n = std::min(rail.owed_receives, kBatch);
    ibv::RecvWr* bad = nullptr;
    if (rail.pair->post_receives(&rail.blank[kBatch - n], &bad) != 0) return;  // tried again at the next poll
    rail.owed_receives -= n;
  }
}

// Only when nothing more lies in the queues: a farewell may overtake what was written before it.
void EfaLane::report_farewells() {
  num_farewells_ = 0;
  for (u32 p = 0; p < peers_.size(); ++p) {
    if (peers_[p].heard_farewell) book_.fail(p, PeerFault::kLost, static_cast<int>(peers_[p].farewell_code));
  }
}

std::size_t EfaLane::poll_events(std::span<PeerEvent> out) {
  if (const u64 now_ns = now_in_ns(); rounds_.looks(now_ns)) look_around(now_ns);
  return receives_drained_ ? book_.take_events(out) : 0;
}

void EfaLane::look_around(u64 now_ns) {
  for (u32 nic = 0; nic < shared_.nics.size(); ++nic) {
    if (hears_events_) shared_.nics[nic]->poll_async();
    const int fault = shared_.nics[nic]->fault();
    for (u32 p = 0; fault != 0 && p < peers_.size(); ++p) {
      if (book_.is_open(p)) book_.fail(p, PeerFault::kNetwork, on_nic(fault, nic));
    }
  }
  for (u64 left = rounds_.due(now_ns, peers_.size()); left != 0; --left) {
    probe(next_probed_);
    next_probed_ = (next_probed_ + 1) % static_cast<u32>(peers_.size());
    probed_path_ += next_probed_ == 0;
  }
  flush();
}

// A write of no bytes to a peer that nothing is on its way to: a device says nothing of a peer that has gone.
void EfaLane::probe(u32 peer) {
  const Peer& p = peers_[peer];
  if (!book_.is_open(peer) || p.outstanding != 0 || p.leaving || free_.size() <= kControls / 2) return;
  const u32 path_idx = probed_path_ % static_cast<u32>(p.paths.size());
  const EfaPath& path = p.paths[path_idx];
  Rail& rail = *rails_[path.nic];
  if (rail.outstanding == rail.depth) return;
  const u32 index = free_.back();
  free_.pop_back();
  requests_[index] = Request{WriteRequest{peer, 0}, 0, path_idx, 0, Kind::kProbe};
  ibv::QpEx* x = begin(index, Kind::kProbe, path);
  x->wr_rdma_write(x, path.greeting_rkey, path.greeting_address);
  x->wr_set_sge(x, rail.dummy.lkey, rail.dummy.addr, 0);
  x->wr_set_ud_addr(x, path.handle, path.queue_pair, path.qkey);
}

void EfaLane::part(u32 peer, u32 farewell) {
  peers_[peer].leaving = true;
  peers_[peer].farewell_code = farewell;
  say_farewells(peer);
  flush();
}

// The queue pair is shared: what is on its way cannot be called back, only waited for.
void EfaLane::say_farewells(u32 peer) {
  Peer& p = peers_[peer];
  if (p.outstanding == 0 && !p.farewell_sent) p.farewell_sent = send_control(peer, 0, kEfaFarewell | p.farewell_code);
}

bool EfaLane::all_quiet() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& p) { return p.outstanding == 0; });
}

bool EfaLane::wait_until(bool (EfaLane::*done)() const) {
  const auto deadline = std::chrono::steady_clock::now() + kFarewellTime;
  u64 wr_ids[kBatch];
  Arrival dropped[kBatch];
  while (!(this->*done)()) {
    poll_completions(wr_ids);
    poll_arrivals(dropped);
    if (std::chrono::steady_clock::now() > deadline) return false;
    sched_yield();
  }
  return true;
}

void EfaLane::leave() {
  flush();
  wait_until(&EfaLane::all_quiet);
  for (u32 p = 0; p < peers_.size(); ++p) close_peer(p);
  wait_until(&EfaLane::all_quiet);
}

EfaLane::~EfaLane() { leave(); }

}  // namespace uccl

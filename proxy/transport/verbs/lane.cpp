// Posting, completions and arrivals of verbs. Nothing here allocates, locks or throws once the lane is made.
#include "transport/verbs/lane.h"

#include <arpa/inet.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>

namespace uccl {
namespace {

// Beyond the in-flight bound: a farewell, a probe, and pieces of a request that is cut at chunk borders.
constexpr u32 kSpareDepth = 16;
// A sender's window opens when our NIC has acknowledged, not when we have polled: receives for a receiver that lags by
// so many windows. Beyond that its NIC asks senders to wait, which costs each of them 0.64 ms.
constexpr u32 kWindowsOfLag = 4;
// Messages of ours that take a receive: greeting and farewell of every queue pair.
constexpr u32 kOwnReceives = 2;

// One thread adds, others only read: no read-modify-write is needed, and a torn value cannot be seen.
void count(u64& counter, u64 more) { std::atomic_ref<u64>(counter).store(counter + more, std::memory_order_relaxed); }
u64 counted(const u64& counter) {
  return std::atomic_ref<u64>(const_cast<u64&>(counter)).load(std::memory_order_relaxed);
}

}  // namespace

VerbsLane::VerbsLane(const TransportSettings& settings, const VerbsTuning& tuning,
                     const std::vector<std::unique_ptr<VerbsNic>>& nics,
                     const std::vector<std::unique_ptr<VerbsMemory>>& memories, bool hears_events,
                     std::vector<Note>& notes)
    : JudgingLane(settings.num_ranks),
      settings_(settings),
      tuning_(tuning),
      nics_(nics),
      memories_(memories),
      hears_events_(hears_events),
      place_of_(settings.num_ranks, kNowhere),
      peers_(settings.num_ranks),
      staged_(kStaged),
      unsent_(static_cast<u32>(settings.num_ranks * nics.size() * settings.fabric.queue_pairs)),
      completed_(static_cast<u32>(settings.num_ranks * nics.size() * settings.fabric.queue_pairs)),
      rounds_(tuning.probe_ns) {
  const u32 per_peer = settings.fabric.queue_pairs;
  u32 others = 0;
  for (u32 peer = 0; peer < settings.num_ranks; ++peer)
    if (settings.reaches(peer)) place_of_[peer] = others++;
  EndpointShape shape;
  shape.num_queues = others * per_peer;
  shape.queue_depth = static_cast<u32>(ceil_div(settings.max_in_flight, per_peer)) + kSpareDepth;
  shape.receives = static_cast<u64>(others) * (kWindowsOfLag * settings.max_in_flight + per_peer * kOwnReceives);
  shape.inline_bytes = tuning.inline_bytes;
  shape.try_extended = tuning.extended;
  for (const auto& nic : nics) endpoints_.push_back(std::make_unique<VerbsEndpoint>(*nic, shape, notes));
  queues_.reserve(static_cast<std::size_t>(others) * nics.size() * per_peer);
  for (u32 peer = 0; peer < settings.num_ranks; ++peer) {
    if (place_of_[peer] == kNowhere) continue;
    for (u32 e = 0; e < nics.size(); ++e) {
      for (u32 i = 0; i < per_peer; ++i) {
        VerbsEndpoint& endpoint = *endpoints_[e];
        VerbsQueue& q = queues_.emplace_back(endpoint.make_queue_pair(), e, peer);
        q.slots.resize(std::bit_ceil(endpoint.queue_depth()));
        endpoint.table().add(q.pair.number(), static_cast<u32>(queues_.size() - 1));
      }
    }
  }
  for (auto& e : endpoints_) e->post_first_receives();
  if (settings.fabric.flushed_span < 0) return;
  held_.resize(nics.size());
  const u8* const at = settings.local.spans()[static_cast<std::size_t>(settings.fabric.flushed_span)].base;
  for (u32 e = 0; e < nics.size(); ++e)
    held_[e].flush = std::make_unique<VerbsFlush>(*nics[e], *memories[e], at, settings.fabric);
}

VerbsLane::~VerbsLane() { leave(); }

u32 VerbsLane::queue_index(u32 peer, u32 nic, u32 queue) const {
  return (place_of_[peer] * static_cast<u32>(endpoints_.size()) + nic) * settings_.fabric.queue_pairs + queue;
}

void VerbsLane::count_queues(u32 lane, std::vector<QueueCounters>& out) const {
  for (const VerbsQueue& q : queues_)
    out.push_back({lane, q.peer, q.endpoint, q.pair.number(), counted(q.writes), counted(q.write_bytes)});
}

void VerbsLane::flush_device(u64 limit_ns) {
  for (Held& h : held_) h.flush->run(limit_ns);
}

void VerbsLane::stash(const Arrival& arrival, u64 bytes) {
  stash_.push_back(arrival);
  ++counters_.arrivals;
  counters_.arrival_bytes += bytes;
}

void VerbsLane::open_peer(u32 peer, const VerbsAddress& address, std::vector<u32> queues) {
  Peer& p = peers_[peer];
  p.spans.set(address);
  for (const u32 i : queues) queues_[i].state = VerbsQueue::State::kOpen;
  p.queues = std::move(queues);
  book_.open(peer);
}

std::size_t VerbsLane::take(std::span<const WriteRequest> requests) {
  std::size_t n = 0;
  for (; n < requests.size(); ++n) {
    const WriteRequest& r = requests[n];
    if (!book_.is_open(r.peer)) continue;
    Peer& p = peers_[r.peer];
    if (p.open == settings_.max_in_flight) break;
    VerbsQueue& q = least_outstanding(p);
    VerbsEndpoint& endpoint = *endpoints_[q.endpoint];
    const Route route{memories_[q.endpoint].get(), p.spans.find(r), p.spans.chunk_bytes(),
                      nics_[q.endpoint]->port().max_msg_sz};
    const Cut first = r.bytes == 0 || route.span == nullptr ? Cut{} : route.cut(r, 0);
    const u32 pieces = first.bytes == r.bytes ? 1 : first.bytes == 0 ? 0 : route.count_pieces(r);
    if (pieces == 0 || pieces > endpoint.queue_depth()) {
      refuse(r.peer, pieces != 0 ? EMSGSIZE : route.span == nullptr ? ERANGE : EFAULT);
      continue;
    }
    if (q.held() + pieces > endpoint.queue_depth() || !endpoint.has_room(pieces)) break;
    stage_request(q, route, r, first);
    ++p.open;
    ++counters_.writes;
    counters_.write_bytes += r.bytes;
    count(q.writes, 1);
    count(q.write_bytes, r.bytes);
  }
  return n;
}

// No order is needed between a peer's writes, so each takes the queue pair with the least before it.
VerbsQueue& VerbsLane::least_outstanding(Peer& peer) {
  VerbsQueue* best = &queues_[peer.queues[0]];
  for (std::size_t i = 1; i < peer.queues.size(); ++i) {
    VerbsQueue& q = queues_[peer.queues[i]];
    if (q.held() < best->held()) best = &q;
  }
  return *best;
}

// All pieces go to one queue pair, whose order puts the last one, and its immediate, behind the others. `c` is the first,
// of them, and of most requests the only one.
void VerbsLane::stage_request(VerbsQueue& q, const Route& route, const WriteRequest& r, Cut c) {
  for (u64 at = 0;; c = route.cut(r, at)) {
    const bool last = at + c.bytes == r.bytes;
    Staged& s = stage(q, last ? ibv::kWrRdmaWriteWithImm : ibv::kWrRdmaWrite, r.wr_id, last);
    s.wr.imm_data = last ? htonl(r.immediate) : 0;
    if (c.bytes == 0) return;  // its target is the greeting area, of which it touches nothing
    s.wr.rdma.remote_addr = c.remote_address;
    s.wr.rdma.rkey = q.rkeys[c.chunk];
    s.sge = {reinterpret_cast<u64>(r.source + at), static_cast<u32>(c.bytes), c.lkey};
    s.wr.num_sge = 1;
    if (c.readable && c.bytes <= q.pair.inline_bytes()) s.wr.send_flags |= ibv::kSendInline;
    if (last) return;
    at += c.bytes;
  }
}

VerbsLane::Staged& VerbsLane::stage(VerbsQueue& q, u32 opcode, u64 wr_id, bool last) {
  if (num_staged_ == kStaged) flush();
  const u32 index = static_cast<u32>(&q - queues_.data());
  Staged& s = staged_[num_staged_++];
  s.wr = ibv::SendWr{};
  s.sge = ibv::Sge{};
  s.wr.sg_list = &s.sge;
  s.wr.wr_id = static_cast<u64>(index) << 32 | static_cast<u32>(q.posted);
  s.wr.opcode = opcode;
  s.wr.rdma.remote_addr = q.greeting_address;
  s.wr.rdma.rkey = q.greeting_rkey;
  if (++q.unsignalled >= tuning_.signal_every) {
    s.wr.send_flags = ibv::kSendSignaled;
    q.unsignalled = 0;
  }
  q.slots[q.posted & (q.slots.size() - 1)] = {wr_id, last};
  ++q.posted;
  endpoints_[q.endpoint]->take_room(1);
  if (q.last != nullptr) q.last->next = &s.wr;
  if (q.first == nullptr) q.first = &s.wr;
  q.last = &s.wr;
  unsent_.push(index);
  return s;
}

void VerbsLane::flush() {
  while (unsent_.size() != 0) ring_doorbell(queues_[unsent_.pop()]);
  num_staged_ = 0;
}

void VerbsLane::ring_doorbell(VerbsQueue& q) {
  if (q.first == nullptr) return;  // dropped since
  q.last->send_flags |= ibv::kSendSignaled;
  q.unsignalled = 0;
  ibv::SendWr* bad = nullptr;
  const int error = q.pair.send(q.first, &bad);
  q.first = error != 0 ? bad : nullptr;  // what the device did not take is dropped with the peer
  if (error == 0) q.last = nullptr;
  if (error != 0) fail_queue(q, error);
}

std::size_t VerbsLane::poll_completions(std::span<u64> wr_ids) {
  for (u32 e = 0; e < endpoints_.size(); ++e) poll_sends(e);
  std::size_t n = 0;
  for (u32 left = completed_.size(); left != 0 && n < wr_ids.size(); --left) {
    const u32 index = completed_.pop();
    VerbsQueue& q = queues_[index];
    if (!book_.is_open(q.peer)) continue;
    for (; q.reported != q.good && n < wr_ids.size(); ++q.reported) {
      const VerbsQueue::Slot& slot = q.slots[q.reported & (q.slots.size() - 1)];
      if (!slot.last) continue;
      wr_ids[n++] = slot.wr_id;
      --peers_[q.peer].open;
    }
    if (q.reported != q.good) completed_.push(index);
  }
  return n;
}

void VerbsLane::poll_sends(u32 endpoint) {
  Completion batch[kBatch];
  const int n = endpoints_[endpoint]->sends().poll(batch);
  for (int i = 0; i < n; ++i) complete(batch[i]);
}

// A completion answers for every earlier work request of its queue pair.
void VerbsLane::complete(const Completion& c) {
  const u32 index = static_cast<u32>(c.wr_id >> 32);
  VerbsQueue& q = queues_[index];
  const u32 newly = static_cast<u32>(c.wr_id) - static_cast<u32>(q.done) + 1;
  q.done += newly;
  endpoints_[q.endpoint]->give_room(newly);
  if (c.status != ibv::kWcSuccess) {
    completion_failed(q, c.status);
    return;
  }
  if (q.state == VerbsQueue::State::kOpen) {
    q.good = q.done;
    completed_.push(index);
  }
  if (q.state == VerbsQueue::State::kLeaving && q.idle()) end_queue(q);  // the farewell has arrived
}

std::size_t VerbsLane::take_stash(std::span<Arrival> out) {
  std::size_t n = 0;
  for (; n < out.size() && stash_taken_ < stash_.size(); ++stash_taken_) {
    const Arrival& a = stash_[stash_taken_];
    if (book_.state(a.peer) != PeerState::kClosed) out[n++] = a;
  }
  return n;
}

std::size_t VerbsLane::poll_arrivals(std::span<Arrival> out) {
  std::size_t n = stash_taken_ < stash_.size() ? take_stash(out) : 0;
  receives_drained_ = stash_taken_ == stash_.size();
  const u32 num = static_cast<u32>(endpoints_.size());
  for (u32 i = 0; i < num; ++i) {
    const u32 e = (next_endpoint_ + i) % num;
    bool bytes;
    n += held_.empty() ? poll_endpoint(e, out.subspan(n), &bytes) : poll_held(e, out.subspan(n));
  }
  next_endpoint_ = num < 2 ? 0 : (next_endpoint_ + 1) % num;
  return n;
}

// `bytes`: whether any of them has put some into memory.
std::size_t VerbsLane::poll_endpoint(u32 e, std::span<Arrival> out, bool* bytes) {
  Completion batch[kBatch];
  const std::size_t want = std::min<std::size_t>(kBatch, out.size());
  const int got = endpoints_[e]->receives().poll(std::span(batch, want));
  std::size_t n = 0;
  *bytes = false;
  for (int j = 0; j < got; ++j) {
    n += take_arrival(batch[j], e, &out[n]);
    *bytes |= batch[j].bytes != 0;
  }
  if (got >= 0 && static_cast<std::size_t>(got) == want) receives_drained_ = false;
  if (got <= 0) endpoints_[e]->refill_shared();  // a moment without arrivals: give back what is short of a batch
  return n;
}

// The thread does not wait for the read: it posts and completes meanwhile, and what comes meanwhile is the next batch.
std::size_t VerbsLane::poll_held(u32 e, std::span<Arrival> out) {
  Held& h = held_[e];
  if (h.first == h.end) {
    bool bytes;
    h.first = 0;
    h.end = static_cast<u32>(poll_endpoint(e, h.arrivals, &bytes));
    if (bytes && h.end != 0) h.flush->begin();
  }
  if (h.flush->runs()) h.flush->poll();
  if (h.flush->error() != 0) {
    h.first = h.end;
    fail_endpoint(e, h.flush->error());
  }
  std::size_t n = 0;
  for (; !h.flush->runs() && h.first != h.end && n != out.size(); ++h.first)
    if (book_.state(h.arrivals[h.first].peer) != PeerState::kClosed) out[n++] = h.arrivals[h.first];
  receives_drained_ &= h.first == h.end;
  return n;
}

bool VerbsLane::take_arrival(const Completion& c, u32 endpoint, Arrival* out) {
  const u32 index = owner(c.queue_pair, endpoint);
  if (index == QueuePairTable::kNone) return false;
  VerbsQueue& q = queues_[index];
  if (c.status != ibv::kWcSuccess) {
    completion_failed(q, c.status);
    return false;
  }
  const int error = endpoints_[endpoint]->used_receive(q.pair, q.owed_receives);
  if (error != 0 && q.state != VerbsQueue::State::kEnded) fail_queue(q, error);
  if (c.opcode == ibv::kWcRecv) {
    hear_farewell(q, c.immediate);
    return false;
  }
  if (c.opcode != ibv::kWcRecvRdmaWithImm || q.state == VerbsQueue::State::kGreeting ||
      book_.state(q.peer) == PeerState::kClosed)
    return false;
  ++counters_.arrivals;
  counters_.arrival_bytes += c.bytes;
  *out = Arrival{c.immediate, q.peer};
  return true;
}

}  // namespace uccl

// The proof of every queue pair. Control path: one thread for all lanes.
#include "transport/verbs/greeting.h"

#include <arpa/inet.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "transport/verbs/errors.h"

namespace uccl {
namespace {

constexpr std::size_t kMaxNamedReasons = 8;
constexpr u32 kBatch = 64;
constexpr const char* kNoRestart =
    " cannot begin anew, because its driver flushes a queue pair that has failed once for ever: bnxt_re is right from "
    "rdma-core 47 on";
constexpr u32 kPsnMask = 0xffffff;
constexpr u32 kPsnPurpose = 1u << 31;  // keeps packet numbers apart from proofs, which must not be guessed from them

// Both sides compute it, and no two lives of a group share it: late packets of an earlier life do not fit.
u32 first_psn(const std::string& secret, ProofPath path, const Nonce& from, const Nonce& to) {
  path.lane |= kPsnPurpose;
  const Proof t = prove_path(secret, path, from, to);
  return (static_cast<u32>(t[0]) | static_cast<u32>(t[1]) << 8 | static_cast<u32>(t[2]) << 16) & kPsnMask;
}

}  // namespace

GreetingArea::GreetingArea(const VerbsNic& nic, u32 num_slots) : nic_(nic), num_slots_(num_slots) {
  const u64 bytes = 2ull * std::max(num_slots, 1u) * kGreetingBytes;
  storage_.resize(bytes + kGreetingBytes);
  bytes_ = storage_.data() + (kGreetingBytes - reinterpret_cast<u64>(storage_.data()) % kGreetingBytes);
  errno = 0;
  mr_ = nic.functions().reg_mr(nic.pd(), bytes_, bytes, ibv::kAccessLocalWrite | ibv::kAccessRemoteWrite);
  if (mr_ == nullptr) {
    throw std::runtime_error("verbs: " + nic.name() + ": registering " + std::to_string(bytes) +
                             " bytes of host memory: " + verbs_errno(errno) + " (ulimit -l?)");
  }
}

GreetingArea::~GreetingArea() { nic_.functions().dereg_mr(mr_); }

std::vector<NicPair> pair_nics(u32 rank, u32 num_nics, u32 peer, u32 num_peer_nics) {
  std::vector<NicPair> pairs;
  // Shifted by the other's rank, so that peers with fewer NICs do not all meet the first one.
  for (u32 i = 0; i < std::min(num_nics, num_peer_nics); ++i)
    pairs.push_back({(i + peer) % num_nics, (i + rank) % num_peer_nics});
  return pairs;
}

VerbsGreeting::VerbsGreeting(const GreetingSetting& setting)
    : s_(setting), reasons_(setting.settings.num_ranks), resets_(setting.nics.size(), Reset::kUntried) {
  by_queue_.resize(s_.lanes.size());
  const std::size_t queues = (s_.settings.num_ranks - 1) * s_.nics.size() * s_.settings.fabric.queue_pairs;
  for (auto& v : by_queue_) v.assign(queues, ~0u);
}

VerbsGreeting::Link VerbsGreeting::make_link(u32 lane, u32 peer, const NicPair& nics, u32 q, u32 pair_idx) {
  const TransportSettings& s = s_.settings;
  const VerbsAddress& a = *s_.addresses[peer];
  const VerbsNicAddress& n = a.nics[nics.theirs];
  const VerbsNic& nic = *s_.nics[nics.mine];
  const u32 per_peer = s.fabric.queue_pairs;
  const u32 there = (s.rank * s.num_lanes + lane) * per_peer + q;  // our place in the peer's tables
  Link link{};
  link.lane = lane;
  link.queue = s_.lanes[lane]->queue_index(peer, nics.mine, q);
  link.peer = peer;
  link.nic = nics.mine;
  link.patience = s_.first_patience;
  link.number = pair_idx * per_peer + q;
  link.slot = (peer * s.num_lanes + lane) * per_peer + q;
  link.path.gid = nic.uses_gid() ? &n.gid : nullptr;
  link.path.lid = n.lid;
  link.path.queue_pair = n.queue_pairs[there];
  link.path.mtu = mtu_of_bytes(std::min(nic.mtu(), n.mtu));
  const ProofPath out{s.session, s.rank, peer, lane, link.number}, in{s.session, peer, s.rank, lane, link.number};
  link.path.send_psn = first_psn(s.secret, out, s_.nonce, a.nonce);
  link.begin_receive_psn = link.path.receive_psn = first_psn(s.secret, in, a.nonce, s_.nonce);
  link.expected = prove_path(s.secret, in, a.nonce, s_.nonce);
  const Proof said = prove_path(s.secret, out, s_.nonce, a.nonce);
  std::memcpy(s_.areas[nics.mine]->said(link.slot), said.data(), said.size());
  VerbsQueue& queue = s_.lanes[lane]->queue(link.queue);
  queue.rkeys = n.rkeys.data();
  queue.greeting_address = n.greeting_base + static_cast<u64>(there) * kGreetingBytes;
  queue.greeting_rkey = n.greeting_rkey;
  return link;
}

void VerbsGreeting::make_links() {
  const TransportSettings& s = s_.settings;
  for (u32 peer = 0; peer < s.num_ranks; ++peer) {
    if (s_.addresses[peer] == nullptr) continue;
    const u32 theirs = static_cast<u32>(s_.addresses[peer]->nics.size());
    const std::vector<NicPair> pairs = pair_nics(s.rank, static_cast<u32>(s_.nics.size()), peer, theirs);
    u32 link_of_peer = 0;
    for (u32 lane = 0; lane < s.num_lanes; ++lane) {
      for (u32 i = 0; i < pairs.size(); ++i) {
        for (u32 q = 0; q < s.fabric.queue_pairs; ++q) {
          links_.push_back(make_link(lane, peer, pairs[i], q, i));
          // Switches that route by hash send queue pairs of one port along one path: no two to a peer share a port.
          if (const u32 first = s.fabric.udp_source_port; first != 0)
            links_.back().path.udp_source_port = first + link_of_peer++ % (0x10000 - first);
          by_queue_[lane][links_.back().queue] = static_cast<u32>(links_.size() - 1);
        }
      }
    }
    reasons_[peer] = "no answer yet: is it in connect(), and is there a path to it?";
  }
}

void VerbsGreeting::run() {
  const auto deadline = Clock::now() + std::chrono::nanoseconds(s_.settings.connect_timeout_ns);
  make_links();
  for (Link& link : links_) {
    VerbsQueue& q = s_.lanes[link.lane]->queue(link.queue);
    try {
      q.pair.connect(s_.settings.fabric, link.path);
    } catch (const std::runtime_error& e) {
      throw std::runtime_error(std::string(e.what()) + "; the peer is rank " + std::to_string(link.peer));
    }
    if (s_.settings.rank < link.peer) speak(link);
  }
  while (num_proven_ != links_.size()) {
    const u32 before = num_proven_;
    for (u32 l = 0; l < s_.lanes.size(); ++l) {
      for (u32 e = 0; e < s_.lanes[l]->num_endpoints(); ++e) poll(l, e);
    }
    interrupt_unheard();
    restart_broken();
    if (num_proven_ == before) sched_yield();
    if (num_proven_ != links_.size() && Clock::now() > deadline) give_up();
  }
  open_all();
}

void VerbsGreeting::speak(Link& link) {
  VerbsQueue& q = s_.lanes[link.lane]->queue(link.queue);
  GreetingArea& area = *s_.areas[link.nic];
  ibv::Sge sge{reinterpret_cast<u64>(area.said(link.slot)), kProofBytes, area.lkey()};
  ibv::SendWr wr{};
  wr.wr_id = static_cast<u64>(link.queue) << 32 | static_cast<u32>(q.posted);
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = ibv::kWrRdmaWriteWithImm;
  wr.send_flags = ibv::kSendSignaled;
  wr.imm_data = htonl(link.number);
  wr.rdma.remote_addr = q.greeting_address;
  wr.rdma.rkey = q.greeting_rkey;
  q.slots[q.posted & (q.slots.size() - 1)] = {0, false};
  ibv::SendWr* bad = nullptr;
  if (const int e = q.pair.send(&wr, &bad); e != 0) {
    throw std::runtime_error("verbs: the first write to rank " + std::to_string(link.peer) + ": " + verbs_errno(e));
  }
  ++q.posted;
  s_.lanes[link.lane]->endpoint(q.endpoint).take_room(1);
  link.spoken = true;
  link.again = Clock::now() + link.patience;
}

void VerbsGreeting::poll(u32 lane, u32 endpoint) {
  VerbsEndpoint& e = s_.lanes[lane]->endpoint(endpoint);
  Completion batch[kBatch];
  const int n = e.sends().poll(batch);
  for (int i = 0; i < n; ++i) sent(batch[i], lane);
  poll_receives(lane, endpoint);
  e.refill_shared();
}

int VerbsGreeting::poll_receives(u32 lane, u32 endpoint) {
  Completion batch[kBatch];
  const int n = s_.lanes[lane]->endpoint(endpoint).receives().poll(batch);
  for (int i = 0; i < n; ++i) received(batch[i], lane, endpoint);
  return std::max(n, 0);
}

void VerbsGreeting::sent(const Completion& c, u32 lane) {
  const u32 index = static_cast<u32>(c.wr_id >> 32);
  VerbsQueue& q = s_.lanes[lane]->queue(index);
  ++q.done;
  q.good = q.reported = q.done;
  s_.lanes[lane]->endpoint(q.endpoint).give_room(1);
  Link* link = link_of(lane, index);
  if (link == nullptr) return;
  if (c.status != ibv::kWcSuccess || link->interrupted) {
    link->broken = true;
    if (!link->interrupted) reasons_[link->peer] = verbs_explain(kVerbsStatus | static_cast<int>(c.status));
    return;
  }
  if (!link->arrived) {
    link->arrived = true;
    num_proven_ += link->proven();
  }
}

void VerbsGreeting::received(const Completion& c, u32 lane, u32 endpoint) {
  VerbsLane& l = *s_.lanes[lane];
  const u32 index = l.owner(c.queue_pair, endpoint);
  Link* link = index == QueuePairTable::kNone ? nullptr : link_of(lane, index);
  if (link == nullptr) return;
  VerbsQueue& q = l.queue(index);
  if (c.status != ibv::kWcSuccess) return;  // a receive that was flushed; what was sent says why
  l.endpoint(endpoint).used_receive(q.pair, q.owed_receives);
  const std::string who = "verbs: rank " + std::to_string(s_.settings.rank) + ": rank " + std::to_string(link->peer);
  // irdma of rdma-core 51 and before takes the packet's operation out of a receive's completion.
  if (c.opcode == ibv::kWcRecv && !link->heard && s_.areas[link->nic]->has_heard(link->slot, link->expected))
    throw std::runtime_error(who + " has written, and the driver of this NIC calls it a send: Intel's is right from " +
                             "rdma-core 52 on (Debian 12 has 44)");
  if (c.opcode == ibv::kWcRecv) throw std::runtime_error(who + " left while connections were being made");
  if (link->heard) {  // the peer has finished connecting and works already
    ++link->after;
    l.stash(Arrival{c.immediate, link->peer}, c.bytes);
    return;
  }
  // The write's bytes are visible once its completion has been polled.
  if (!s_.areas[link->nic]->has_heard(link->slot, link->expected))
    throw std::runtime_error(who + " greeted with another secret or session");
  link->heard = true;
  reasons_[link->peer] = "it was heard, but our answer has not arrived there";
  if (!link->spoken) speak(*link);
  num_proven_ += link->proven();
}

bool VerbsGreeting::can_restart(u32 nic) {
  Reset& r = resets_[nic];
  if (r == Reset::kUntried)
    r = can_be_reset(*s_.nics[nic], s_.settings.fabric, kTrialNs) ? Reset::kWorks : Reset::kFails;
  return r == Reset::kWorks;
}

bool VerbsGreeting::left_to_nics() const {
  return std::find(resets_.begin(), resets_.end(), Reset::kFails) != resets_.end();
}

// The error state ends what is on its way: its completion says that it was flushed, and the link counts as broken.
void VerbsGreeting::interrupt_unheard() {
  const Clock::time_point now = Clock::now();
  for (Link& link : links_) {
    if (!link.unheard() || now < link.again || !can_restart(link.nic)) continue;
    VerbsQueue& q = s_.lanes[link.lane]->queue(link.queue);
    poll(link.lane, q.endpoint);  // this thread may have stood still since it looked
    if (!link.unheard()) continue;
    q.pair.to_error();
    link.patience = std::min<Clock::duration>(2 * link.patience, kMostPatience);
    link.interrupted = true;
  }
}

void VerbsGreeting::restart_broken() {
  for (Link& link : links_) {
    VerbsQueue& q = s_.lanes[link.lane]->queue(link.queue);
    if (!link.broken || !q.idle()) continue;  // its flushed completions first
    // What had arrived before, too: a peer that works already has sent packets that nobody has counted. And with receives of
    // its own, their flushed completions: the new ones need the queue's room.
    while (poll_receives(link.lane, q.endpoint) != 0) {}
    if (link.after != 0 || !can_restart(link.nic)) {
      throw std::runtime_error("verbs: the connection to rank " + std::to_string(link.peer) +
                               " broke while it was being proven: " + reasons_[link.peer] +
                               (link.after != 0 ? "" : "; " + s_.nics[link.nic]->name() + kNoRestart));
    }
    num_proven_ -= link.proven();
    link.broken = link.arrived = link.interrupted = false;
    link.path.receive_psn = (link.begin_receive_psn + (link.heard ? 1 : 0)) & kPsnMask;
    q.pair.reset();
    s_.lanes[link.lane]->endpoint(q.endpoint).renew_receives(q.pair, q.owed_receives);
    q.pair.connect(s_.settings.fabric, link.path);
    ++num_restarts_;
    if (link.spoken) speak(link);
  }
}

void VerbsGreeting::open_all() {
  for (u32 peer = 0; peer < s_.settings.num_ranks; ++peer) {
    if (s_.addresses[peer] == nullptr) continue;
    for (u32 lane = 0; lane < s_.lanes.size(); ++lane) {
      std::vector<u32> queues;
      for (const Link& link : links_)
        if (link.peer == peer && link.lane == lane) queues.push_back(link.queue);
      s_.lanes[lane]->open_peer(peer, *s_.addresses[peer], std::move(queues));
    }
  }
}

void VerbsGreeting::give_up() const {
  std::vector<bool> missing(s_.settings.num_ranks, false);
  for (const Link& link : links_)
    if (!link.proven()) missing[link.peer] = true;
  std::string ranks, reasons;
  std::size_t named = 0;
  for (u32 p = 0; p < s_.settings.num_ranks; ++p) {
    if (!missing[p]) continue;
    ranks += " " + std::to_string(p);
    if (named++ < kMaxNamedReasons)
      reasons += "; rank " + std::to_string(p) + " on " + s_.addresses[p]->nics[0].device + ": " + reasons_[p];
  }
  throw std::runtime_error("verbs: rank " + std::to_string(s_.settings.rank) + " could not connect to rank(s)" + ranks +
                           " within " + std::to_string(s_.settings.connect_timeout_ns / 1000000) + " ms" + reasons);
}

}  // namespace uccl

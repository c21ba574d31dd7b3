// Set-up of shared memory: publish a mailbox, map and check those of the peers, say hello in each, wait for theirs.
#include "transport/shared_memory/transport.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <stdexcept>
#include <thread>

namespace uccl {
namespace {

std::string rank_name(u32 rank) { return "rank " + std::to_string(rank); }

Proof mailbox_proof(const std::string& secret, u32 owner) { return prove(secret, "mailbox", {bytes_of(owner)}); }

}  // namespace

SharedMemoryTransport::SharedMemoryTransport(const TransportSettings& settings)
    : settings_(settings),
      layout_{settings.num_ranks, settings.num_lanes, std::bit_ceil(settings.max_in_flight)},
      peers_(settings.num_ranks) {
  if (settings_.shared_memory.span_fds.size() != settings_.local.spans().size()) {
    throw std::invalid_argument("shared_memory: " + std::to_string(settings_.shared_memory.span_fds.size()) +
                                " span_fds for " + std::to_string(settings_.local.spans().size()) + " spans");
  }
  mailbox_ = Segment::create("uccl_ep_mailbox", layout_.bytes());
  auto* h = static_cast<MailboxHeader*>(mailbox_->data());
  h->session = settings_.session;
  h->proof = mailbox_proof(settings_.secret, settings_.rank);
  h->version = kMailboxVersion;
  h->rank = settings_.rank;
  h->num_ranks = settings_.num_ranks;
  h->num_lanes = settings_.num_lanes;
  h->capacity = layout_.capacity;
  std::atomic_ref<u64>(h->magic).store(kMailboxMagic, std::memory_order_release);  // pairs with check_header
  for (u32 i = 0; i < settings_.num_lanes; ++i) lanes_.push_back(std::make_unique<SharedMemoryLane>(settings_, i));
}

std::string SharedMemoryTransport::local_address() {
  SharedMemoryAddress a;
  a.pid = getpid();
  a.mailbox_fd = mailbox_->fd();
  a.capacity = layout_.capacity;
  const std::vector<Span>& spans = settings_.local.spans();
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (settings_.shared_memory.span_fds[i] >= 0)
      a.spans.push_back({spans[i].offset, spans[i].bytes, settings_.shared_memory.span_fds[i]});
  }
  return a.text();
}

void SharedMemoryTransport::check_header(u32 peer, const MailboxHeader& h, u32 capacity) const {
  const auto refuse = [&](const std::string& what) {
    throw std::runtime_error("shared_memory: rank " + std::to_string(settings_.rank) + ": " + rank_name(peer) + " " +
                             what);
  };
  // Pairs with the constructor's release.
  if (std::atomic_ref<u64>(const_cast<u64&>(h.magic)).load(std::memory_order_acquire) != kMailboxMagic) {
    refuse("has no mailbox where its address points (another pid namespace, or the process has ended)");
  }
  if (h.version != kMailboxVersion) refuse("has mailbox version " + std::to_string(h.version));
  if (!equal_in_constant_time(bytes_of(h.proof), bytes_of(mailbox_proof(settings_.secret, h.rank))))
    refuse("has another secret");
  if (h.session != settings_.session) refuse("is of another session");
  if (h.rank != peer) refuse("says it is " + rank_name(h.rank));
  if (h.num_ranks != settings_.num_ranks) refuse("says " + std::to_string(h.num_ranks) + " ranks");
  if (h.num_lanes != settings_.num_lanes) refuse("says " + std::to_string(h.num_lanes) + " lanes");
  if (h.capacity != capacity) refuse("has another mailbox capacity than its address says");
}

std::unique_ptr<SharedMemoryTransport::PeerMemory> SharedMemoryTransport::map_peer(u32 peer,
                                                                                   const std::string& address) const {
  const SharedMemoryAddress a = SharedMemoryAddress::parse(address);
  auto m = std::make_unique<PeerMemory>();
  m->layout = MailboxLayout{settings_.num_ranks, settings_.num_lanes, a.capacity};
  try {
    m->mailbox = Segment::open(a.pid, a.mailbox_fd, m->layout.bytes());
    for (const SharedMemoryAddress::MappableSpan& s : a.spans) {
      m->segments.push_back(Segment::open(a.pid, s.fd, s.bytes));
      m->space.add(Span{s.offset, s.bytes, static_cast<u8*>(m->segments.back()->data())});
    }
  } catch (const std::exception& e) {
    throw std::runtime_error("shared_memory: rank " + std::to_string(settings_.rank) + " cannot map " +
                             rank_name(peer) + ": " + e.what());
  }
  check_header(peer, *static_cast<const MailboxHeader*>(m->mailbox->data()), a.capacity);
  return m;
}

void SharedMemoryTransport::connect(const std::vector<std::string>& addresses) {
  if (connected_) throw std::runtime_error("shared_memory: connect was called before");
  if (addresses.size() != settings_.num_ranks) {
    throw std::runtime_error("shared_memory: " + std::to_string(addresses.size()) + " addresses for " +
                             std::to_string(settings_.num_ranks) + " ranks");
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(settings_.connect_timeout_ns);
  for (u32 p = 0; p < settings_.num_ranks; ++p) {
    if (p != settings_.rank && !addresses[p].empty()) peers_[p] = map_peer(p, addresses[p]);
  }
  for (u32 p = 0; p < settings_.num_ranks; ++p) {
    if (!peers_[p]) continue;
    MailboxRing* ring = mailbox_ring(peers_[p]->mailbox->data(), peers_[p]->layout, settings_.rank, 0);
    std::atomic_ref<u32>(ring->hello).store(1, std::memory_order_release);  // pairs with wait_for_hellos
  }
  wait_for_hellos(deadline);
  for (u32 p = 0; p < settings_.num_ranks; ++p) {
    if (!peers_[p]) continue;
    for (u32 i = 0; i < settings_.num_lanes; ++i) {
      SharedMemoryLane::Mapping m;
      m.out = mailbox_ring(peers_[p]->mailbox->data(), peers_[p]->layout, settings_.rank, i);
      m.in = mailbox_ring(mailbox_->data(), layout_, p, i);
      m.out_capacity = peers_[p]->layout.capacity;
      m.in_capacity = layout_.capacity;
      m.memory = &peers_[p]->space;
      lanes_[i]->attach(p, m);
    }
  }
  connected_ = true;
}

void SharedMemoryTransport::wait_for_hellos(std::chrono::steady_clock::time_point deadline) const {
  for (;;) {
    std::string missing;
    for (u32 p = 0; p < settings_.num_ranks; ++p) {
      if (!peers_[p]) continue;
      MailboxRing* ring = mailbox_ring(mailbox_->data(), layout_, p, 0);
      if (std::atomic_ref<u32>(ring->hello).load(std::memory_order_acquire) == 0) missing += " " + std::to_string(p);
    }
    if (missing.empty()) return;
    if (std::chrono::steady_clock::now() >= deadline) {
      throw std::runtime_error("shared_memory: rank " + std::to_string(settings_.rank) +
                               " mapped every peer, but no hello came from rank(s)" + missing);
    }
    std::this_thread::yield();
  }
}

}  // namespace uccl

// Peers of a libfabric lane: how they are added and greeted, how they are lost, and what is said to them at the end.
#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "transport/libfabric/lane.h"
#include "wire/immediate.h"

namespace uccl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr u32 kLooksPerPoll = 4;  // inbox slots that poll_events looks at
constexpr std::size_t kRoomForAll = 1024;  // more than one read brings
// How long a goodbye waits for writes that its sender has seen complete and that are not here yet.
constexpr auto kPatience = std::chrono::seconds(1);
// How long a lane that ends lets its goodbyes travel; peers that do not take them notice by other means.
constexpr auto kFarewell = std::chrono::milliseconds(200);

const Greeting& slot_of(const MailboxSlot& slot, GreetingKind kind) {
  return kind == GreetingKind::kHello ? slot.hello : kind == GreetingKind::kAnswer ? slot.answer : slot.goodbye;
}
u64 offset_of(GreetingKind kind) {
  return kind == GreetingKind::kHello    ? offsetof(MailboxSlot, hello)
         : kind == GreetingKind::kAnswer ? offsetof(MailboxSlot, answer)
                                         : offsetof(MailboxSlot, goodbye);
}

}  // namespace

LibfabricLane::~LibfabricLane() {
  const auto is_open = [&](const Peer& p) { return book_.is_open(static_cast<u32>(&p - peers_.data())); };
  while (!arrivals_.empty()) arrivals_.pop();
  if (std::any_of(peers_.begin(), peers_.end(), is_open)) read(arrivals_.room());
  for (u32 p = 0; p < shape_.num_ranks; ++p) {
    look_for_goodbye(p);  // who has left is not written to: shm would touch what is gone
    close_peer(p);
  }
  // One that was closed before may still have its goodbye on the way: all of them are waited for.
  const auto travelling = [&](const Peer& p) { return p.records[2] == Record::kOnItsWay; };
  const auto deadline = Clock::now() + kFarewell;
  while (std::any_of(peers_.begin(), peers_.end(), travelling) && Clock::now() < deadline) {
    while (!arrivals_.empty()) arrivals_.pop();
    pump();
    if (read(arrivals_.room()) == 0) std::this_thread::sleep_for(kBetweenLooks);
  }
}

void LibfabricLane::add_peer(u32 peer, const LibfabricAddress::LaneAddress& address) {
  Peer& p = peers_[peer];
  const u64 slot = static_cast<u64>(shape_.rank) * sizeof(MailboxSlot);
  if (address.mailbox.bytes < 2 * static_cast<u64>(shape_.num_ranks) * sizeof(MailboxSlot)) {
    throw std::runtime_error("its mailbox is for fewer ranks");
  }
  p.destination = port_->add(address.name);
  p.mailbox = address.mailbox;
  p.mailbox.address += slot;
  p.mailbox.bytes = sizeof(MailboxSlot);
  p.spans = address.spans;
  u32 noise = 0;
  if (getrandom(&noise, sizeof(noise), 0) != static_cast<ssize_t>(sizeof(noise))) {
    throw std::runtime_error("the kernel gives no random number for it");
  }
  // The rank makes it unique, the rest hard to guess for who was never greeted.
  p.tag_in = peer << (32 - kSourceBits) | (noise & static_cast<u32>(low_bits(32 - kSourceBits)));
  if (p.destination < 4 * static_cast<u64>(kMaxRanks)) {  // address vectors count from 0
    rank_of_.resize(std::max<std::size_t>(rank_of_.size(), p.destination + 1), shape_.num_ranks);
    rank_of_[p.destination] = peer;
  }
  p.known = true;
}

Greeting LibfabricLane::received(u32 peer, GreetingKind kind) const {
  Greeting g;
  std::atomic_signal_fence(std::memory_order_seq_cst);  // the provider has written behind the compiler's back
  std::memcpy(&g, &slot_of(inbox_[peer], kind), sizeof(g));
  return g;
}

void LibfabricLane::send_record(u32 peer, const Greeting& greeting) {
  Peer& p = peers_[peer];
  const auto kind = static_cast<GreetingKind>(greeting.kind);
  const u32 i = pool_.take();
  if (i == kNoOperation) return;  // cannot be: three a peer are kept free
  u8* from = reinterpret_cast<u8*>(&outbox_[peer]) + offset_of(kind);
  std::memcpy(from, &greeting, sizeof(greeting));
  Operation& o = pool_[i];
  o.source = from;
  o.remote_address = p.mailbox.address + offset_of(kind);
  o.key = p.mailbox.key;
  o.bytes = sizeof(greeting);
  o.peer = peer;
  o.record = greeting.kind;
  p.records[greeting.kind - 1] = Record::kOnItsWay;
  p.queue.push(pool_, i);
  waiting_.push(peer);
}

void LibfabricLane::work() {
  pump();
  for (std::size_t n = 1; n != 0;) {
    arrivals_.make_room(kRoomForAll);
    n = read(arrivals_.room());
  }
}

// `tell`: the peer will report kLost with EPROTO, when it can still be reached.
void LibfabricLane::fail(u32 peer, PeerFault fault, int code, bool tell) {
  const bool was_open = book_.is_open(peer);
  if (!book_.fail(peer, fault, code)) return;
  drop_queue(peer);
  if (was_open && tell) say_goodbye(peer, EPROTO);
}

// Forgets what the provider has not got yet. What it has is freed when it completes.
void LibfabricLane::drop_queue(u32 peer) {
  Peer& p = peers_[peer];
  OperationQueue kept;
  while (!p.queue.empty()) {
    const u32 i = p.queue.pop(pool_);
    Operation& o = pool_[i];
    o.next = kNoOperation;
    if (o.record != 0) {
      kept.push(pool_, i);
      continue;
    }
    o.dropped = true;
    if (o.pieces_open == 0) retire(o);
  }
  p.queue = kept;
}

void LibfabricLane::say_goodbye(u32 peer, int code) {
  Peer& p = peers_[peer];
  if (p.records[2] == Record::kOnItsWay) return;
  Greeting g{};
  g.magic = kGreetingMagic;
  g.version = kGreetingVersion;
  g.kind = static_cast<u16>(GreetingKind::kGoodbye);
  g.session = shape_.session;
  g.source = shape_.rank;
  g.destination = peer;
  g.lane = shape_.index;
  g.writes = p.completed;
  g.code = static_cast<u32>(code);
  seal(g, shape_.secret);
  send_record(peer, g);  // on its way with the next flush or poll
}

void LibfabricLane::part(u32 peer, u32 farewell) {
  drop_queue(peer);
  say_goodbye(peer, static_cast<int>(farewell));
  if (farewell == 0) pump();  // else with the next flush or poll
}

void LibfabricLane::look_for_goodbyes() {
  const u32 most = std::min(kLooksPerPoll, shape_.num_ranks);
  for (u32 i = 0; i < most; ++i) {
    look_for_goodbye(next_look_);
    next_look_ = next_look_ + 1 == shape_.num_ranks ? 0 : next_look_ + 1;
  }
}

void LibfabricLane::look_for_goodbye(u32 peer) {
  if (!book_.is_open(peer)) return;
  // Written by the provider, in this thread or by a device: volatile makes it one load, now.
  if (*const_cast<volatile u32*>(&inbox_[peer].goodbye.magic) != kGreetingMagic) return;
  const Greeting g = received(peer, GreetingKind::kGoodbye);
  if (!is_genuine(g, shape_.secret, shape_.session, GreetingKind::kGoodbye)) return;  // or not all of it is here
  if (g.source != peer || g.destination != shape_.rank || g.lane != shape_.index) return;
  Peer& p = peers_[peer];
  if (p.arrived < g.writes) {  // its last words are still on their way
    if (!p.leaving) p.patience = Clock::now() + kPatience;
    p.leaving = true;
    if (Clock::now() < p.patience) return;
  }
  fail(peer, PeerFault::kLost, static_cast<int>(g.code), false);
}

// After the arrivals that came before them, so that a peer's last words are heard before its end is.
std::size_t LibfabricLane::poll_events(std::span<PeerEvent> out) {
  look_for_goodbyes();
  return arrivals_.empty() ? book_.take_events(out) : 0;
}

}  // namespace uccl

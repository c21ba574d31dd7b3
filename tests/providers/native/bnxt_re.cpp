// Broadcom's Thor-2 as libbnxt_re knows it: queues of 16-byte slots, one 64-bit doorbell for every queue of a context,
// completions by a phase bit. After an error the device ends a queue pair and the library flushes it by itself. Formats:
// rdma-core, providers/bnxt_re/bnxt_re-abi.h.
#include <atomic>
#include <bit>

#include "providers/native/device.h"

namespace box {
namespace {

constexpr u64 kPage = 4096;
constexpr u32 kSlot = 16, kHeaderSlots = 2, kFixedSlots = 8, kSharedBytes = 128, kReserved = 128;
constexpr u32 kVariable = 1, kInlineFlag = 0x10, kSignalledFlag = 1;
constexpr u32 kSendEntry = 0, kReceiveEntry = 1, kEndEntry = 14;
enum Operation : u32 { kSend = 0, kSendImmediate = 1, kWrite = 4, kWriteImmediate = 5, kRead = 6 };
enum Doorbell : u32 { kRingSends = 0, kRingReceives = 1, kRingShared = 2, kRingQueue = 4 };

struct OpenReply {
  u32 device, pairs, page_bytes, entry_bytes, queue_limit, reserved;
  u64 mask;
  u32 chip, chip2, mode, reserved2;
};
struct DomainReply {
  u32 domain, page, offset_low, offset_high;
};
struct QueueAsk {
  u64 entries, handle, mask;
};
struct QueueReply {
  u32 number, tail, phase, reserved;
  u64 mask;
};
struct PairAsk {
  u64 sends, receives, handle, mask;
  u32 slots, sequences;
};
struct SharedAsk {
  u64 entries, handle;
};
struct Number {
  u32 number, reserved;
  u64 mask;
};
struct Header {  // the first slot of a request
  u32 kind, immediate;
  u64 bytes;
  u32 operation() const { return kind & 0xff; }
  u32 flags() const { return kind >> 8 & 0xff; }
  u32 slots() const { return kind >> 16 & 0xff; }
};
struct Target {
  u64 address;
  u32 key, reserved;
};
struct Buffer {
  u64 address;
  u32 key, bytes;
};
struct Entry {
  u64 pair;
  u32 consumed, reserved;
  u64 reserved2;
  u32 kind, tag;
};
struct ReceiveEntry {
  u32 bytes, immediate;
  u64 pair, reserved;
  u32 kind, tag;
};
static_assert(sizeof(Entry) == 32 && sizeof(ReceiveEntry) == 32);

struct BnxtQueue final : Own {
  u8* entries = nullptr;
  u32 depth = 0;
  u64 consumed = 0;
};
struct Ring {  // of receives
  const u8* entries = nullptr;
  u32 depth = 0, bytes = 0, taken = 0;
};
struct BnxtShared final : Own {
  Ring ring;
};
struct BnxtPair final : Own {
  const u8* sends = nullptr;
  u64 handle = 0;
  u32 slots = 0, indices = 0;  // of the send queue; what a completion counts in
  u32 at = 0;  // the next request's slot
  u64 count = 0, told = 0;  // requests read, completed
  bool variable = false;
  Ring receives;
};

template <class T>
T at(const u8* p) {
  T t;
  std::memcpy(&t, p, sizeof(t));
  return t;
}

u32 status_of(u32 wc, bool of_receive) {
  if (wc == ibv::kWcSuccess) return 0;
  if (of_receive) return wc == ibv::kWcWrFlushErr ? 7 : 3;
  switch (wc) {
    case ibv::kWcLocLenErr: return 2;
    case ibv::kWcLocQpOpErr: return 3;
    case ibv::kWcLocProtErr: return 4;
    case ibv::kWcRemInvReqErr: return 6;
    case ibv::kWcRemAccessErr: return 7;
    case ibv::kWcRemOpErr: return 8;
    case ibv::kWcRnrRetryExcErr: return 9;
    case ibv::kWcRetryExcErr: return 10;
    case ibv::kWcWrFlushErr: return 11;
    default: return 1;
  }
}

class Bnxt final : public Provider {
 public:
  Bnxt() {
    identity_.device = "bnxt_re_";
    identity_.vendor = 0x14e4;
    identity_.part = 0x1760;  // no release lists it: a Thor-2 is known by what netlink says of its driver
    identity_.driver = 6;
    identity_.library_flushes = true;
  }
  const Identity& identity() const override { return identity_; }

  void limits(ibv::DeviceAttr& d) const override {
    d.max_srq = 1024;
    d.max_srq_wr = 16384;
    d.max_srq_sge = 6;
    d.max_sge = 13;
    d.max_qp_wr = 16384;
    d.max_cqe = 65536;
  }

  int open(Device&, const Extra& e) override {
    const u64 asked = e.read<u64>();
    any_depth_ = (asked & 1) != 0;
    variable_ = (asked & 2) != 0;
    constexpr u64 kHasChip = 1, kHasMode = 2, kAnyDepth = 0x10, kMessages = 0x40;
    OpenReply r{};
    r.pairs = 1 << 16;
    r.page_bytes = kPage;
    r.entry_bytes = sizeof(Entry);
    r.queue_limit = 65536;
    r.mask = kHasChip | kHasMode | kMessages | (any_depth_ ? kAnyDepth : 0);
    r.chip = 0x1760;
    r.mode = variable_ ? kVariable : 0;
    e.write(r);
    return 0;
  }

  void make_domain(Device& d, u32 handle, const Extra& e) override {
    if (doorbells_ == 0) doorbells_ = d.allocate(kPage);
    e.write(DomainReply{handle, 1, static_cast<u32>(doorbells_), static_cast<u32>(doorbells_ >> 32)});
  }

  int make_queue(Device&, Queue& q, const Extra& e) override {
    auto own = std::make_unique<BnxtQueue>();
    own->entries = reinterpret_cast<u8*>(e.read<QueueAsk>().entries);
    own->depth = depth(q.entries + 1);
    q.own = std::move(own);
    e.write(QueueReply{q.handle, 0, 1, 0, 0});
    return 0;
  }

  int make_shared(Device&, Shared& s, const Extra& e) override {
    auto own = std::make_unique<BnxtShared>();
    own->ring = {reinterpret_cast<const u8*>(e.read<SharedAsk>().entries), depth(s.entries + 1), kSharedBytes, 0};
    s.own = std::move(own);
    e.write(Number{s.handle, 0, 0});
    return 0;
  }

  int make_pair(Device&, Pair& p, const Extra& e) override {
    const auto ask = e.read<PairAsk>();
    if (p.type != ibv::kQptRc) return EOPNOTSUPP;
    auto own = std::make_unique<BnxtPair>();
    own->sends = reinterpret_cast<const u8*>(ask.sends);
    own->handle = ask.handle;
    own->variable = variable_;
    own->indices = variable_ ? ask.slots : depth(p.cap.max_send_wr + 1 + kReserved);
    own->slots = variable_ ? ask.slots : own->indices * kFixedSlots;
    const u32 receive_slots = variable_ ? kHeaderSlots + p.cap.max_recv_sge : kFixedSlots;
    own->receives = {reinterpret_cast<const u8*>(ask.receives), depth(p.cap.max_recv_wr + 1), receive_slots * kSlot, 0};
    p.own = std::move(own);
    e.write(Number{p.number, 0, 0});
    return 0;
  }

  void reset(Device&, Pair& p) override {
    auto& own = static_cast<BnxtPair&>(*p.own);
    own.at = own.receives.taken = 0;
    own.count = own.told = 0;
  }

  bool is_register(u64 offset) const override { return offset != 0 && offset == doorbells_; }
  long long mapped(Device&, u64 offset, u64) override { return static_cast<long long>(offset); }
  void fetch(Device&, Pair&) override {}  // doorbells say all

  void rang(Device& d, u64, u64 value) override {
    const u32 index = value & 0xffffff, number = value >> 32 & 0xfffff;
    switch (value >> 60) {
      case kRingSends:
        if (const auto p = d.pairs.find(number); p != d.pairs.end()) fetch_sends(d, *p->second, index);
        break;
      case kRingReceives:
        if (const auto p = d.pairs.find(number); p != d.pairs.end())
          fetch_ring(d, static_cast<BnxtPair&>(*p->second->own).receives, index, p->second->receives);
        break;
      case kRingShared:
        if (const auto s = d.shared.find(number); s != d.shared.end())
          fetch_ring(d, static_cast<BnxtShared&>(*s->second->own).ring, index, s->second->receives);
        break;
      case kRingQueue:
        if (const auto q = d.queues.find(number); q != d.queues.end()) {
          auto& own = static_cast<BnxtQueue&>(*q->second->own);
          own.consumed += (index + own.depth - own.consumed % own.depth) % own.depth;
        }
        break;
      default: break;
    }
  }

  u32 unread(Device&, Queue& q) override {
    return static_cast<u32>(q.written - static_cast<BnxtQueue&>(*q.own).consumed);
  }

  void complete(Device&, Queue& q, const Pair& p, const Completion& c) override {
    auto& own = static_cast<BnxtPair&>(*p.own);
    const u32 status = status_of(c.status, c.of_receive) << 8;
    if (c.of_receive) {
      ReceiveEntry e{};
      e.bytes = static_cast<u32>(c.bytes);
      e.immediate = c.immediate;
      e.pair = own.handle;
      const u32 flags =
          (p.shared != nullptr ? 1u : 0u) | (c.has_immediate ? 2u : 0u) | (c.kind == Request::Kind::kWrite ? 8u : 0u);
      e.kind = flags << 16 | status | kReceiveEntry << 1;
      e.tag = static_cast<u32>(c.token);
      put(q, e);
      return;
    }
    // An error is said of one request; the library believes that all before it are told of.
    if (c.status != ibv::kWcSuccess && c.token != own.told) {
      put(q, Entry{own.handle, static_cast<u32>(c.token % own.indices), 0, 0, kSendEntry << 1, 0});
      ++q.written;
    }
    own.told = c.token + 1;
    put(q, Entry{own.handle, static_cast<u32>(own.told % own.indices), 0, 0, status | kSendEntry << 1, 0});
  }

  void ended(Device&, Pair& p) override {
    for (Queue* q : {p.sends_to.get(), p.receives_to.get()}) {
      put(*q, Entry{static_cast<BnxtPair&>(*p.own).handle, 0, 0, 0, kEndEntry << 1, 0});
      ++q->written;
    }
  }

 private:
  u32 depth(u32 entries) const { return any_depth_ ? entries : std::bit_ceil(entries); }

  template <class E>
  static void put(Queue& q, const E& e) {
    const auto& own = static_cast<BnxtQueue&>(*q.own);
    u8* to = own.entries + q.written % own.depth * sizeof(E);
    const u32 phase = (q.written / own.depth & 1) == 0 ? 1 : 0;
    std::memcpy(to, &e, offsetof(E, kind));
    std::memcpy(to + offsetof(E, tag), &e.tag, sizeof(e.tag));
    auto* kind = reinterpret_cast<u32*>(to + offsetof(E, kind));
    // Release: pairs with the library's barrier behind its read of the phase.
    std::atomic_ref(*kind).store(e.kind | phase, std::memory_order_release);
  }

  static void fetch_ring(Device& d, Ring& ring, u32 rung, std::deque<Receive>& to) {
    if (rung >= ring.depth) {
      find(Rule::kDescriptor, d.name() + ": a doorbell beyond the receives");
      return;
    }
    for (; ring.taken != rung; ring.taken = (ring.taken + 1) % ring.depth) {
      const u8* entry = ring.entries + static_cast<u64>(ring.taken) * ring.bytes;
      const auto header = at<Header>(entry);
      Receive r{{}, header.bytes & 0xffffffff};
      if (header.slots() <= kHeaderSlots || header.slots() * kSlot > ring.bytes)
        find(Rule::kReceive, d.name() + ": a receive of " + std::to_string(header.slots()) + " slots at " +
                                 std::to_string(ring.taken) + " of " + std::to_string(ring.depth) + ", rung " +
                                 std::to_string(rung) + "; the device wants a scatter entry");
      for (u32 i = kHeaderSlots; i < header.slots() && (i + 1) * kSlot <= ring.bytes; ++i) {
        const auto b = at<Buffer>(entry + i * kSlot);
        r.pieces.push_back({b.address, b.bytes, b.key});
      }
      to.push_back(std::move(r));
    }
  }

  static void fetch_sends(Device& d, Pair& p, u32 rung) {
    auto& own = static_cast<BnxtPair&>(*p.own);
    const u32 end = own.variable ? rung : rung * kFixedSlots;
    while (own.at != end) {
      auto slot = [&](u32 i) { return own.sends + (own.at + i) % own.slots * kSlot; };
      const auto header = at<Header>(slot(0));
      const u32 used = header.slots(), left = (end + own.slots - own.at) % own.slots;
      Request r = decode(header, slot);
      r.token = own.count++;
      const u32 operation = header.operation();
      const bool known = operation <= kSendImmediate || (operation >= kWrite && operation <= kRead);
      r.broken = end >= own.slots || used < kHeaderSlots || used > left || !known;
      if (r.broken)
        find(Rule::kDescriptor, d.name() + ": a request of " + std::to_string(used) + " slots with operation " +
                                    std::to_string(operation) + " where " + std::to_string(left) + " were rung for");
      own.at = r.broken ? end : (own.at + (own.variable ? used : kFixedSlots)) % own.slots;
      p.requests.push_back(std::move(r));
      if (end >= own.slots) return;
    }
  }

  template <class Slot>
  static Request decode(const Header& header, const Slot& slot) {
    Request r;
    const u32 operation = header.operation();
    r.kind = operation <= kSendImmediate ? Request::Kind::kSend
             : operation == kRead        ? Request::Kind::kRead
                                         : Request::Kind::kWrite;
    r.has_immediate = operation == kSendImmediate || operation == kWriteImmediate;
    r.immediate = header.immediate;
    r.signalled = (header.flags() & kSignalledFlag) != 0;
    r.is_inline = (header.flags() & kInlineFlag) != 0;
    const auto target = at<Target>(slot(1));
    r.remote = target.address;
    r.rkey = target.key;
    for (u32 i = kHeaderSlots; i < header.slots(); ++i) {
      if (r.is_inline) {
        r.inside.insert(r.inside.end(), slot(i), slot(i) + kSlot);
        continue;
      }
      const auto b = at<Buffer>(slot(i));
      r.pieces.push_back({b.address, b.bytes, b.key});
      r.bytes += b.bytes;
    }
    if (r.is_inline) r.bytes = std::min<u64>(header.bytes & 0xffffffff, r.inside.size());
    if (r.is_inline) r.inside.resize(r.bytes);
    return r;
  }

  Identity identity_;
  u64 doorbells_ = 0;
  bool any_depth_ = false, variable_ = false;
};

}  // namespace

std::unique_ptr<Provider> make_bnxt_re() { return std::make_unique<Bnxt>(); }

}  // namespace box

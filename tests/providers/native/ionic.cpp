// AMD's Pollara as libionic knows it: rings of a power of two in the program's own memory, big endian, one doorbell page
// with a word a kind of queue, two pipes with completion queues of their own, completions of sends by message number.
// After an error the library flushes. Formats: rdma-core, providers/ionic/ionic_fw_types.h, version 1.
#include <endian.h>

#include <atomic>

#include "providers/native/device.h"

namespace box {
namespace {

constexpr u64 kPage = 4096;
constexpr u32 kPipes = 2, kHeaderBytes = 32, kPieceBytes = 16, kEntryBytes = 32, kStrideLimit = 9, kPiecesInFront = 2;
constexpr u32 kSendsWord = 0, kReceivesWord = 1, kQueuesWord = 2;  // of the doorbell page
constexpr u32 kReceived = 1, kSentMessages = 2, kSentEntry = 3, kErrorFlag = 2;
constexpr u32 kInlineFlag = 4, kSignalledFlag = 8, kShortFormat = 0xf000;
constexpr u32 kFlushed = 4;  // of a status
enum Operation : u8 { kSend = 0, kSendImmediate = 2, kRead = 3, kWrite = 4, kWriteImmediate = 5, kOperations = 11 };

struct OpenReply {
  u32 reserved, page_log;
  u64 doorbells;
  u16 version;
  u8 operations, admin_operations, sends, receives, queues, admin, stride_log, pieces, pipes, express[2], reserved2[3];
  u64 clock;
};
struct RingAsk {
  u64 at;
  u32 bytes;
  u16 mask;
  u8 depth_log, stride_log;
};
struct QueueAsk {
  RingAsk rings[kPipes];
  u8 pipes, reserved[7];
};
struct QueueReply {
  u32 numbers[kPipes];
  u8 pipes, reserved[7];
};
struct PairAsk {
  RingAsk sends, receives;
  u8 formats[2], memory[2], pipes, reserved[3];
};
struct PairReply {
  u32 number;
  u8 memory[2], pipe, reserved;
  u64 offsets[2];
};
struct Header {
  u64 index;
  u8 operation, pieces;
  u16 flags;
  u32 immediate;
  u32 high, low, key, bytes;  // of a request
};
static_assert(sizeof(Header) == kHeaderBytes);
struct Entry {
  u64 index;  // of receives
  u32 source, reserved[2], immediate;
  u32 bytes, kind;
};
struct SentEntry {
  u32 reserved, messages, reserved2[2];
  u64 index;
  u32 status, kind;
};
static_assert(sizeof(Entry) == kEntryBytes && sizeof(SentEntry) == kEntryBytes);

struct Ring {
  u8* at = nullptr;
  u32 mask = 0, stride_log = 0;
  u64 done = 0, read = 0;  // entries that the device has taken or written; of completions, that the library has told of
  explicit Ring(const RingAsk& a) : at(reinterpret_cast<u8*>(a.at)), mask(a.mask), stride_log(a.stride_log) {}
  u8* entry() const { return at + ((done & mask) << stride_log); }
};
struct IonicQueue final : Own {
  std::vector<Ring> rings;
};
struct IonicPair final : Own {
  Ring sends, receives;
  u32 pipe;
  u64 messages = 0;  // as both sides count them
  IonicPair(const PairAsk& a, u32 p) : sends(a.sends), receives(a.receives), pipe(p) {}
};

u32 status_of(u32 wc) {
  switch (wc) {
    case ibv::kWcLocLenErr: return 1;
    case ibv::kWcLocQpOpErr: return 2;
    case ibv::kWcLocProtErr: return 3;
    case ibv::kWcWrFlushErr: return kFlushed;
    case ibv::kWcRemInvReqErr: return 8;
    case ibv::kWcRemAccessErr: return 9;
    case ibv::kWcRemOpErr: return 10;
    case ibv::kWcRetryExcErr: return 11;
    case ibv::kWcRnrRetryExcErr: return 12;
    default: return 13;
  }
}

void read_pieces(const u8* p, u32 count, std::vector<Piece>& to) {
  for (u32 i = 0; i < count; ++i, p += kPieceBytes) {
    struct {
      u64 address;
      u32 bytes, key;
    } s;
    std::memcpy(&s, p, sizeof(s));
    to.push_back({be64toh(s.address), be32toh(s.bytes), be32toh(s.key)});
  }
}

class Ionic final : public Provider {
 public:
  Ionic() {
    identity_.device = "ionic_";
    identity_.vendor = 0x1dd8;
    identity_.part = 0x1007;
    identity_.driver = 21;
    identity_.library_flushes = true;
  }
  const Identity& identity() const override { return identity_; }

  void limits(ibv::DeviceAttr& d) const override {
    d.max_srq = 0;
    d.max_sge = 8;
    d.max_qp_wr = 0xffff;
    d.max_cqe = 0xffff - 100;  // what libionic keeps for itself
  }

  int open(Device& d, const Extra& e) override {
    if (doorbells_ == 0) doorbells_ = d.allocate(kPage);
    OpenReply r{};
    r.page_log = 12;
    r.doorbells = doorbells_;
    r.version = 1;
    r.operations = kOperations;
    r.sends = kSendsWord;
    r.receives = kReceivesWord;
    r.queues = kQueuesWord;
    r.stride_log = kStrideLimit;
    r.pieces = 8;
    r.pipes = kPipes;
    e.write(r);
    return 0;
  }

  int make_queue(Device&, Queue& q, const Extra& e) override {
    const auto ask = e.read<QueueAsk>();
    if (ask.pipes != (1 << kPipes) - 1) return EINVAL;
    auto own = std::make_unique<IonicQueue>();
    for (const RingAsk& r : ask.rings) own->rings.emplace_back(r);
    q.entries = own->rings[0].mask;
    q.own = std::move(own);
    e.write(QueueReply{{q.handle * kPipes, q.handle * kPipes + 1}, ask.pipes, {}});
    return 0;
  }

  int make_pair(Device&, Pair& p, const Extra& e) override {
    const auto ask = e.read<PairAsk>();
    if (p.type != ibv::kQptRc) return EOPNOTSUPP;
    const u32 pipe = p.number % kPipes;
    p.own = std::make_unique<IonicPair>(ask, pipe);
    p.cap.max_inline_data = (1u << ask.sends.stride_log) - kHeaderBytes;  // what an entry holds; the library says it
    e.write(PairReply{p.number, {}, static_cast<u8>(pipe), 0, {}});
    return 0;
  }

  void reset(Device&, Pair& p) override {
    auto& own = static_cast<IonicPair&>(*p.own);
    own.sends.done = own.receives.done = 0;
    own.messages = 0;
  }

  bool is_register(u64 offset) const override { return offset != 0 && offset == doorbells_; }
  long long mapped(Device&, u64 offset, u64) override { return static_cast<long long>(offset); }
  void fetch(Device&, Pair&) override {}  // doorbells say all

  void rang(Device& d, u64 offset, u64 value) override {
    const u32 number = value >> 24 & 0xffffff, index = value & 0xffff;
    if (offset == kQueuesWord * sizeof(u64)) {
      const auto q = d.queues.find(number / kPipes);
      if (q == d.queues.end()) return;
      Ring& ring = static_cast<IonicQueue&>(*q->second->own).rings[number % kPipes];
      ring.read += (index - ring.read) & ring.mask;
      return;
    }
    const auto p = d.pairs.find(number);
    if (p == d.pairs.end()) return;
    auto& own = static_cast<IonicPair&>(*p->second->own);
    const bool sends = offset == kSendsWord * sizeof(u64);
    for (Ring& ring = sends ? own.sends : own.receives; (ring.done & ring.mask) != (index & ring.mask); ++ring.done) {
      Header h;
      std::memcpy(&h, ring.entry(), sizeof(h));
      if (index > ring.mask || h.index != (ring.done & ring.mask))
        find(Rule::kDescriptor, d.name() + ": entry " + std::to_string(h.index) + " at " +
                                    std::to_string(ring.done & ring.mask) + ", rung " + std::to_string(index));
      if (index > ring.mask) return;
      if (sends) {
        p->second->requests.push_back(decode(d, h, ring));
        p->second->requests.back().token = ++own.messages;
      } else {
        Receive r{{}, ring.done & ring.mask};
        read_pieces(ring.entry() + kHeaderBytes, h.pieces, r.pieces);
        p->second->receives.push_back(std::move(r));
      }
    }
  }

  u32 unread(Device&, Queue& q) override {
    u64 most = 0;
    for (const Ring& r : static_cast<IonicQueue&>(*q.own).rings) most = std::max(most, r.done - r.read);
    return static_cast<u32>(most);
  }

  void complete(Device&, Queue& q, const Pair& p, const Completion& c) override {
    const u32 error = c.status != ibv::kWcSuccess ? kErrorFlag : 0;
    if (c.of_receive) {
      Entry e{};
      e.index = htole64(c.token);
      const u32 operation = c.kind == Request::Kind::kWrite ? 3 : c.has_immediate ? 2 : 0;
      e.source = htobe32(c.source_queue_pair | operation << 24);
      e.immediate = htobe32(c.immediate);
      e.bytes = htobe32(error != 0 ? status_of(c.status) : static_cast<u32>(c.bytes));
      put(q, p, e, kReceived << 5 | error);
      return;
    }
    SentEntry e{};
    e.messages = htobe32(static_cast<u32>(c.token));
    e.status = htobe32(error != 0 ? status_of(c.status) : 0);
    put(q, p, e, kSentMessages << 5 | error);
  }

  void ended(Device&, Pair& p) override {
    SentEntry sent{};
    sent.status = htobe32(kFlushed);
    put(*p.sends_to, p, sent, kSentEntry << 5 | kErrorFlag);
    Entry received{};
    received.bytes = htobe32(kFlushed);
    put(*p.receives_to, p, received, kReceived << 5 | kErrorFlag);
  }

 private:
  template <class E>
  static void put(Queue& q, const Pair& p, const E& e, u32 kind) {
    Ring& ring = static_cast<IonicQueue&>(*q.own).rings[static_cast<const IonicPair&>(*p.own).pipe];
    u8* to = ring.entry();
    const u32 colour = (ring.done & (ring.mask + 1u)) == 0 ? 1 : 0;
    std::memcpy(to, &e, offsetof(E, kind));
    // Release: pairs with the library's barrier behind its read of the colour.
    std::atomic_ref(*reinterpret_cast<u32*>(to + offsetof(E, kind)))
        .store(htobe32(p.number << 8 | kind | colour), std::memory_order_release);
    ++ring.done;
  }

  static Request decode(const Device& d, const Header& h, const Ring& ring) {
    Request r;
    const u32 flags = be16toh(h.flags);
    r.kind = h.operation == kRead                                    ? Request::Kind::kRead
             : h.operation == kSend || h.operation == kSendImmediate ? Request::Kind::kSend
                                                                     : Request::Kind::kWrite;
    r.broken = h.operation > kWriteImmediate || h.operation == 1;
    if (r.broken) find(Rule::kDescriptor, d.name() + ": operation " + std::to_string(h.operation));
    r.has_immediate = h.operation == kSendImmediate || h.operation == kWriteImmediate;
    r.immediate = be32toh(h.immediate);
    r.signalled = (flags & kSignalledFlag) != 0;
    r.is_inline = (flags & kInlineFlag) != 0;
    r.remote = static_cast<u64>(be32toh(h.high)) << 32 | be32toh(h.low);
    r.rkey = be32toh(h.key);
    r.bytes = be32toh(h.bytes);
    const u8* payload = ring.entry() + kHeaderBytes;
    if (r.is_inline)
      r.inside.assign(payload, payload + std::min<u64>(r.bytes, (1u << ring.stride_log) - kHeaderBytes));
    else
      read_pieces(payload + ((flags & kShortFormat) != 0 ? kPiecesInFront * kPieceBytes : 0), h.pieces, r.pieces);
    return r;
  }

  Identity identity_;
  u64 doorbells_ = 0;
};

}  // namespace

std::unique_ptr<Provider> make_ionic() { return std::make_unique<Ionic>(); }

}  // namespace box

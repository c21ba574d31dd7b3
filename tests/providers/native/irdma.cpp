// Intel's E810 as libirdma knows it: entries of 32 bytes in the program's own memory, new ones by a valid bit that turns
// over with each lap, completions likewise, two entries where there is an immediate. After an error the device writes one
// flushed completion a queue and the library makes the others of it. Formats: rdma-core, providers/irdma/defs.h.
#include <atomic>
#include <bit>

#include "providers/native/device.h"

namespace box {
namespace {

constexpr u64 kPage = 4096;
constexpr u32 kQuantum = 32, kReserved = 258, kReservedReceives = 1, kLeast = 8;
constexpr u32 kQuantaLimit = 32768, kInlineLimit = 101, kPieceLimit = 13;
constexpr u32 kImmediates =
    3;  // of writes and of sends: a queue pair of RoCE has them, one of the first iWARP devices none
constexpr u64 kValid = 1ull << 63, kBelow = 1ull << 62;  // below: signalled, of a send queue, an immediate is there
enum Operation : u32 { kWrite = 0, kRead = 1, kSend = 3, kSendEvent = 5, kNothing = 12 };
enum Packet : u32 { kSendOnly = 4, kSendOnlyImmediate = 5, kWriteOnlyImmediate = 11 };  // InfiniBand's, of a receive
enum Flush : u32 {
  kGeneral = 1,
  kProtection,
  kRemoteAccess,
  kQueueOperation,
  kRemoteOperation,
  kLength,
  kRetries = 8,
  kInvalidRequest = 10,
  kNotReady = 11
};

struct OpenAsk {
  u32 reserved;
  u8 version, reserved2[3];
  u64 mask;
};
struct OpenReply {
  u32 domains, pairs, queue_bytes;
  u8 version, reserved[3];
  u64 features, page;
  u32 pieces, read_pieces, inline_bytes, receive_quanta, quanta, least_entries, entries;
  u16 chunk;
  u8 generation, reserved2;
  u64 mask;
  u16 least;
  u8 reserved3[2];
  u32 shared_quanta;
};
struct RegisterAsk {
  u16 kind, queue_pages, receive_pages, send_pages;
};
struct QueueAsk {
  u64 entries, shadow;
};
struct PairAsk {
  u64 entries, handle;
};
struct Number {
  u32 number, more;
};
struct PairReply {
  u32 number, sends, receives, options;
  u16 push;
  u8 first, reserved;
  u32 caps;
};

struct IrdmaQueue final : Own {
  u8* entries = nullptr;
  const u64* shadow = nullptr;  // where the library has read up to
  u32 size = 0;
  u64 at = 0, read = 0;  // entries, of which a completion takes one or two
};
struct IrdmaPair final : Own {
  const u8 *sends = nullptr, *receives = nullptr;
  u64 handle = 0;
  u32 send_quanta = 0, receive_entries = 0, receive_shift = 0;
  u64 sent = 0, received = 0;  // quanta, entries
  bool flushed = false;
};

u64 word(const u8* entry, u32 offset) {
  // Acquire: pairs with the library's barrier in front of a valid bit.
  return std::atomic_ref(*reinterpret_cast<u64*>(const_cast<u8*>(entry + offset))).load(std::memory_order_acquire);
}

void add_piece(Request& r, std::vector<Piece>& pieces, const u8* at) {
  const u64 address = word(at, 0), rest = word(at, 8);
  const Piece p{address, static_cast<u32>(rest >> 32 & 0x7fffffff), static_cast<u32>(rest)};
  if (p.address == 0 && p.bytes == 0 && p.key == 0) return;  // fills an entry up
  pieces.push_back(p);
  r.bytes += p.bytes;
}

u32 flush_of(u32 wc) {
  switch (wc) {
    case ibv::kWcLocProtErr: return kProtection;
    case ibv::kWcRemAccessErr: return kRemoteAccess;
    case ibv::kWcLocQpOpErr: return kQueueOperation;
    case ibv::kWcRemOpErr: return kRemoteOperation;
    case ibv::kWcLocLenErr: return kLength;
    case ibv::kWcRetryExcErr: return kRetries;
    case ibv::kWcRemInvReqErr: return kInvalidRequest;
    case ibv::kWcRnrRetryExcErr: return kNotReady;
    default: return kGeneral;
  }
}

// As the kernel's driver and the library both reckon it.
u32 shift_of(u32 pieces, u32 inline_bytes) {
  if (pieces <= 1 && inline_bytes <= 8) return 0;
  return pieces < 4 && inline_bytes <= 39 ? 1 : pieces < 8 && inline_bytes <= 101 ? 2 : 3;
}
u32 quanta_of(u32 entries, u32 shift, u32 reserved) {
  return std::max(std::bit_ceil((entries << shift) + reserved), kLeast << shift);
}

class Irdma final : public Provider {
 public:
  Irdma() {
    identity_.device = "irdma";
    identity_.vendor = 0x8086;
    identity_.part = 0x1592;
    identity_.abi = 5;
    identity_.driver = 9;
    identity_.library_flushes = true;
  }
  const Identity& identity() const override { return identity_; }

  void limits(ibv::DeviceAttr& d) const override {
    d.max_srq = 0;
    d.max_sge = kPieceLimit;
    d.max_qp_wr = 4096;
    d.max_cqe = 1 << 18;
  }

  int open(Device& d, const Extra& e) override {
    raw_ = (e.read<OpenAsk>().mask & 1) != 0;
    if (page_ == 0) page_ = d.allocate(kPage);
    OpenReply r{};
    r.domains = r.pairs = 1 << 16;
    r.version = 5;
    r.features = 3;
    r.page = page_;
    r.pieces = r.read_pieces = kPieceLimit;
    r.inline_bytes = kInlineLimit;
    r.receive_quanta = r.quanta = kQuantaLimit;
    r.least_entries = 4;
    r.entries = 1 << 20;
    r.chunk = 8;
    r.generation = 2;
    r.mask = raw_ ? 3 : 0;
    r.least = kLeast;
    e.write(r);
    return 0;
  }

  void make_domain(Device&, u32 handle, const Extra& e) override { e.write(Number{handle, 0}); }

  void registered(const Memory& m, const Extra& e) override {
    const auto ask = e.read<RegisterAsk>();
    if (ask.kind == 1) send_pages_[m.iova] = ask.send_pages;
  }

  int make_queue(Device&, Queue& q, const Extra& e) override {
    const auto ask = e.read<QueueAsk>();
    auto own = std::make_unique<IrdmaQueue>();
    own->entries = reinterpret_cast<u8*>(ask.entries);
    own->shadow = reinterpret_cast<const u64*>(ask.shadow);
    own->size = q.entries;
    q.own = std::move(own);
    e.write(Number{q.handle, q.entries});
    return 0;
  }

  int make_pair(Device&, Pair& p, const Extra& e) override {
    const auto ask = e.read<PairAsk>();
    if (p.type != ibv::kQptRc || !send_pages_.contains(ask.entries)) return EINVAL;
    const u32 send_shift = shift_of(p.cap.max_send_sge + 1, p.cap.max_inline_data);
    auto own = std::make_unique<IrdmaPair>();
    own->receive_shift = shift_of(p.cap.max_recv_sge, 0);
    own->send_quanta = raw_ ? quanta_of(p.cap.max_send_wr, send_shift, kReserved) : p.cap.max_send_wr << send_shift;
    own->receive_entries =
        raw_ ? quanta_of(p.cap.max_recv_wr, own->receive_shift, kReservedReceives) >> own->receive_shift
             : p.cap.max_recv_wr;
    own->sends = reinterpret_cast<const u8*>(ask.entries);
    own->receives = own->sends + send_pages_[ask.entries] * kPage;
    own->handle = ask.handle;
    PairReply r{};
    r.number = p.number;
    r.sends = own->send_quanta >> send_shift;
    r.receives = own->receive_entries;
    r.caps = kImmediates;
    p.own = std::move(own);
    e.write(r);
    return 0;
  }

  // The library's rings go on where they were.
  void reset(Device&, Pair& p) override { static_cast<IrdmaPair&>(*p.own).flushed = false; }

  long long mapped(Device&, u64 offset, u64) override { return static_cast<long long>(offset); }

  void fetch(Device& d, Pair& p) override {
    auto& own = static_cast<IrdmaPair&>(*p.own);
    for (;;) {
      const u8* entry = own.receives + (own.received % own.receive_entries << own.receive_shift) * kQuantum;
      const u64 header = word(entry, 24);
      if (((header & kValid) != 0) != (own.received / own.receive_entries % 2 == 0)) break;
      Request as_bytes;
      Receive r{{}, own.received % own.receive_entries << own.receive_shift};
      add_piece(as_bytes, r.pieces, entry);
      for (u32 i = 0; i < (header >> 38 & 15); ++i) add_piece(as_bytes, r.pieces, entry + 32 + i * 16);
      p.receives.push_back(std::move(r));
      ++own.received;
    }
    for (;;) {
      const u32 at = static_cast<u32>(own.sent % own.send_quanta);
      const u64 header = word(own.sends + at * kQuantum, 24);
      if (((header & kValid) != 0) != (own.sent / own.send_quanta % 2 == 0)) break;
      const u32 operation = header >> 32 & 0x3f;
      u32 quanta = 1;
      if (operation != kNothing) {
        Request r = decode(d, own.sends + at * kQuantum, header, quanta);
        r.token = at;
        p.requests.push_back(std::move(r));
      }
      own.sent += quanta;
    }
  }

  u32 unread(Device&, Queue& q) override {
    auto& own = static_cast<IrdmaQueue&>(*q.own);
    own.read +=
        ((word(reinterpret_cast<const u8*>(own.shadow), 0) & 0xfffff) + own.size - own.read % own.size) % own.size;
    return static_cast<u32>(own.at - own.read);
  }

  void complete(Device&, Queue& q, const Pair& p, const Completion& c) override {
    auto& pair = static_cast<IrdmaPair&>(*p.own);
    const bool good = c.status == ibv::kWcSuccess;
    u64 last = (c.of_receive ? 0 : kBelow) | c.token << 32;
    const bool write = c.kind == Request::Kind::kWrite;
    const u32 packet = write ? kWriteOnlyImmediate : c.has_immediate ? kSendOnlyImmediate : kSendOnly;
    const u32 request = write ? kWrite : c.kind == Request::Kind::kRead ? kRead : kSend;
    last |= u64{c.of_receive ? packet : request} << 56;
    if (!good) last |= 1ull << 55 | 1ull << 16 | flush_of(c.status);
    pair.flushed |= !good && !c.of_receive;
    const bool two = good && c.of_receive && c.has_immediate;
    if (two) last |= 1ull << 50;
    auto& own = static_cast<IrdmaQueue&>(*q.own);
    if (two) put(own, own.at + 1, {c.immediate, 0, 0, kBelow});
    put(own, own.at, {c.bytes, pair.handle, static_cast<u64>(p.number) << 32, last});
    own.at += two ? 2 : 1;
  }

  void ended(Device& d, Pair& p) override {
    Completion c;
    c.status = ibv::kWcWrFlushErr;
    if (!static_cast<IrdmaPair&>(*p.own).flushed) complete(d, *p.sends_to, p, c);
    c.of_receive = true;
    complete(d, *p.receives_to, p, c);
  }

 private:
  static void put(IrdmaQueue& q, u64 number, std::array<u64, 4> words) {
    auto* to = reinterpret_cast<u64*>(q.entries + number % q.size * kQuantum);
    std::memcpy(to, words.data(), 24);
    const u64 valid = number / q.size % 2 == 0 ? kValid : 0;
    // Release: pairs with the library's barrier behind its read of the valid bit.
    std::atomic_ref(to[3]).store(words[3] | valid, std::memory_order_release);
  }

  static Request decode(const Device& d, const u8* entry, u64 header, u32& quanta) {
    Request r;
    const u32 operation = header >> 32 & 0x3f, more = header >> 38 & 15;
    r.kind = operation == kWrite  ? Request::Kind::kWrite
             : operation == kRead ? Request::Kind::kRead
                                  : Request::Kind::kSend;
    r.broken = operation != kWrite && operation != kRead && operation != kSend && operation != kSendEvent;
    if (r.broken) find(Rule::kDescriptor, d.name() + ": operation " + std::to_string(operation));
    r.signalled = (header & kBelow) != 0;
    r.has_immediate = (header >> 47 & 1) != 0;
    r.immediate = static_cast<u32>(word(entry, 0));
    r.remote = word(entry, 16);
    r.rkey = static_cast<u32>(header);
    r.is_inline = (header >> 57 & 1) != 0;
    if (r.is_inline) {
      r.bytes = header >> 48 & 0xff;
      quanta = r.bytes <= 8 ? 1 : 1 + static_cast<u32>((r.bytes - 8 + 30) / 31);
      for (u32 i = 0; i < r.bytes; ++i)  // 8 beside the header, 31 in each that follows
        r.inside.push_back(i < 8 ? entry[8 + i] : entry[32 + (i - 8) / 31 * 32 + (i - 8) % 31]);
      return r;
    }
    quanta = 1 + more / 2;
    if (!r.has_immediate) add_piece(r, r.pieces, entry);
    for (u32 i = 0; i < more; ++i) add_piece(r, r.pieces, entry + 32 + i * 16);
    return r;
  }

  Identity identity_;
  std::map<u64, u32> send_pages_;  // by where a queue pair's entries begin
  u64 page_ = 0;
  bool raw_ = false;
};

}  // namespace

std::unique_ptr<Provider> make_irdma() { return std::make_unique<Irdma>(); }

}  // namespace box

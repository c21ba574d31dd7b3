// Amazon's EFA as libefa knows it: descriptors of 64 or 128 bytes that the CPU writes into the device's memory, producer
// counters as doorbells, completions by a phase bit. Formats: rdma-core, providers/efa/efa_io_defs.h.
#include <atomic>

#include "providers/native/device.h"

namespace box {
namespace {

constexpr u32 kSendBytes = 64, kReceiveBytes = 16;
constexpr u32 kSendLimit = 4096, kReceiveLimit = 32768, kInlineLimit = 32;
constexpr u64 kPage = 4096;
constexpr u32 kCapRead = 1, kCapRnrRetry = 2, kCapSources = 1 << 3, kCapWrite = 1 << 5, kCapUnsolicited = 1 << 6;
constexpr u32 kNoHandle = 0xffff;

struct OpenReply {
  u32 mask, commands;
  u16 sub_queues, inline_bytes;
  u32 send_memory;
  u16 batch, least_sends, inline_extended, reserved;
};
struct QueryReply {
  u32 mask, max_sends, max_receives;
  u16 send_entries, receive_entries;
  u32 largest, caps;
};
struct QueueAsk {
  u32 mask, entry_bytes;
  u16 sub_queues;
  u8 flags, reserved[5];
};
struct QueueReply {
  u32 mask, reserved;
  u64 memory_key, memory_bytes;
  u16 index, reserved2;
  u32 doorbell_offset;
  u64 doorbell_key;
};
struct PairAsk {
  u32 mask, receive_bytes, send_bytes, type;
  u16 flags;
  u8 level, reserved[5];
};
struct PairReply {
  u32 mask, receive_doorbell_offset, send_doorbell_offset, send_offset;
  u64 receive_key, receive_bytes, receive_doorbell_key, send_doorbell_key, send_key;
  u16 send_sub_queue, receive_sub_queue, reserved[2];
};
struct Numbered {  // replies of domains and address handles
  u32 mask;
  u16 number, reserved;
};

struct SendDescriptor {
  u16 id;
  u8 control, control2;
  u16 queue_pair, length;
  u32 immediate;
  u16 handle;
  u8 control3, reserved;
  u32 qkey;
  u8 reserved2[12];
  struct Buffer {
    u32 bytes, key, low, high;
    u64 address() const { return static_cast<u64>(high) << 32 | low; }
  } buffers[2];
};
static_assert(sizeof(SendDescriptor) == kSendBytes);
struct ReceiveDescriptor {
  u32 low, high;
  u16 id, bytes;
  u32 key;  // and flags
};
struct Entry {  // of a completion queue
  u16 id;
  u8 status, flags;
  u16 queue_pair, length, handle, source_queue_pair;
  u32 immediate;
  u16 length_high;
};

struct EfaQueue final : Own {
  u8* entries = nullptr;
  bool says_sources = false;  // by their addresses, where there is no handle for one
  u32 entry_bytes = 0, promised = 0;  // entries that queue pairs may fill before one is read
};
struct EfaPair final : Own {
  u8 *sends = nullptr, *receives = nullptr;
  u32 *send_doorbell = nullptr, *receive_doorbell = nullptr;
  u32 send_entries = 0, receive_entries = 0;
  u32 sent = 0, received = 0;  // counters as the device has seen them
  bool unsolicited = false;
};

u32 load(const u32* word) {
  return std::atomic_ref(const_cast<u32&>(*word)).load(std::memory_order_acquire);  // pairs with the doorbell's fence
}

u8 status_of(u32 wc) {
  switch (wc) {
    case ibv::kWcSuccess: return 0;
    case ibv::kWcWrFlushErr: return 1;
    case ibv::kWcLocQpOpErr: return 4;
    case ibv::kWcLocProtErr: return 5;
    case ibv::kWcLocLenErr: return 6;
    case ibv::kWcRemAccessErr: return 7;
    case ibv::kWcRemInvRdReqErr: return 9;
    case ibv::kWcRnrRetryExcErr: return 10;
    case ibv::kWcRespTimeoutErr: return 13;
    case ibv::kWcRemOpErr: return 14;
    default: return 2;
  }
}

class Efa final : public Provider {
 public:
  Efa() {
    identity_.device = "rdmap0s";
    identity_.vendor = 0x1d0f;
    identity_.part = 0xefa2;
    identity_.driver = 17;
    identity_.node_type = 7;
    identity_.link_layer = ibv::kLinkUnspecified;
    identity_.datagrams = true;
    identity_.keys_of_nothing = true;
  }
  const Identity& identity() const override { return identity_; }

  void limits(ibv::DeviceAttr& d) const override {
    d.max_qp = 256;
    d.max_qp_wr = kSendLimit;
    d.max_sge = 2;
    d.max_sge_rd = 1;
    d.max_srq = 0;
  }

  int open(Device&, const Extra& e) override {
    OpenReply r{};
    r.commands = 3;  // answers with more: of devices and of address handles
    r.sub_queues = 1;
    r.inline_bytes = kInlineLimit;
    r.send_memory = kSendLimit * kSendBytes;
    e.write(r);
    return 0;
  }

  void query(Device&, const Extra& e) override {
    e.write(QueryReply{0, kSendLimit, kReceiveLimit, 2, 3, 1u << 30,
                       kCapRead | kCapRnrRetry | kCapSources | kCapWrite | kCapUnsolicited});
  }

  void make_domain(Device&, u32 handle, const Extra& e) override { e.write(Numbered{0, static_cast<u16>(handle), 0}); }

  void made_handle(Device&, Handle& h, const Extra& e) override { e.write(Numbered{0, static_cast<u16>(h.number), 0}); }

  int make_queue(Device& d, Queue& q, const Extra& e) override {
    const auto ask = e.read<QueueAsk>();
    if (ask.entry_bytes < 16 || ask.entry_bytes > 32 || ask.sub_queues != 1) return EINVAL;
    if ((q.entries & (q.entries - 1)) != 0) return EINVAL;
    auto own = std::make_unique<EfaQueue>();
    const u64 bytes = uccl::align_up(static_cast<u64>(q.entries) * ask.entry_bytes, kPage);
    const u64 memory = d.allocate(bytes), doorbell = d.allocate(kPage);
    own->entries = d.memory(memory);
    own->entry_bytes = ask.entry_bytes;
    own->says_sources = (ask.flags & 2) != 0;
    q.own = std::move(own);
    e.write(QueueReply{1, 0, memory, bytes, static_cast<u16>(q.handle), 0, 0, doorbell});
    return 0;
  }

  int make_pair(Device& d, Pair& p, const Extra& e) override {
    const auto ask = e.read<PairAsk>();
    if (p.type != ibv::kQptDriver || ask.type != 0) return EOPNOTSUPP;
    if (ask.send_bytes > kSendLimit * kSendBytes || p.cap.max_inline_data > kInlineLimit) return EINVAL;
    auto own = std::make_unique<EfaPair>();
    own->send_entries = ask.send_bytes / kSendBytes;
    own->receive_entries = ask.receive_bytes / kReceiveBytes;
    own->unsolicited = (ask.flags & 1) != 0;
    const u64 receive_bytes = uccl::align_up(ask.receive_bytes, kPage);
    const u64 sends = d.allocate(ask.send_bytes), receives = d.allocate(receive_bytes), doorbells = d.allocate(kPage);
    own->sends = d.memory(sends);
    own->receives = d.memory(receives);
    own->send_doorbell = reinterpret_cast<u32*>(d.memory(doorbells));
    own->receive_doorbell = own->send_doorbell + 16;
    promise(d, *p.sends_to, own->send_entries);
    promise(d, *p.receives_to, own->receive_entries);
    p.own = std::move(own);
    e.write(PairReply{0, 64, 0, 0, receives, receive_bytes, doorbells, doorbells, sends, 0, 0, {}});
    return 0;
  }

  void reset(Device&, Pair& p) override {
    auto& own = static_cast<EfaPair&>(*p.own);
    own.sent = own.received = *own.send_doorbell = *own.receive_doorbell = 0;
  }

  bool takes_unsolicited(const Pair& p) const override { return static_cast<const EfaPair&>(*p.own).unsolicited; }

  long long mapped(Device&, u64 offset, u64) override { return static_cast<long long>(offset); }

  void fetch(Device& d, Pair& p) override {
    auto& own = static_cast<EfaPair&>(*p.own);
    if (own.send_entries != 0) fetch_sends(d, p, own);
    if (own.receive_entries != 0) fetch_receives(p, own);
  }

  // Its doorbell says what was read only when a session of polls ends before the queue is empty, and nothing on the device
  // counts on it: an entry that was not read is written over. So make_pair looks at sizes instead.
  u32 unread(Device&, Queue&) override { return 0; }

  void complete(Device&, Queue& q, const Pair& p, const Completion& c) override {
    const auto& own = static_cast<EfaQueue&>(*q.own);
    Entry e{};
    e.id = static_cast<u16>(c.token);
    e.status = status_of(c.status);
    e.queue_pair = static_cast<u16>(p.number);
    const u32 operation = c.kind == Request::Kind::kSend ? 0u : c.kind == Request::Kind::kRead ? 1u : 2u;
    const u32 phase = (q.written / q.entries & 1) == 0 ? 1u : 0u;
    const u32 kind = c.of_receive ? 2u : 1u;
    if (c.of_receive) {
      e.length = static_cast<u16>(c.bytes);
      e.length_high = static_cast<u16>(c.bytes >> 16);
      e.handle = static_cast<u16>(c.source_handle);
      e.source_queue_pair = static_cast<u16>(c.source_queue_pair);
      e.immediate = c.immediate;
    }
    u8* to = own.entries + (q.written % q.entries) * own.entry_bytes;
    const u8 before = to[3];
    e.flags = before;
    std::memcpy(to, &e, std::min<std::size_t>(sizeof(e), own.entry_bytes));
    if (own.says_sources && c.of_receive && c.source_handle == kNoHandle)
      std::memcpy(to + offsetof(Entry, length_high), c.source.data(), c.source.size());
    const u32 flags =
        phase | kind << 1 | (c.has_immediate && c.of_receive ? 8u : 0u) | operation << 4 | (c.unsolicited ? 0x80u : 0u);
    // Release: pairs with the library's barrier behind its read of the phase.
    std::atomic_ref(to[3]).store(static_cast<u8>(flags), std::memory_order_release);
  }

 private:
  static void promise(const Device& d, Queue& q, u32 more) {
    auto& own = static_cast<EfaQueue&>(*q.own);
    own.promised += more;
    if (own.promised > q.entries)
      find(Rule::kOverrun, d.name() + ": a completion queue of " + std::to_string(q.entries) + " entries for " +
                               std::to_string(own.promised) + " requests");
  }

  void fetch_sends(Device& d, Pair& p, EfaPair& own) {
    const u32 rung = static_cast<u16>(load(own.send_doorbell));
    if (static_cast<u16>(rung - own.sent) > own.send_entries) {
      find(Rule::kQueueFull, d.name() + ": " + std::to_string(static_cast<u16>(rung - own.sent)) +
                                 " requests at once into a queue of " + std::to_string(own.send_entries));
    }
    for (; own.sent != rung; own.sent = static_cast<u16>(own.sent + 1)) {
      SendDescriptor s;
      std::memcpy(&s, own.sends + own.sent % own.send_entries * kSendBytes, sizeof(s));
      const u32 phase = own.sent / own.send_entries & 1;
      if ((s.control2 & 1) != phase || (s.control & 0xc0) != 0x80 || (s.control2 & 0x1c) != 0x1c)
        find(Rule::kDescriptor, d.name() + ": a send descriptor with control " + std::to_string(s.control) + " " +
                                    std::to_string(s.control2));
      p.requests.push_back(decode(s));
    }
  }

  static Request decode(const SendDescriptor& s) {
    Request r;
    r.token = s.id;
    r.has_immediate = (s.control & 0x10) != 0;
    r.immediate = s.immediate;
    r.handle = s.handle;
    r.queue_pair = s.queue_pair;
    r.qkey = s.qkey;
    r.is_inline = (s.control & 0x20) != 0;
    const u32 operation = s.control & 0xf;
    r.kind = operation == 0 ? Request::Kind::kSend : operation == 1 ? Request::Kind::kRead : Request::Kind::kWrite;
    const auto* first = s.buffers;
    if (operation != 0) {  // the first describes the other side
      r.remote = s.buffers[0].address();
      r.rkey = s.buffers[0].key;
      ++first;
    }
    if (r.is_inline) {
      const u8* data = reinterpret_cast<const u8*>(first);
      r.inside.assign(data, data + std::min<std::size_t>(s.length, sizeof(s.buffers)));
      r.bytes = r.inside.size();
      return r;
    }
    for (u32 i = 0; i < s.length && first + i < s.buffers + 2; ++i) {
      r.pieces.push_back({first[i].address(), first[i].bytes, first[i].key});
      r.bytes += first[i].bytes;
    }
    return r;
  }

  static void fetch_receives(Pair& p, EfaPair& own) {
    const u32 rung = static_cast<u16>(load(own.receive_doorbell));
    Receive r;
    for (; own.received != rung; own.received = static_cast<u16>(own.received + 1)) {
      ReceiveDescriptor s;
      std::memcpy(&s, own.receives + own.received % own.receive_entries * kReceiveBytes, sizeof(s));
      if ((s.key >> 30 & 1) != 0) r = Receive{{}, s.id};
      r.pieces.push_back({static_cast<u64>(s.high) << 32 | s.low, s.bytes, s.key & 0xffffff});
      if ((s.key >> 31) != 0) p.receives.push_back(r);
    }
  }

  Identity identity_;
};

}  // namespace

std::unique_ptr<Provider> make_efa() { return std::make_unique<Efa>(); }

}  // namespace box

// NVIDIA's ConnectX as libmlx5 knows it: queues in the program's own memory, 16-byte segments in big endian, counters in
// doorbell records beside them, completions by an owner bit. Formats: rdma-core, providers/mlx5/mlx5dv.h and wqe.h.
#include <endian.h>

#include <atomic>

#include "providers/native/device.h"

namespace box {
namespace {

constexpr u64 kPage = 4096;
constexpr u32 kUserPages = 64;
constexpr u32 kBlockBytes = 64, kSegmentBytes = 16, kInline = 0x80000000, kNoKey = 0x100;
constexpr u32 kDescriptorLimit = 512, kEntryLimit = 32768;
constexpr u8 kSignalled = 8;
enum Operation : u32 { kWrite = 8, kWriteImmediate = 9, kSend = 10, kSendImmediate = 11, kRead = 16 };

struct OpenReply {
  u32 pairs, register_bytes, registers, line_bytes;
  u16 send_bytes, receive_bytes;
  u32 send_blocks, receives, shared_receives;
  u16 ports, flow_flags;
  u32 mask, length;
  u8 entry_version, more_commands, inline_mode, clock_versions;
  u64 clock_offset;
  u32 page_log, pages_at_once, dynamic, fill_key;
};
struct QueueAsk {
  u64 entries, doorbell;
  u32 entry_bytes;
};
struct SharedAsk {
  u64 entries, doorbell;
};
struct PairAsk {
  u64 entries, doorbell;
  u32 send_blocks, receives, receive_shift, flags, index, page;
};
struct Number {
  u32 number, reserved;
};
struct PairReply {
  u32 page, rest[7];
  u64 address;
};
struct Entry {  // of a completion queue; an error has its syndrome where the byte count is
  u8 reserved[24];
  u32 source;
  u8 reserved2[4];
  u32 index, immediate;
  u8 reserved3[4];
  u32 bytes;
  u8 reserved4[6];
  u8 vendor_error, syndrome;
  u32 operation;  // and queue pair
  u16 counter;
  u8 signature, kind;
};
static_assert(sizeof(Entry) == 64 && offsetof(Entry, syndrome) == 55 && offsetof(Entry, kind) == 63);

struct Mlx5Queue final : Own {
  u8* entries = nullptr;
  const u32* doorbell = nullptr;
  u32 size = 0;
};
struct Mlx5Shared final : Own {
  const u8* entries = nullptr;
  const u32* doorbell = nullptr;
  u32 bytes = 0, head = 0;
  u16 taken = 0;
};
struct Mlx5Pair final : Own {
  const u8 *sends = nullptr, *receives = nullptr;
  const u32* doorbell = nullptr;  // of receives, of sends
  u32 blocks = 0, receive_entries = 0, receive_bytes = 0, index = 0;
  u16 sent = 0, received = 0;
};

u32 load(const u32* word) {
  // Acquire: pairs with the library's barrier in front of a doorbell record.
  return be32toh(std::atomic_ref(const_cast<u32&>(*word)).load(std::memory_order_acquire));
}

template <class T>
T at(const u8* p) {
  T t;
  std::memcpy(&t, p, sizeof(t));
  return t;
}

u8 syndrome_of(u32 wc) {
  switch (wc) {
    case ibv::kWcLocLenErr: return 0x01;
    case ibv::kWcLocQpOpErr: return 0x02;
    case ibv::kWcLocProtErr: return 0x04;
    case ibv::kWcWrFlushErr: return 0x05;
    case ibv::kWcRemInvReqErr: return 0x12;
    case ibv::kWcRemAccessErr: return 0x13;
    case ibv::kWcRemOpErr: return 0x14;
    case ibv::kWcRetryExcErr: return 0x15;
    case ibv::kWcRnrRetryExcErr: return 0x16;
    default: return 0x10;
  }
}

// Scatter entries of a receive: the list ends at a key that is none.
Receive receive_at(const u8* p, const u8* end, u64 token) {
  Receive r{{}, token};
  for (; p + kSegmentBytes <= end; p += kSegmentBytes) {
    const u32 key = be32toh(at<u32>(p + 4));
    if (key == kNoKey) break;
    r.pieces.push_back({be64toh(at<u64>(p + 8)), be32toh(at<u32>(p)), key});
  }
  return r;
}

class Mlx5 final : public Provider {
 public:
  Mlx5() {
    identity_.device = "mlx5_";
    identity_.vendor = 0x02c9;
    identity_.part = 0x101b;
    identity_.driver = 1;
  }
  const Identity& identity() const override { return identity_; }

  void limits(ibv::DeviceAttr& d) const override {
    d.max_srq = 1024;
    d.max_srq_wr = kEntryLimit - 1;
    d.max_srq_sge = 31;
    d.max_cqe = 1 << 22;
    d.max_qp_wr = kEntryLimit;
    d.max_sge = 30;
  }

  int open(Device& d, const Extra& e) override {
    struct Ask {
      u32 registers, fast, flags;
    };
    if ((e.read<Ask>().flags & 1) != 0) return EOPNOTSUPP;  // firmware commands of one's own
    if (pages_ == 0) pages_ = d.allocate(kUserPages * kPage);
    OpenReply r{};
    r.pairs = 1 << 18;
    r.register_bytes = 512;
    r.registers = 16;
    r.line_bytes = 64;
    r.send_bytes = r.receive_bytes = kDescriptorLimit;
    r.send_blocks = r.receives = r.shared_receives = kEntryLimit;
    r.ports = 1;
    r.length = sizeof(r);
    r.entry_version = 1;
    r.page_log = 12;
    r.pages_at_once = 1;
    e.write(r);
    return 0;
  }

  void make_domain(Device&, u32 handle, const Extra& e) override { e.write(handle); }

  int make_queue(Device&, Queue& q, const Extra& e) override {
    const auto ask = e.read<QueueAsk>();
    if (ask.entry_bytes != sizeof(Entry) || (q.entries & (q.entries + 1)) != 0) return EINVAL;
    auto own = std::make_unique<Mlx5Queue>();
    own->entries = reinterpret_cast<u8*>(ask.entries);
    own->doorbell = reinterpret_cast<const u32*>(ask.doorbell);
    own->size = q.entries + 1;  // which the library has asked for less one
    q.own = std::move(own);
    e.write(Number{q.handle, 0});
    return 0;
  }

  int make_shared(Device&, Shared& s, const Extra& e) override {
    const auto ask = e.read<SharedAsk>();
    auto own = std::make_unique<Mlx5Shared>();
    own->entries = reinterpret_cast<const u8*>(ask.entries);
    own->doorbell = reinterpret_cast<const u32*>(ask.doorbell);
    own->bytes = kSegmentBytes * (1 + s.pieces);
    s.own = std::move(own);
    e.write(Number{s.handle, 0});
    return 0;
  }

  int make_pair(Device&, Pair& p, const Extra& e) override {
    const auto ask = e.read<PairAsk>();
    if (p.type != ibv::kQptRc) return EOPNOTSUPP;
    auto own = std::make_unique<Mlx5Pair>();
    own->receives = reinterpret_cast<const u8*>(ask.entries);
    own->receive_entries = ask.receives;
    own->receive_bytes = ask.receives == 0 ? 0 : 1u << ask.receive_shift;
    own->sends = own->receives + static_cast<u64>(own->receive_entries) * own->receive_bytes;
    own->blocks = ask.send_blocks;
    own->doorbell = reinterpret_cast<const u32*>(ask.doorbell);
    own->index = ask.index;
    PairReply r{};
    r.page = next_page_++ % 8 * 4;  // of four registers in a page the last two are for others
    p.own = std::move(own);
    e.write(r);
    return 0;
  }

  void reset(Device&, Pair& p) override {
    auto& own = static_cast<Mlx5Pair&>(*p.own);
    own.sent = own.received = 0;
  }

  long long mapped(Device&, u64 offset, u64) override {
    return static_cast<long long>(pages_ + offset / kPage % kUserPages * kPage);
  }

  void fetch(Device& d, Pair& p) override {
    auto& own = static_cast<Mlx5Pair&>(*p.own);
    if (p.state == ibv::kQpsReset) return;  // the library clears the doorbell records after the command
    if (own.blocks != 0) fetch_sends(d, p, own);
    if (own.receive_entries == 0) return;
    for (const u16 rung = static_cast<u16>(load(own.doorbell)); own.received != rung; ++own.received) {
      const u8* entry = own.receives + own.received % own.receive_entries * own.receive_bytes;
      p.receives.push_back(receive_at(entry, entry + own.receive_bytes, own.received));
    }
  }

  void fetch(Device&, Shared& s) override {
    auto& own = static_cast<Mlx5Shared&>(*s.own);
    for (const u16 rung = static_cast<u16>(load(own.doorbell)); own.taken != rung; ++own.taken) {
      const u8* entry = own.entries + own.head * own.bytes;
      s.receives.push_back(receive_at(entry + kSegmentBytes, entry + own.bytes, own.head));
      own.head = be16toh(at<u16>(entry + 2));
    }
  }

  u32 unread(Device&, Queue& q) override {
    const auto& own = static_cast<Mlx5Queue&>(*q.own);
    return static_cast<u32>(q.written - load(own.doorbell)) & 0xffffff;
  }

  void complete(Device&, Queue& q, const Pair& p, const Completion& c) override {
    const auto& own = static_cast<Mlx5Queue&>(*q.own);
    Entry e{};
    e.index = htobe32(static_cast<const Mlx5Pair&>(*p.own).index);
    e.counter = htobe16(static_cast<u16>(c.token));
    const bool good = c.status == ibv::kWcSuccess;
    const u32 operation = c.kind == Request::Kind::kRead   ? u32{kRead}
                          : c.kind == Request::Kind::kSend ? (c.has_immediate ? kSendImmediate : kSend)
                          : c.has_immediate                ? kWriteImmediate
                                                           : kWrite;
    e.operation = htobe32((c.of_receive ? 0 : operation << 24) | p.number);
    u32 kind = c.of_receive ? 14 : 13;
    if (good) {
      kind = !c.of_receive ? 0u : c.kind == Request::Kind::kWrite ? 1u : c.has_immediate ? 3u : 2u;
      e.bytes = htobe32(static_cast<u32>(c.bytes));
      e.immediate = htobe32(c.immediate);
      e.source = htobe32(c.source_queue_pair);
    } else {
      e.syndrome = syndrome_of(c.status);
    }
    u8* to = own.entries + q.written % own.size * sizeof(Entry);
    e.kind = to[offsetof(Entry, kind)];
    std::memcpy(to, &e, sizeof(e));
    // Release: pairs with the library's barrier behind its read of the owner bit.
    std::atomic_ref(to[offsetof(Entry, kind)])
        .store(static_cast<u8>(kind << 4 | (q.written / own.size & 1)), std::memory_order_release);
  }

 private:
  void fetch_sends(Device& d, Pair& p, Mlx5Pair& own) {
    const u16 rung = static_cast<u16>(load(own.doorbell + 1));
    if (static_cast<u16>(rung - own.sent) > own.blocks)
      find(Rule::kQueueFull, d.name() + ": " + std::to_string(static_cast<u16>(rung - own.sent)) +
                                 " blocks at once into a queue of " + std::to_string(own.blocks));
    while (own.sent != rung) {
      const u8* control = own.sends + own.sent % own.blocks * kBlockBytes;
      const u32 first = be32toh(at<u32>(control)), second = be32toh(at<u32>(control + 4));
      const u32 segments = second & 0x3f, blocks = (segments * kSegmentBytes + kBlockBytes - 1) / kBlockBytes;
      if ((first >> 8 & 0xffff) != own.sent || second >> 8 != p.number || segments < 1 ||
          blocks > static_cast<u16>(rung - own.sent)) {
        find(Rule::kDescriptor, d.name() + ": a send descriptor " + std::to_string(first) + " " +
                                    std::to_string(second) + " at " + std::to_string(own.sent));
        own.sent = rung;
        return;
      }
      // The queue is a ring of bytes; here it is laid out straight.
      std::vector<u8> straight(segments * kSegmentBytes);
      for (u32 i = 0; i < segments; ++i) {
        const u64 from = (own.sent % own.blocks * kBlockBytes + i * kSegmentBytes) % (own.blocks * kBlockBytes);
        std::memcpy(&straight[i * kSegmentBytes], own.sends + from, kSegmentBytes);
      }
      p.requests.push_back(decode(d, straight, own.sent));
      own.sent = static_cast<u16>(own.sent + blocks);
    }
  }

  static Request decode(const Device& d, const std::vector<u8>& w, u16 counter) {
    Request r;
    r.token = counter;
    r.signalled = (w[11] & kSignalled) != 0;
    const u32 operation = be32toh(at<u32>(&w[0])) & 0xff;
    r.immediate = be32toh(at<u32>(&w[12]));
    r.has_immediate = operation == kWriteImmediate || operation == kSendImmediate;
    std::size_t i = kSegmentBytes;
    if (operation == kWrite || operation == kWriteImmediate || operation == kRead) {
      r.kind = operation == kRead ? Request::Kind::kRead : Request::Kind::kWrite;
      r.remote = be64toh(at<u64>(&w[i]));
      r.rkey = be32toh(at<u32>(&w[i + 8]));
      i += kSegmentBytes;
    } else if (operation != kSend && operation != kSendImmediate) {
      find(Rule::kDescriptor, d.name() + ": operation " + std::to_string(operation));
    }
    while (i + 4 <= w.size()) {
      const u32 bytes = be32toh(at<u32>(&w[i]));
      if ((bytes & kInline) != 0) {
        r.is_inline = true;
        const u32 n = bytes & ~kInline;
        if (n > w.size() - i - 4) find(Rule::kDescriptor, d.name() + ": inline data beyond its descriptor");
        r.inside.insert(r.inside.end(), &w[i + 4], &w[i + 4] + std::min<std::size_t>(n, w.size() - i - 4));
        i += uccl::align_up(4 + n, kSegmentBytes);
        r.bytes += n;
        continue;
      }
      if (bytes == 0) find(Rule::kDescriptor, d.name() + ": a segment of zero bytes, which the device takes for 2 GiB");
      r.pieces.push_back({be64toh(at<u64>(&w[i + 8])), bytes, be32toh(at<u32>(&w[i + 4]))});
      r.bytes += bytes;
      i += kSegmentBytes;
    }
    return r;
  }

  Identity identity_;
  u64 pages_ = 0;
  u32 next_page_ = 0;
};

}  // namespace

std::unique_ptr<Provider> make_mlx5() { return std::make_unique<Mlx5>(); }

}  // namespace box

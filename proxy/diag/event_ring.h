// The flight recorder's events and the ring that one proxy worker writes them to: the last `capacity` events, in memory
// that other processes map and that survives the proxy, whatever ends it.
//
// One writer a ring, which never waits: an event is four plain stores and a new count. Readers copy while it writes and
// drop what may have been overwritten meanwhile (event_reader.h).
#pragma once
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

namespace uccl {

// What `peer`, `key` and `value` of an event mean. "imm" is the 32-bit immediate (wire/immediate.h) of a message,
// "wr_id" is ring << 48 | ticket of a command. * only when every command is traced.
enum class EventKind : std::uint32_t {
  kNone = 0,
  kPopped = 1,  // a command was taken: to, bytes << 32 | imm, wr_id. Untraced: announcements, and a burst's first one
  kPosted = 2,  // * the transport has accepted it: the same
  kCompleted = 3,  // * complete at the receiver: to, bytes << 32, wr_id
  kArrival = 4,  // a message came: from, imm, arrivals so far. Untraced: announcements, and a burst's first one
  kPublished = 5,  // a flag was raised: source, phase, epoch. * a stream's tail: source, 1 << 32 | key, chunks
  kStalled = 6,  // the head of a ring waits for room: towards, ring, ticket. Untraced: first of a busy time
  kFault = 7,  // the rank's fault was seen: about, WaitPhase << 32 | FaultKind, seen
  kParted = 8,  // nothing more is exchanged with a peer: whom, why (PartReason), the network's code
  kBarrier = 9,  // a barrier between nodes: none, 0 entered or 1 over, round
};

// Why a worker has parted with a peer.
enum class PartReason : std::uint32_t {
  kEnded = 0,  // its process has ended, or someone said that it is lost
  kConnection = 1,  // the transport says so
  kGoodbye = 2,  // it has left in good order
  kLeftOut = 3  // it is masked and reads nothing
};

inline constexpr std::uint32_t kNobody = ~0u;  // `peer` of an event that is about no rank

struct Event {
  std::uint64_t ns = 0;  // CLOCK_MONOTONIC
  EventKind kind = EventKind::kNone;
  std::uint32_t peer = kNobody;
  std::uint64_t key = 0;
  std::uint64_t value = 0;
};
static_assert(sizeof(Event) == 32);

// Begins each ring; a cache line of its own.
struct alignas(64) EventRingHeader {
  static constexpr std::uint64_t kMagic = 0x31'7365'766c'6363'75;  // "ucclves1"
  std::uint64_t magic;
  std::uint64_t capacity;  // events, a power of two
  std::uint64_t traced;  // 1: every command
  std::uint64_t written;  // events ever; event n lies at n % capacity
};
static_assert(sizeof(EventRingHeader) == 64);

constexpr std::uint64_t event_ring_bytes(std::uint32_t capacity) {
  return sizeof(EventRingHeader) + std::uint64_t{capacity} * sizeof(Event);
}

// The writing end; copies write to the same ring and belong to the same thread. Without a ring it does nothing.
class EventLog {
 public:
  EventLog() = default;
  // `ring`: event_ring_bytes(capacity) bytes, zeroed once, aligned to 64. Goes on from what it holds.
  EventLog(std::uint8_t* ring, std::uint32_t capacity, bool traced)
      : header_(reinterpret_cast<EventRingHeader*>(ring)), mask_(capacity - 1), traced_(traced) {
    store(header_->capacity, capacity, std::memory_order_relaxed);
    store(header_->traced, traced, std::memory_order_relaxed);
    store(header_->magic, EventRingHeader::kMagic, std::memory_order_release);  // pairs with read_events
  }

  bool traced() const { return traced_; }
  bool enabled() const { return header_ != nullptr; }

  void record(const Event& event) {
    if (header_ == nullptr) return;
    const std::uint64_t n = std::atomic_ref<std::uint64_t>(header_->written).load(std::memory_order_relaxed);
    auto* words = reinterpret_cast<std::uint64_t*>(header_ + 1) + (n & mask_) * kWords;
    const auto values = std::bit_cast<std::array<std::uint64_t, kWords>>(event);
    // Release: a reader that sees a word of event n also sees that n events had been written before it, and so knows
    // that what it took for event n - capacity is none. A plain store on x86.
    for (std::uint32_t i = 0; i < kWords; ++i) store(words[i], values[i], std::memory_order_release);
    store(header_->written, n + 1, std::memory_order_release);  // pairs with read_events: the event is whole
  }

 private:
  static constexpr std::uint32_t kWords = sizeof(Event) / sizeof(std::uint64_t);
  static void store(std::uint64_t& word, std::uint64_t value, std::memory_order order) {
    std::atomic_ref<std::uint64_t>(word).store(value, order);
  }

  EventRingHeader* header_ = nullptr;
  std::uint64_t mask_ = 0;
  bool traced_ = false;
};

}  // namespace uccl

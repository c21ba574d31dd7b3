// The control segment of a rank: the words that a proxy writes and kernels wait on (or the other way round). It lives
// in pinned host memory, is mapped by every rank of the host, and is part of the rank's flat offset space, so remote
// proxies can land small headers in it. Kernels read those of this rank and of its cell (kernels/layout/topology.h).
//
// Every counter is 64 bits, only grows, and has one writer. Readers acquire what the writer released.
#pragma once
#include "wire/identity.h"
#include "wire/immediate.h"
#include "wire/limits.h"
#include "wire/types.h"

namespace uccl {

// Payload of a kCount command: what the sender of (phase, epoch) wants the receiver to know. 48 bytes.
struct alignas(16) ExpectHeader {
  u64 epoch;              // all 64 bits; the immediate carries the low ones
  u32 num_writes;         // kWrite commands that belong to this (phase, epoch) from this source to this receiver
  u32 seal;               // folds all other words: a header of which one was changed has another
  u64 consumed_dispatch;  // last low-latency dispatch epoch that the sender has finished reading
  u64 consumed_combine;   // the same for combine
  CallIdentity identity;  // the call that the writes belong to, as its sender was called (kernels compare it)

  static constexpr ExpectHeader make(u64 epoch, u64 num_writes, u64 consumed_dispatch, u64 consumed_combine,
                                     const CallIdentity& identity = {}) {
    const u64 all = epoch ^ num_writes ^ consumed_dispatch ^ consumed_combine ^ identity.shape ^ identity.origin;
    return ExpectHeader{
        epoch,   static_cast<u32>(num_writes), static_cast<u32>(all ^ all >> 32), consumed_dispatch, consumed_combine,
        identity};
  }
  constexpr bool is_whole() const {
    return seal == make(epoch, num_writes, consumed_dispatch, consumed_combine, identity).seal;
  }
};
static_assert(sizeof(ExpectHeader) == 48);

// Why a wait ended without what it waited for.
enum class FaultKind : u32 {
  kNone = 0,
  kTimeout = 1,        // deadline passed
  kPeerLost = 2,       // the peer's process or connection ended
  kRingFull = 3,       // no room in a command ring before the deadline
  kBadCommand = 4,     // a value beyond its field (seen = CommandError)
  kMismatch = 5,       // two ranks disagree (expected, seen; detail: in what)
  kTransport = 6,      // the network reported an error (seen = errno or status)
  kBadArrival = 7,     // a message that no correct peer sends
  kWithdrawn = 8,      // the peer gave its call up while its rows were read in place
};

// What was being waited for. Also the name a user reads.
enum class WaitPhase : u32 {
  kNone = 0,
  kRing,
  kDispatchSend,
  kDispatchReceive,
  kCombineSend,
  kCombineReceive,
  kCounts,
  kBarrier,
  kStart,
  kStagingReuse,
  kTeardown,
  kComputeSignal,  // of an expert whose rows a combine sends; detail: the local expert
  kCombineWeights,  // an owner's, at its host on another node
  kCombineReduce,  // rows of a rank of the node, at the host that sums them
  kCombineSums,  // of a host on another node, at the owner
  kBarrierSend  // what was sent before a barrier: to whom, the proxy knows
};

// What the number in a DetailWord counts.
enum class DetailKind : u32 {
  kNone = 0,  // nothing: the record has no detail
  kChannel,  // of a throughput call
  kLocalExpert,
  kMismatchField,  // in what two ranks disagree
  kLayoutPart  // of a layout that its own rank refused (kernels/throughput/check.h); seen: place << 32 | value
};

// What of a call a fault is about: [31:24] DetailKind | [23:0] its number. No word at all is kNone; a plain number is a
// channel.
struct DetailWord {
  static constexpr int kBits = 24;
  u32 word = 0;

  constexpr DetailWord() = default;
  constexpr DetailWord(u32 channel) : DetailWord(DetailKind::kChannel, channel) {}
  constexpr DetailWord(MismatchField field) : DetailWord(DetailKind::kMismatchField, static_cast<u32>(field)) {}
  constexpr DetailWord(DetailKind kind, u32 number)
      : word(static_cast<u32>(kind) << kBits | (number & static_cast<u32>(low_bits(kBits)))) {}
  static constexpr DetailWord of(u32 word) { return {static_cast<DetailKind>(word >> kBits), word}; }
  constexpr DetailKind kind() const { return static_cast<DetailKind>(word >> kBits); }
  constexpr u32 number() const { return word & static_cast<u32>(low_bits(kBits)); }
};

// First fault of a rank wins the compare-and-swap on `claimed`; the rest of the record is then written and `ready`
// released. 64 bytes.
struct alignas(64) FaultRecord {
  u32 claimed;  // 0 -> 1 by the first to fail
  u32 ready;  // 1 once the fields below are valid (release)
  u32 kind;  // FaultKind
  u32 phase;  // WaitPhase
  u32 peer;  // rank waited for, or ~0
  u32 detail;  // DetailWord
  u64 expected;
  u64 seen;
  u64 last_seen_ns;  // how long ago the peer's last arrival was, 0 when unknown
  u64 waited_ns;
};
static_assert(sizeof(FaultRecord) == 64);

// Values of ControlLayout::departed. The bit kSilent stands beside one of the others.
struct Departed {
  static constexpr u64 kLeaving = 1;  // it is about to end; what it sent may still be on its way
  static constexpr u64 kLeft = 2;  // what it sent has been delivered: from here on nothing more will come
  static constexpr u64 kVotedAgainst = 3;  // of this host, it has voted to go on without this rank: it has left
  static constexpr u64 kValues = 3;
  static constexpr u64 kSilent = 4;  // a rank of this node, it is gone: what it wrote is in memory
};

// Offsets (bytes from the control segment's base) of every table. Built once from the group's shape; all ranks of a
// group build the same one.
struct ControlLayout {
  u32 num_ranks = 0;
  u32 num_channels = 0;

  static constexpr u64 kAbort = 0;  // u64: non-zero ends every wait of this rank
  // u64: non-zero once some rank has departed, so that a wait looks at no other word before. Beside kAbort, as part of
  // what one read over PCIe brings.
  static constexpr u64 kSomeDeparted = 8;
  static constexpr u64 kFault = 64;  // FaultRecord
  static constexpr u64 kBarrier = 128;  // u64: rounds of barrier with remote peers completed (proxy)
  static constexpr u64 kLocalBarrier = 192;  // u64: rounds this rank has entered (its kernel; read by node peers)
  static constexpr u64 kExclusions = 200;  // u64: changes of `excluded`, `ended` and `resume` so far (kernels, Python)
  static constexpr u64 kDoorbell = 208;  // u32: times that the host has announced commands (engine/doorbell.h)
  static constexpr u64 kSleepers = 212;  // u32: proxy threads that sleep until then
  static constexpr u64 kKeepAwake = 216;  // u64: 1 = commands also come unannounced
  static constexpr u64 kTables = 256;

  // Arrival flags: flag(phase, src) = last epoch of which everything from src has arrived. Writer: the proxy for remote
  // sources, the kernel of this rank for itself.
  constexpr u64 flag(Phase phase, u32 source) const {
    return kTables + (static_cast<u64>(phase) * num_ranks + source) * 8;
  }
  // When that flag was last raised, steady-clock ns (proxy; for "last seen").
  constexpr u64 flag_time(u32 source) const { return flags_end() + source * 8ull; }
  // Expect headers: where the kCount of (phase, epoch) from src lands. Two sets, by epoch parity.
  constexpr u64 expect(Phase phase, u64 epoch, u32 source) const {
    return times_end() + ((static_cast<u64>(phase) * 2 + (epoch & 1)) * num_ranks + source) * kExpectStride;
  }
  // What flag(phase, src) says, once more behind either header: a GPU reads it and the header's identity at once, since
  // both are in one sector of 32 bytes.
  constexpr u64 flag_beside(Phase phase, u64 epoch, u32 source) const {
    return expect(phase, epoch, source) + sizeof(ExpectHeader);
  }
  // Sequence tails: chunks from src on (direction, channel) that have arrived in order.
  constexpr u64 tail(Direction direction, u32 source, u32 channel) const {
    return expects_end() + ((static_cast<u64>(direction) * num_ranks + source) * num_channels + channel) * 8;
  }
  // Credits: chunks of ours on (direction, channel) that peer's side has finished reading.
  constexpr u64 credit(Direction direction, u32 peer, u32 channel) const {
    return tails_end() + ((static_cast<u64>(direction) * num_ranks + peer) * num_channels + channel) * 8;
  }
  // Low-latency epochs that `reader` has finished reading, as its ExpectHeaders said (proxy; Phase kDispatch,
  // kCombine).
  constexpr u64 consumed(Phase phase, u32 reader) const {
    return tails_end() + streams_bytes() + (static_cast<u64>(phase) * num_ranks + reader) * 8;
  }
  // Non-zero once a peer has said goodbye: its end is no fault. Written by the peer itself when it runs on this host
  // (it maps this segment), else by the proxy when the transport says so. Whoever writes it sets kSomeDeparted too.
  constexpr u64 departed(u32 peer) const { return consumed(Phase::kCounts, 0) + peer * 8ull; }
  // For reports: (due << 32 | arrived) of the epoch that is under way from `source` (proxy, relaxed).
  constexpr u64 progress(Phase phase, u32 source) const {
    return departed(num_ranks) + (static_cast<u64>(phase) * num_ranks + source) * 8;
  }
  // Non-zero while this rank leaves `peer` out (RankContext::mask): nothing more is sent to it, and no barrier waits
  // for it. A change is released through kExclusions.
  constexpr u64 excluded(u32 peer) const { return progress(static_cast<Phase>(kNumPhases), 0) + peer * 8ull; }
  // Non-zero once a rank of this host knows that the process of `peer`, on another host, has ended without a goodbye
  // (uccl_ep/membership/death_notices.py). Released through kExclusions.
  constexpr u64 ended(u32 peer) const { return excluded(num_ranks) + peer * 8ull; }
  // Non-zero once a worker of this rank has parted with `peer`, what was on its way to it included: for good (proxy).
  constexpr u64 parted(u32 peer) const { return ended(num_ranks) + peer * 8ull; }
  // Epoch of (phase, src) up to which nothing is waited for any more: what comes next from `source` counts from there.
  // Written by Python when a rank comes back that missed calls; released through kExclusions.
  constexpr u64 resume(Phase phase, u32 source) const {
    return parted(num_ranks) + (static_cast<u64>(phase) * num_ranks + source) * 8;
  }
  // Where the write of (Phase::kIdentity, epoch) from src lands: a CallIdentity. Two sets, by epoch parity.
  constexpr u64 identity(u64 epoch, u32 source) const {
    return align_up(resume(static_cast<Phase>(kNumPhases), 0), 16) +
           ((epoch & 1) * num_ranks + source) * sizeof(CallIdentity);
  }
  constexpr u64 bytes() const { return align_up(identity(0, 0) + 2ull * num_ranks * sizeof(CallIdentity), 4096); }

 private:
  static constexpr u64 kExpectStride = 64;
  constexpr u64 flags_end() const { return kTables + static_cast<u64>(kNumPhases) * num_ranks * 8; }
  constexpr u64 times_end() const { return align_up(flags_end() + num_ranks * 8ull, 64); }
  constexpr u64 expects_end() const {
    return times_end() + static_cast<u64>(kNumPhases) * 2 * num_ranks * kExpectStride;
  }
  constexpr u64 streams_bytes() const { return static_cast<u64>(kNumDirections) * num_ranks * num_channels * 8; }
  constexpr u64 tails_end() const { return expects_end() + streams_bytes(); }
};

}  // namespace uccl

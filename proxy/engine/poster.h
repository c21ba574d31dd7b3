// Rings to transport: takes commands in ticket order, checks them, posts them within the peers' limits, and turns
// completions (in any order) into each ring's `done`.
//
// A command that cannot be posted blocks its ring, never another ring. kQuiet needs no waiting here: it is complete as
// soon as it is taken, and `done` passes it only after everything before it. kBarrier holds its ring until the round is
// over.
#pragma once
#include <array>
#include <span>
#include <vector>

#include "engine/barrier.h"
#include "engine/credit_gate.h"
#include "engine/faults.h"
#include "engine/words.h"
#include "ring/consumer.h"
#include "transport/transport.h"

namespace uccl {

// What a worker lends its poster; all of it outlives the poster.
struct WorkerContext {
  const EngineSettings& settings;
  u32 index;
  Lane& lane;
  WorkerCounters& counters;
  PeerLedger& ledger;
  Faults& faults;
  EventLog events = {};
};

class Poster {
 public:
  Poster(const WorkerContext& context, Barrier& barrier);

  // One turn over this worker's rings. Returns how many commands moved on (taken or posted).
  u32 turn();
  void complete(std::span<const u64> wr_ids);
  // The peer's lane is closed: its open writes are complete, as far as they ever will be.
  void drop_peer(u32 peer);
  // Nothing taken is open and no committed command waits.
  bool drained() const;

 private:
  static constexpr u32 kBatch = 32;  // commands of one ring before the next ring has its turn
  static constexpr u32 kNoStream = ~0u;
  enum class SlotState : u8 { kEmpty, kOpen, kComplete };
  struct Slot {  // of an open ticket; tickets in [done, next) lie in distinct slots
    u64 ticket;
    u32 bytes;
    u32 credit_stream;  // of a kCredit, or kNoStream
    u16 peer;
    SlotState state;
  };
  struct Ring {
    RingConsumer consumer;
    std::vector<Slot> slots;  // as many as the ring has
    u64 done = 0, published_done = 0;
    u64 stalled_ticket = ~0ull;  // counted once, however often it is looked at
    u32 stall_told = kNobody;  // whom the last recorded stall was for, since the ring was last empty
    u32 staged_begin = 0, staged_end = 0;
    std::array<WriteRequest, kBatch> staged;  // taken, and not yet accepted by the lane
  };
  enum class Step { kTaken, kWait };

  u32 turn(Ring& ring, u32 index);
  Step take(Ring& ring, u32 index, const Command& command);
  Step take_barrier(Ring& ring, const Command& command);
  Step take_write(Ring& ring, u32 index, const Command& command);
  CommandError refusal(const Command& command, const u8** source) const;
  void refuse(Ring& ring, const Command& command, CommandError error);
  void finish(Ring& ring);  // takes the next ticket as complete
  void stall(Ring& ring, u32 peer);
  void record_popped(const WriteRequest& request);
  void record_posted(const Ring& ring, u32 from);
  u64 now() { return now_ns_ != 0 ? now_ns_ : now_ns_ = steady_ns(); }  // one clock read a turn, when one is needed
  bool push_staged(Ring& ring);
  void settle(Ring& ring, u64 ticket);
  bool in_window(const Ring& ring, const Command& command) const;

  const EngineSettings& settings_;
  u32 worker_;
  Lane& lane_;
  WorkerCounters& counters_;
  PeerLedger& ledger_;
  Faults& faults_;
  Barrier& barrier_;
  CreditGate credit_gate_;
  Ring* barrier_ring_ = nullptr;
  std::vector<Ring> rings_;
  u32 first_ = 0;  // the ring whose turn is first: rotates, so rings share a peer's room
  EventLog events_;
  bool traced_, recording_;
  bool quiet_ = true;  // the last turn moved nothing: the next command begins a burst
  u64 now_ns_ = 0;
};

}  // namespace uccl

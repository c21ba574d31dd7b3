// Lanes, warps, blocks and launches while they run.
#pragma once
#include <bit>
#include <cstring>

#include "machine.h"

namespace ptx {

inline constexpr u32 kLaneBits = 18;         // of an id: the lane within its launch; above it the stream, from 1 on
inline constexpr u32 kInstructionBits = 20;  // of Access::instruction; above it the kernel's number
inline constexpr u64 kSpinInstructions = 500;  // more than a turn of a loop that waits
inline constexpr u64 kDawdlesOneIn = 8;        // strong loads that a lane comes to
inline constexpr u64 kLagsTurns = 16;         // that a lane which lags lets pass
inline constexpr u64 kWakesOneIn = 4;          // lanes that dawdle, each time that all others only wait
inline constexpr u32 kLooksApart = 256;       // turns between two looks at all that hosts write
inline constexpr u64 kSectorBytes = 32;         // that a GPU reads of the host's memory at once
inline constexpr u64 kSharedGuard = 128;     // bytes behind a block's shared memory that nobody else has

struct Machine::Lane {
  const Instruction* code = nullptr;
  u64* registers = nullptr;
  Warp* warp = nullptr;
  Block* block = nullptr;
  u32 tid = 0, id = 0, clock = 0;
  u32 next = 0, at = 0;  // instructions: the one to come, the one at hand
  u64 wide = 0, executed = 0;
  u64 last_sleep = 0;  // instructions executed by then
  bool dawdled = false;  // before the instruction to come
  bool lags = false;     // lets turns pass
  Trips trips;
  u32 host_trips = 0, flag_trips = 0, fences = 0;
  u8 asked =
      0;  // loads that are on their way: 8 one of another device, 4 of 16 bytes, 2 of a new line, 1 of a known line
  const Region* region = nullptr;  // of the address that it resolved last; null: shared memory
  bool away = false;               // that is of another device
  Clock known;

  u64 value(const Operand& operand) const { return operand.slot == kNoSlot ? operand.value : registers[operand.slot]; }
  void set(u16 slot, u64 value) {
    if (slot != kNoSlot) registers[slot] = value;
  }
};

struct Machine::Warp {
  Lane* lanes = nullptr;
  u32 arrived = 0, ended = 0, at = 0;
};

struct Machine::Block {
  Block(Launch& launch, u32 number);
  Launch& launch;
  u32 number, sm = 0;
  std::vector<Lane> lanes;
  std::vector<Warp> warps;
  std::vector<u64> registers;
  std::unique_ptr<u8[]> memory;
  u8* shared = nullptr;  // 128-byte aligned
  Shadow shadow;
  std::unordered_set<u64> lines;  // that it has read
  u32 arrived = 0, ended = 0, at = 0;
  bool vote = true;
};

struct Machine::Launch {
  Launch(const LaunchRequest& r, Kernel& k, u32 k_number, u32 l_number)
      : request(r), kernel(&k), kernel_number(k_number), number(l_number) {}
  const LaunchRequest& request;
  Kernel* kernel;
  u32 kernel_number, number;
  u32 first_id = 0, clock = 0, last_clock = 0;
  Clock known, all_known;  // at the beginning; at the end
  u32 next_block = 0;
  u64 full_since = ~0ull;  // how many blocks had ended when there was no room for the next
  std::map<u32, std::unique_ptr<Block>> blocks;
  std::vector<Lane*> ready, sleeping, late;
  std::unordered_set<u64> host_words, host_reads, plain_host_reads, flags;
  Counts counts;
  std::string error;
  bool done = false;
};

inline Machine::Block::Block(Launch& l, u32 n)
    : launch(l), number(n), lanes(l.request.lanes), warps(l.request.lanes / 32) {
  const u32 slots = l.kernel->slots;
  registers.assign(static_cast<u64>(slots) * lanes.size(), 0xCDCDCDCDCDCDCDCDull);
  memory = std::make_unique<u8[]>(l.request.shared_bytes + 256);
  shared = reinterpret_cast<u8*>((reinterpret_cast<u64>(memory.get()) + 127) & ~127ull);
  std::memset(shared, 0xCD, l.request.shared_bytes);
  for (u32 t = 0; t < lanes.size(); ++t) {
    Lane& lane = lanes[t];
    lane.code = l.kernel->code.data();
    lane.registers = registers.data() + static_cast<u64>(slots) * t;
    lane.warp = &warps[t / 32];
    lane.block = this;
    lane.tid = t;
    lane.id = l.first_id + n * l.request.lanes + t;
    lane.clock = l.clock;
    if (t % 32 == 0) lane.warp->lanes = &lane;
  }
}

}  // namespace ptx

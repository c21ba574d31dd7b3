// A GPU that executes PTX on the host: launches, blocks on processors, lanes in any order, and a judge of every access.
//
// One thread executes the lanes of all launches in turns, in an order drawn from a seed, cut at instructions that order
// memory. Real memory is read and written, so host threads (proxies) take part as they do beside a GPU.
#pragma once
#include <array>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>

#include "shadow.h"

namespace ptx {

// What a streaming multiprocessor has. A block takes registers by whole warps, and 1 KiB of shared memory for itself.
struct Processor {
  u32 lanes = 2048, blocks = 32, registers = 65536, shared_bytes = 228 << 10;
  u32 block_shared_bytes() const { return shared_bytes - kReserved; }
  static constexpr u32 kReserved = 1 << 10;
};

// Turns of lanes from when one has looked at bytes that a NIC has written until it sees them; kNever: only after a flush.
struct Lag {
  static constexpr u32 kNever = ~0u;
  u32 owner = 0, others = 0;  // of the memory
};

struct Settings {
  u64 seed = 1;
  u32 preempt = 4;  // a lane gives way after one in so many instructions that order memory; 0: never
  bool judge = true;  // races
  bool count = true;  // trips, and words that lanes wait for
  Processor processor;
  Lag lag;
  u64 patience_ns = 4'000'000'000;  // of blocks that have no room, while all that run wait
};

enum class Kind : u8 { kUnknown, kDevice, kPinned, kTensor, kShared };  // kShared: a device's, which NICs write

struct LaunchRequest {
  std::string kernel;
  u32 grid, lanes, shared_bytes, registers;  // of a block; of a lane
  std::string args;
  u32 stream;
  u32 device;  // that scopes are judged by: ranks that share a GPU in a test are apart in production
  u32 snapshot;  // what the host thread knew when it queued this
  u32 gpu, num_sms;
};

struct Trips {
  u64 away = 0, wide = 0, line = 0, near = 0;
  u64 weight() const { return 48 * away + 14 * wide + 7 * line + near; }  // about as NVLink, HBM, L2 and L1 are slow
};

struct Counts {
  u32 grid = 0, warps = 0;
  u64 instructions = 0;
  u64 busiest_lane = 0;  // 16-byte accesses of the lane that made most
  // Different sectors of pinned memory that each warp read, added up: with an order, and by plain loads of up to 8 bytes.
  u64 host_reads = 0, plain_host_reads = 0;
  // Bytes of global memory: loads of 16 bytes; plain stores of any size. Of those, in memory of other devices.
  u64 loaded = 0, stored = 0, loaded_away = 0, stored_away = 0;
  // Of the lane that waited longest: how often it used what loads had brought that were on their way together, by the
  // slowest of them: one of another device's memory, one of 16 bytes, one of a line that its block had not read yet, one
  // of a line that it had.
  Trips trips;
  // Of the lane that has most of each: different words of pinned memory that it read with an order; different other
  // words that it read, or added to, with an order; releases to the system, each of which waits for all that the lane has stored.
  u64 host_trips = 0, flag_trips = 0, fences = 0;
  std::vector<u64> warp;  // 16-byte accesses of each warp
};

class Machine {
 public:
  explicit Machine(const Settings& settings);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  void load(std::string_view program);
  // Runs a kernel to its end, in the calling thread's stead; returns what it did wrong, or "". After the first mistake
  // of any kernel none runs on, and none begins: what they would wait for may never come.
  std::string launch(const LaunchRequest& request, Counts* counts);

  // ---- order: streams, events, and what host threads know ----
  u32 snapshot(u64 thread);  // what the thread knows now, for a launch or a wait that it queues
  u32 record(u32 stream);
  void wait(u32 stream, u32 event);
  void host_learns(u64 thread, u32 event);
  void hosts_meet();  // a barrier of all host threads
  void release(u32 event);

  // ---- memory ----
  void region(u64 address, u64 bytes, Kind kind, u32 owner = 0);  // kUnknown: is gone. `owner`: a device; 0: nobody's
  void tensor(u64 address, u64 bytes);  // of a tensor, where it is not known yet
  void flush(u32 owner);  // what NICs have written into a device's memory so far is seen by all

  // ---- other processes ----
  void occupy(u32 gpu, u32 num_sms);  // so many of its processors are full of their kernels

  // ---- mutants ----
  // Changes how one instruction orders memory: "relax", "weaken", "narrow", "remove"; "" = as it was. Throws std::invalid_argument
  // where that is no change.
  void mutate(const std::string& kernel, u32 instruction, const std::string& how);
  const std::map<std::string, Kernel>& kernels() const { return kernels_; }

 private:
  struct Launch;
  struct Block;
  struct Warp;
  struct Lane;
  struct Stream {
    Clock known;
    u32 clock = 0;  // of every lane, when the last launch has ended
  };
  struct Sync {
    Clock known;
    Access access;
  };
  // What lanes see of memory that NICs write.
  struct Visible {
    u64 begin = 0;
    std::array<std::vector<u8>, 2> bytes;  // for the owner, for others
    std::array<std::unordered_map<u64, u32>, 2> late;  // words that differ from memory: since when a lane looks at them
  };
  struct Region {
    u64 end;
    Kind kind;
    u32 owner;
    std::shared_ptr<Visible> visible;  // null: as memory is
  };
  struct Sm {
    u32 lanes = 0, blocks = 0, registers = 0, shared_bytes = 0;  // taken
  };
  // A word that lanes have stored and the host may not see yet.
  struct Pending {
    u32 value = 0;
    u8 bytes = 0;  // those of the word that are stored, a bit each
    u32 id = 0, clock = 0;
  };

  void execute();
  bool turn(Launch& launch);
  void give_up_on_room();
  void wake_late();
  void sweep();
  void admit(Launch& launch);
  Sm need(const LaunchRequest& request) const;
  std::string too_large(const LaunchRequest& request) const;
  bool place(Launch& launch, u32* where);
  void leave(const Launch& launch, const Block& block);
  void finish(Launch& launch);
  void break_off(Launch& launch, const std::string& why);
  void end_block(Launch& launch, Block& block);
  // Executes a lane until it waits, sleeps, gives way or ends.
  void run(Lane& lane);
  void look_at_all();
  void changed_by_host(Cell& cell, u64 address);
  bool dawdles(Lane& lane, const Instruction& i);
  void load_elements(Lane& lane, const Instruction& i);
  void store_elements(Lane& lane, const Instruction& i);
  void atomic(Lane& lane, const Instruction& i);
  u64 resolve(Lane& lane, const Instruction& i, u64 address, u32 bytes, bool* shared);
  void judge(Lane& lane, const Instruction& i, u64 address, u32 bytes, bool shared, bool write, const void* now);
  void acquire(Lane& lane, const Instruction& i, u64 address, bool shared);
  void publish(Lane& lane, const Instruction& i, u64 address, bool chain);
  Clock all_of(const Lane& lane) const;
  // Memory as lanes see it: with what the host does not see yet.
  void look(const Region* region, bool owner, u64 address, u32 bytes, void* image);
  void look_late(Visible& visible, bool owner, u64 address, u32 bytes);
  void show(u64 address, u32 bytes);
  void put_off(const Lane& lane, u64 address, u32 bytes, const void* image);
  static void store_now(u64 address, u32 bytes, const void* image);
  void write_back(u64 word, const Pending& pending);
  void write_back_range(u64 address, u32 bytes);
  void write_back_known(const Lane& lane);
  void write_back_some();
  void arrive_at_warp(Lane& lane, const Instruction& i);
  void arrive_at_block(Lane& lane, const Instruction& i);
  void complete_warp(Warp& warp);
  void complete_block(Block& block);
  void meet(Lane* const* lanes, u32 count);
  void end_lane(Lane& lane);
  [[noreturn]] void fail(const Lane& lane, const std::string& what) const;
  std::string place(u32 launch_kernel, u32 instruction) const;
  std::string describe(const Access& access) const;
  u64 random();

  Settings settings_;
  static inline std::mutex mutex_;  // one for all machines: clocks share what they remember
  std::condition_variable work_, ended_;
  std::map<std::string, Kernel> kernels_;
  std::vector<const Kernel*> by_number_;  // of Access::instruction's upper bits
  std::map<std::string, u32> numbers_;
  std::map<std::pair<std::string, u32>, Instruction> originals_;
  std::vector<Launch*> active_;
  std::map<u32, Stream> streams_;
  std::map<u64, Clock> hosts_;
  std::map<u32, Clock> events_;
  u32 next_event_ = 1, next_launch_ = 1;
  Clock host_known_;  // what was released to memory that the host reads
  std::string host_error_;  // what a host thread did, for the next launch to tell
  std::unordered_map<u64, Sync> syncs_;
  std::map<u64, Region> regions_;
  Shadow shadow_;
  std::unordered_map<u64, Pending> pending_;  // by word
  std::vector<u64> pending_order_;  // words to pick from; some are gone
  u64 rng_;
  u32 write_back_every_;
  bool dawdles_, lags_;  // lanes rest before loads: until all others wait; for some turns
  u32 now_ = 1;
  std::map<u32, std::vector<Sm>> gpus_;
  std::map<u32, u32> occupied_;  // processors that other processes have filled
  u64 ended_blocks_ = 0;
  u64 idle_ = 0;
  u32 looked_ = 0;  // when all that hosts write was looked at
  u64 stuck_since_ = 0;  // ns; lanes only wait since then, and blocks wait for room. 0: not so
  bool stop_ = false, broken_ = false;
  std::thread thread_;
};

}  // namespace ptx

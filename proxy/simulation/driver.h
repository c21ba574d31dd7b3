// Runs the kernels and the engines of all ranks on one thread. A rank is a script on a fiber; a launch of its kernels
// gives the driver a turn after every pass over its warps, a worker of its engine is stepped. What comes next (a rank,
// a worker, the network's next event) is drawn from the seed, and time moves on when there is nothing left to do.
#pragma once
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/host/fiber.h"
#include "kernels/host/runtime.h"
#include "simulation/values.h"
#include "simulation/world.h"

namespace uccl::simulation {

enum class Kernel : u32 {
  kNone = 0,
  kDispatchSend,
  kDispatchReceive,
  kCombineSend,
  kCombineReceive,
  kLayout,
  kCounts,
  kSettle,
  kDispatch,
  kCombine,
  kBarrier,
  kQuiet,  // host side: a command that asks for silence
};
const char* name_of(Kernel kernel);

// Thrown in a rank's script once the rank has failed: there is nothing left to check.
struct RankFailed {};
// Thrown in a rank's script when it leaves (case.h): it takes no further part.
struct RankLeft {};
// What a run found that must not be.
struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct DriverSettings {
  u64 seed = 1;
  u64 step_ns = 100;     // virtual time of one step
  bool in_turn = false;  // the first that can run, instead of one drawn from the seed
  std::vector<FaultPlan> faults{};
  std::vector<Leaving> leavings{};
};

class Driver {
 public:
  Driver(World& world, const DriverSettings& settings);
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // script(rank) on every rank, until all living ranks have ended and what is on its way has arrived. Returns "" or
  // the first violation: what a script threw, or that a rank hangs. Once.
  std::string run(const std::function<void(u32)>& script);

  // ---- inside a script ---------------------------------------------------------------------------------------------
  // Runs a kernel of this rank to its end. Throws RankFailed when the rank has failed by then.
  template <class Args>
  void launch(u32 rank, Kernel which, void (*kernel)(Args), const Args& args, const simt::LaunchConfig& config) {
    begin_launch(rank, which);
    simt::launch(config, [&] { kernel(args); });
    end_launch(rank);
  }
  // Returns when everything this rank has put into its rings is complete at its receivers. Past its deadline it records
  // a fault that names nobody, and throws RankFailed.
  void quiet(u32 rank);
  // The barrier kernel; every rank calls it equally often.
  void barrier(u32 rank);
  // This rank leaves another out from now on.
  void leave_out(u32 rank, u32 peer);

  // ---- after a run -------------------------------------------------------------------------------------------------
  bool finished(u32 rank) const { return ranks_[rank].finished; }  // its script came to its end
  Kernel kernel(u32 rank) const { return ranks_[rank].kernel; }    // the last one launched
  struct Longest {
    u64 ns = 0;
    u32 rank = 0;
    Kernel kernel = Kernel::kNone;
  };
  const Longest& longest_launch() const { return longest_; }  // of living ranks
  u64 steps() const { return steps_; }
  u64 trace() const { return trace_; }

 private:
  struct RankState {
    std::unique_ptr<simt::Fiber> fiber;
    Kernel kernel = Kernel::kNone;
    bool launching = false, first_pass = false, finished = false, ended = false, abort_seen = false;
    u64 launched_ns = 0, commands = 0, barriers = 0, exclusions = 0;
    u64 launches = 0, most_launches = ~0ull;  // after which it leaves
    u32 aborted_passes = 0;
    u32 passes_left = 0;  // it runs so often whatever it makes of it: spins look at clock and abort every 16 turns
  };
  struct Hooks : simt::HostHooks {
    Driver* driver;
  };
  struct Watch {  // a node peer's process watch, which tells of a death
    u64 at_ns;
    u32 rank, peer;
  };

  void begin_launch(u32 rank, Kernel which);
  void end_launch(u32 rank);
  void pause(bool progress);
  bool eligible(u32 entity);
  void mark(u32 entity);
  void mark_node(u32 rank);
  void mark_workers(u32 rank, u32 turns = 0);
  void mark_all(u32 passes);
  void step(u32 entity);
  void step_rank(u32 rank);
  void step_worker(u32 rank, u32 index);
  void tell_time();
  void note_progress();
  void move_time(u64 to_ns);
  void run_watches();
  bool advance();
  static constexpr u32 kTurnsToSeeExclusions = 20;  // workers look every 16 turns
  u64 next_wake_ns() const;
  u64 next_deadline_ns() const;
  void notice_abort(u32 rank);
  void stop(const std::string& why);
  void bury(u32 rank);
  std::string stuck() const;

  World& world_;
  SimulatedNetwork& network_;
  DriverSettings settings_;
  Random random_;
  Hooks hooks_;
  std::vector<RankState> ranks_;
  u32 num_workers_;
  std::vector<std::vector<u32>> node_;   // ranks of each node
  std::vector<u32> runnable_, position_;  // entities that can do something; where each stands, or ~0
  std::vector<u64> next_turn_ns_;        // of entities of slow ranks
  std::vector<u32> turns_left_;          // of workers: they run so often whatever comes of it
  std::vector<u32> sleeping_;            // entities that wait for their turn
  std::vector<Watch> watches_;
  u32 alive_ = 0;
  u64 faults_seen_ = 0, steps_ = 0, trace_ = 0x7ace, idle_jumps_ = 0;
  Longest longest_;
  bool progress_ = false;
  bool swept_ = false;  // everything has had a look since something last moved
  u64 moved_ns_ = 0;    // when it did
  std::string violation_;
};

}  // namespace uccl::simulation

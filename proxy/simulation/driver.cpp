// The scheduler: an entity is a rank's script (0 to N - 1) or a worker (N and up); one that did nothing waits until
// something that it can see has changed.
#include "simulation/driver.h"

#include <algorithm>

#include "engine/words.h"

namespace uccl::simulation {
namespace {

constexpr u32 kNowhere = ~0u, kAsleep = ~0u - 1;
constexpr u32 kPassesToSeeTime = 2 * simt::kSpinsPerCheck + 2;
constexpr u64 kMostSteps = 30'000'000;  // ten times what 64 ranks need
constexpr u32 kMostAbortedPasses = 200'000;
constexpr u64 kMostIdleJumps = 400;    // deadlines that time may be moved to in one run
constexpr u64 kMostShrinkJumps = 4000;
// With ranks that may be left out, time moves in steps that are short beside the graces of waits and workers (1 s), until
// nothing has moved for so long that they are all over.
constexpr u64 kShrinkJumpNs = 400'000'000, kGracesOverNs = 3'000'000'000;
constexpr u64 kBlocksStartWithin = 64;  // this share of the timeout after their launch
constexpr u64 kDrainNs = 100'000'000;  // after the last script: faults may still be planned for later

// Time and runtime of the thread are the driver's while it runs.
struct Installed {
  Installed(simt::HostHooks* hooks, const u64* clock) {
    simt::host_hooks = hooks;
    simulated_ns = clock;
  }
  ~Installed() {
    simt::host_hooks = nullptr;
    simulated_ns = nullptr;
  }
};

}  // namespace

Driver::Driver(World& world, const DriverSettings& settings)
    : world_(world),
      network_(world.network()),
      settings_(settings),
      random_(key_of(settings.seed, 0xd21e)),
      ranks_(world.num_ranks()),
      num_workers_(world.num_workers()),
      node_(world.num_nodes) {
  const u32 entities = world.num_ranks() * (1 + num_workers_);
  position_.assign(entities, kNowhere);
  next_turn_ns_.assign(entities, 0);
  turns_left_.assign(entities, 0);
  runnable_.reserve(entities);
  for (RankState& s : ranks_) s.barriers = world.shape().age;
  for (const Leaving& l : settings.leavings)
    if (l.launches != ~0u) ranks_[l.rank].most_launches = l.launches;
  for (u32 r = 0; r < world.num_ranks(); ++r) node_[world.shape().node_of[r]].push_back(r);
  hooks_.driver = this;
  hooks_.after_pass = [](simt::HostHooks* self, bool progress) { static_cast<Hooks*>(self)->driver->pause(progress); };
}

Driver::~Driver() = default;

// ---- who can run ----------------------------------------------------------------------------------------------------

bool Driver::eligible(u32 entity) {
  const u32 ranks = world_.num_ranks();
  const u32 rank = entity < ranks ? entity : (entity - ranks) / num_workers_;
  return !network_.dead(rank) && (entity >= ranks || !ranks_[rank].ended);
}

void Driver::mark(u32 entity) {
  if (position_[entity] != kNowhere || !eligible(entity)) return;
  position_[entity] = static_cast<u32>(runnable_.size());
  runnable_.push_back(entity);
}

void Driver::mark_node(u32 rank) {
  for (const u32 r : node_[world_.shape().node_of[rank]]) mark(r);
}

void Driver::mark_workers(u32 rank, u32 turns) {
  for (u32 w = 0; w < num_workers_; ++w) {
    const u32 entity = world_.num_ranks() + rank * num_workers_ + w;
    turns_left_[entity] = std::max(turns_left_[entity], turns);
    mark(entity);
  }
}

void Driver::mark_all(u32 passes) {
  for (u32 r = 0; r < world_.num_ranks(); ++r) {
    ranks_[r].passes_left = std::max(ranks_[r].passes_left, passes);
    mark(r);
    mark_workers(r, world_.shape().shrink && passes != 0 ? kTurnsToSeeExclusions : 0);
  }
}

// ---- steps ----------------------------------------------------------------------------------------------------------

// Atomic for ThreadSanitizer, to which lanes are threads of their own.
void Driver::tell_time() { __atomic_store_n(&hooks_.now_ns, network_.now_ns(), __ATOMIC_RELAXED); }

void Driver::note_progress() {
  swept_ = false;
  moved_ns_ = network_.now_ns();
}

void Driver::step_rank(u32 rank) {
  RankState& s = ranks_[rank];
  tell_time();
  // Its kernel may read a flag in this step, whose answer pushes into its GPU whatever came before.
  if (world_.shape().rows == Rows::kOwned) network_.flush_device(rank);
  progress_ = true;
  try {
    s.fiber->resume();
  } catch (const std::exception& e) { stop(e.what()); }
  // What a launch does before its first spin is no progress to the runtime, but others may wait for it.
  const bool progress = progress_ || s.first_pass;
  s.first_pass = false;
  if (progress) note_progress();
  if (s.fiber->ended()) {
    s.ended = true;
    --alive_;
  }
  if (world_.aborted(rank)) notice_abort(rank);
  if (s.passes_left != 0) --s.passes_left;
  const u64 commands = world_.commands(rank);
  if (progress || commands != s.commands) mark_workers(rank);
  s.commands = commands;
  if (world_.shape().shrink && world_.exclusions(rank) != s.exclusions) {  // a kernel has left somebody out
    s.exclusions = world_.exclusions(rank);
    mark_workers(rank, kTurnsToSeeExclusions);
  }
  if (progress) mark_node(rank);
  // Every wait looks at the abort word only after 16 turns, and a kernel may hold many: it runs until it has ended.
  if (progress || s.passes_left != 0 || (s.abort_seen && ++s.aborted_passes < kMostAbortedPasses)) mark(rank);
}

void Driver::step_worker(u32 rank, u32 index) {
  const u64 version = world_.membership(rank).version();
  const bool worked = world_.worker(rank, index).turn();
  const u32 entity = world_.num_ranks() + rank * num_workers_ + index;
  if (worked) {
    note_progress();
    mark_node(rank);
  }
  if (world_.membership(rank).version() != version) {
    mark_workers(rank);
    mark_node(rank);
  }
  if (world_.aborted(rank)) notice_abort(rank);
  if (turns_left_[entity] != 0) --turns_left_[entity];
  if (worked || turns_left_[entity] != 0 || network_.has_news(rank * num_workers_ + index)) mark(entity);
}

void Driver::notice_abort(u32 rank) {
  if (ranks_[rank].abort_seen) return;
  ranks_[rank].abort_seen = true;
  mark(rank);
}

void Driver::step(u32 entity) {
  ++steps_;
  const u32 ranks = world_.num_ranks();
  const u32 rank = entity < ranks ? entity : (entity - ranks) / num_workers_;
  for (const FaultPlan& p : settings_.faults) {
    const u64 now = network_.now_ns();
    if (p.kind != FaultPlanKind::kSlow || p.source != rank || now < p.begin_ns || now >= p.end_ns) continue;
    if (now < next_turn_ns_[entity]) {
      sleeping_.push_back(entity);
      position_[entity] = kAsleep;
      return;
    }
    next_turn_ns_[entity] = now + p.period_ns;
  }
  trace_ = mix(trace_ ^ entity);
  if (entity < ranks)
    step_rank(rank);
  else
    step_worker(rank, (entity - ranks) % num_workers_);
  move_time(network_.now_ns() + settings_.step_ns);
}

// ---- time -----------------------------------------------------------------------------------------------------------

void Driver::move_time(u64 to_ns) {
  network_.run_until(to_ns);
  for (const u32 end : network_.news()) mark(world_.num_ranks() + end);
  network_.clear_news();
  if (faults_seen_ != network_.totals().faults) run_watches();
  if (!watches_.empty() && watches_.front().at_ns <= network_.now_ns()) run_watches();
  for (std::size_t i = 0; i < sleeping_.size();) {
    if (next_turn_ns_[sleeping_[i]] > network_.now_ns()) {
      ++i;
      continue;
    }
    position_[sleeping_[i]] = kNowhere;
    mark(sleeping_[i]);
    sleeping_[i] = sleeping_.back();
    sleeping_.pop_back();
  }
}

// Deaths are told to the ranks of the node by their process watches.
void Driver::run_watches() {
  if (faults_seen_ != network_.totals().faults) {
    faults_seen_ = network_.totals().faults;
    for (const FaultPlan& p : settings_.faults) {
      if (p.kind != FaultPlanKind::kDeath || !network_.dead(p.source) || ranks_[p.source].ended) continue;
      ranks_[p.source].ended = true;  // no step of it any more
      --alive_;
      bury(p.source);
      for (const u32 r : node_[world_.shape().node_of[p.source]])
        if (r != p.source) watches_.push_back({network_.now_ns() + 1 + random_.below(p.notice_ns), r, p.source});
    }
    std::sort(watches_.begin(), watches_.end(),
              [](const Watch& a, const Watch& b) { return a.at_ns != b.at_ns ? a.at_ns < b.at_ns : a.rank < b.rank; });
  }
  while (!watches_.empty() && watches_.front().at_ns <= network_.now_ns()) {
    const Watch w = watches_.front();
    watches_.erase(watches_.begin());
    world_.lose_process(w.rank, w.peer);
    if (world_.aborted(w.rank)) notice_abort(w.rank);
    mark_workers(w.rank);
  }
}

u64 Driver::next_wake_ns() const {
  u64 at = network_.next_ns();
  if (!watches_.empty()) at = std::min(at, watches_.front().at_ns);
  for (const u32 e : sleeping_) at = std::min(at, next_turn_ns_[e]);
  return at;
}

// Deadlines of the launches that are under way; some waits have twice the timeout, some end a little earlier. A block takes
// its deadline when it starts, which may be a little after the launch: time stops there too, not first a timeout later.
u64 Driver::next_deadline_ns() const {
  const u64 now = network_.now_ns(), timeout = world_.shape().timeout_ns;
  const bool graces = world_.shape().shrink && now - moved_ns_ < kGracesOverNs;
  u64 at = now + (graces ? kShrinkJumpNs : timeout);
  for (const RankState& s : ranks_)
    for (const u64 after : {timeout - timeout / kSendersGiveUpEarly, timeout, 2 * timeout})
      for (const u64 late : {u64{0}, timeout / kBlocksStartWithin})
        if (!s.ended && s.launching && s.launched_ns + after + late >= now)
          at = std::min(at, s.launched_ns + after + late + 1);
  return std::max(at, now + 1);
}

// Nothing can run. False when nothing ever will.
bool Driver::advance() {
  const u64 wake = next_wake_ns();
  if (alive_ == 0 && (wake == SimulatedNetwork::kNever || wake > network_.now_ns() + kDrainNs)) return false;
  if (wake != SimulatedNetwork::kNever && (alive_ == 0 || wake < next_deadline_ns())) {
    move_time(wake);
    return true;
  }
  const u64 most = world_.shape().shrink ? kMostShrinkJumps : kMostIdleJumps;
  if (++idle_jumps_ > most) {
    stop("hang: " + stuck());
    return idle_jumps_ <= most + 4;
  }
  // First everything has a look, in case one was not told of something; only when nothing came of that, the next
  // deadline does.
  if (swept_) move_time(next_deadline_ns());
  swept_ = !swept_;
  mark_all(kPassesToSeeTime);
  return true;
}

std::string Driver::stuck() const {
  std::string text;
  for (u32 r = 0; r < world_.num_ranks(); ++r)
    if (!ranks_[r].ended) text += "rank " + std::to_string(r) + " in " + name_of(ranks_[r].kernel) + "; ";
  return text;
}

// The run has shown what it had to show: every rank ends as soon as it can.
void Driver::stop(const std::string& why) {
  if (violation_.empty()) violation_ = why;
  for (u32 r = 0; r < world_.num_ranks(); ++r) world_.raise_abort(r);
  mark_all(kPassesToSeeTime);
}

// The fiber of a dead rank holds memory of its launches; an abort lets it come to its end. At once, since what it reads is
// later overwritten by ranks that no longer wait for it.
void Driver::bury(u32 rank) {
  world_.raise_abort(rank);
  for (u32 i = 0; i < 100'000 && !ranks_[rank].fiber->ended(); ++i) {
    tell_time();
    try {
      ranks_[rank].fiber->resume();
    } catch (const std::exception&) {}  // what it says of a run that is over
  }
  if (!ranks_[rank].fiber->ended() && violation_.empty())
    violation_ = "rank " + std::to_string(rank) + " ignores an abort";
}

std::string Driver::run(const std::function<void(u32)>& script) {
  const Installed installed(&hooks_, network_.clock());
  alive_ = world_.num_ranks();
  for (u32 r = 0; r < world_.num_ranks(); ++r)
    ranks_[r].fiber = std::make_unique<simt::Fiber>([this, r, &script] {
      try {
        script(r);
        ranks_[r].finished = true;
      } catch (const RankFailed&) {  // its fault record says why
      } catch (const RankLeft&) {}
      progress_ = true;
    });
  mark_all(0);
  for (;;) {
    if (runnable_.empty()) {
      if (!advance()) break;
      continue;
    }
    const u32 i = settings_.in_turn ? 0 : static_cast<u32>(random_.below(runnable_.size()));
    const u32 entity = runnable_[i];
    if (settings_.in_turn) {
      runnable_.erase(runnable_.begin());
      for (u32 k = 0; k < runnable_.size(); ++k) position_[runnable_[k]] = k;
    } else {
      runnable_[i] = runnable_.back();
      position_[runnable_[i]] = i;
      runnable_.pop_back();
    }
    position_[entity] = kNowhere;
    if (!eligible(entity)) continue;
    step(entity);
    if (steps_ > kMostSteps) {
      stop("hang: more than " + std::to_string(kMostSteps) + " steps: " + stuck());
      break;
    }
  }
  for (u32 r = 0; r < world_.num_ranks(); ++r) bury(r);
  trace_ = mix(trace_ ^ network_.totals().trace);
  return violation_;
}

}  // namespace uccl::simulation

// Launches, blocks and turns of lanes; what streams, events and host threads know.
#include "machine.h"

#include <malloc.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#include "lanes.h"

namespace ptx {

// Times 256 turns without work, and a rest of 50 us, until lanes that dawdle go on: 1 ms, in which proxies have moved rows.
static constexpr u64 kQuiet = 24;

Machine::Machine(const Settings& settings) : settings_(settings), rng_(settings.seed * 0x9E3779B97F4A7C15ull + 1) {
  static constexpr u32 kEvery[] = {0, 32, 512};  // turns; 0: only what a release or a kernel's end takes with it
  write_back_every_ = kEvery[settings.seed % 3];
  dawdles_ = settings.judge && settings.seed % 3 == 0;
  lags_ = settings.judge && settings.seed % 3 == 2;
  mallopt(M_MMAP_THRESHOLD, 1 << 30);  // blocks come and go: their registers stay with the process
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  thread_ = std::thread([this] { execute(); });
}

Machine::~Machine() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  thread_.join();
}

u64 Machine::random() {
  rng_ ^= rng_ << 13;
  rng_ ^= rng_ >> 7;
  return rng_ ^= rng_ << 17;
}

void Machine::load(std::string_view program) {
  const std::lock_guard lock(mutex_);
  for (Kernel& kernel : read_program(program)) {
    const std::string name = kernel.name;
    if (kernels_.contains(name)) continue;  // loaded by another rank already
    Kernel& kept = kernels_[name] = std::move(kernel);
    numbers_[name] = static_cast<u32>(by_number_.size());
    by_number_.push_back(&kept);
  }
}

// ---- order -----------------------------------------------------------------------------------------------------------

u32 Machine::snapshot(u64 thread) {
  const std::lock_guard lock(mutex_);
  Clock known = hosts_[thread];
  known.learn(kHost, now_++);
  if (settings_.judge) look_at_all();
  events_[next_event_] = std::move(known);
  return next_event_++;
}

u32 Machine::record(u32 stream) {
  const std::lock_guard lock(mutex_);
  events_[next_event_] = streams_[stream].known;
  return next_event_++;
}

void Machine::wait(u32 stream, u32 event) {
  const std::lock_guard lock(mutex_);
  streams_[stream].known.learn(events_[event]);
}

void Machine::host_learns(u64 thread, u32 event) {
  const std::lock_guard lock(mutex_);
  hosts_[thread].learn(events_[event]);
}

void Machine::hosts_meet() {
  const std::lock_guard lock(mutex_);
  Clock all;
  for (const auto& [_, known] : hosts_) all.learn(known);
  for (auto& [_, known] : hosts_) known = all;
}

void Machine::release(u32 event) {
  const std::lock_guard lock(mutex_);
  events_.erase(event);
}

// ---- memory ----------------------------------------------------------------------------------------------------------

void Machine::region(u64 address, u64 bytes, Kind kind, u32 owner) {
  const std::lock_guard lock(mutex_);
  shadow_.forget(address, bytes);
  std::erase_if(syncs_, [&](const auto& sync) { return sync.first - address < bytes; });
  std::erase_if(pending_, [&](const auto& entry) { return entry.first - address < bytes; });
  // A new region ends older ones that it covers: an allocator gives the same place out again.
  auto at = regions_.lower_bound(address);
  if (at != regions_.begin() && std::prev(at)->second.end > address) at = std::prev(at);
  while (at != regions_.end() && at->first < address + bytes) at = regions_.erase(at);
  if (kind == Kind::kUnknown) return;
  Region& made = regions_[address] = Region{address + bytes, kind, owner, nullptr};
  if (kind != Kind::kShared || (settings_.lag.owner == 0 && settings_.lag.others == 0)) return;
  made.visible = std::make_shared<Visible>();
  made.visible->begin = address;
  const auto* const now = reinterpret_cast<const u8*>(address);
  for (auto& image : made.visible->bytes) image.assign(now, now + bytes);
}

void Machine::tensor(u64 address, u64 bytes) {
  {
    const std::lock_guard lock(mutex_);
    const auto after = regions_.upper_bound(address);
    if (after != regions_.begin() && std::prev(after)->second.end >= address + bytes) return;
  }
  region(address, bytes, Kind::kTensor);
}

// ---- mutants ---------------------------------------------------------------------------------------------------------

void Machine::mutate(const std::string& kernel, u32 instruction, const std::string& how) {
  const std::lock_guard lock(mutex_);
  Instruction& i = kernels_.at(kernel).code.at(instruction);
  const auto original = originals_.try_emplace({kernel, instruction}, i).first->second;
  i = original;
  if (how.empty()) return;
  const bool barrier = i.op == Op::k_barsync || i.op == Op::k_barwarp || i.op == Op::k_barand;
  if (how == "remove" && barrier) {
    i.removed = true;
  } else if (how == "relax" && i.order > Order::kRelaxed) {
    i.order = Order::kRelaxed;
  } else if (how == "weaken" && i.order == Order::kRelaxed && i.op != Op::k_add) {
    i.order = Order::kWeak;
    i.scope = Scope::kNone;
  } else if (how == "narrow" && i.scope > Scope::kCta) {
    i.scope = static_cast<Scope>(static_cast<u32>(i.scope) - 1);
  } else {
    throw std::invalid_argument("no such change of " + std::string(name_of(i.op)) + ": " + how);
  }
}

// ---- launches --------------------------------------------------------------------------------------------------------

std::string Machine::launch(const LaunchRequest& request, Counts* counts) {
  std::unique_lock lock(mutex_);
  if (broken_) return "";
  if (!host_error_.empty()) {
    broken_ = true;
    return host_error_;
  }
  const auto found = kernels_.find(request.kernel);
  if (found == kernels_.end()) return "there is no kernel " + request.kernel;
  Kernel& kernel = found->second;
  if (request.args.size() != kernel.param_bytes)
    return request.kernel + " takes " + std::to_string(kernel.param_bytes) + " bytes of arguments, not " +
           std::to_string(request.args.size());
  if (const std::string why = too_large(request); !why.empty()) return request.kernel + ": " + why;
  Launch launch(request, kernel, numbers_[request.kernel], next_launch_++);
  Stream& stream = streams_[request.stream];
  launch.first_id = (request.stream + 1) << kLaneBits;
  launch.clock = stream.clock + 1;
  launch.last_clock = launch.clock;
  launch.known = stream.known;
  if (const auto event = events_.find(request.snapshot); event != events_.end()) launch.known.learn(event->second);
  active_.push_back(&launch);
  work_.notify_all();
  ended_.wait(lock, [&] { return launch.done; });
  stream.known = std::move(launch.all_known);
  stream.clock = launch.last_clock;
  if (counts != nullptr) *counts = std::move(launch.counts);
  return launch.error;
}

void Machine::execute() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (active_.empty()) {
      work_.wait(lock);
      continue;
    }
    bool worked = false;
    for (u32 i = 0; i < 256 && !active_.empty(); ++i) {
      Launch& launch = *active_[random() % active_.size()];
      worked = turn(launch) || worked;
      if (launch.done) sweep();
    }
    lock.unlock();
    if (worked) {
      idle_ = stuck_since_ = 0;
    } else if (++idle_ > 4) {
      usleep(50);  // every lane waits for a host thread
    }
    lock.lock();
    if (idle_ > 4) give_up_on_room();
    if (idle_ > kQuiet) wake_late();
  }
}

// Launches that are at their end go; after a mistake all are.
void Machine::sweep() {
  for (Launch* launch : active_)
    if (broken_ && !launch->done) finish(*launch);
  std::erase_if(active_, [](const Launch* launch) { return launch->done; });
  ended_.notify_all();
}

// What runs waits for what has no room to run.
void Machine::give_up_on_room() {
  const auto crowded =
      std::find_if(active_.begin(), active_.end(), [](const Launch* l) { return l->next_block < l->request.grid; });
  if (crowded == active_.end()) {
    stuck_since_ = 0;
    return;
  }
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  const u64 now = static_cast<u64>(t.tv_sec) * 1'000'000'000ull + static_cast<u64>(t.tv_nsec);
  if (stuck_since_ == 0) stuck_since_ = now;
  if (now - stuck_since_ < settings_.patience_ns) return;
  Launch& launch = **crowded;
  const std::string why = launch.kernel->name + ": " + std::to_string(launch.request.grid - launch.next_block) +
                          " of " + std::to_string(launch.request.grid) + " blocks find no room, and all that run wait";
  break_off(launch, why);
  sweep();
  stuck_since_ = 0;
}

void Machine::break_off(Launch& launch, const std::string& why) {
  launch.error = why;
  broken_ = true;
  finish(launch);
}

// As many more blocks as processors have room for.
void Machine::admit(Launch& launch) {
  u32 sm = 0;
  while (launch.next_block < launch.request.grid && place(launch, &sm)) {
    const u32 number = launch.next_block++;
    auto& block = launch.blocks[number] = std::make_unique<Block>(launch, number);
    block->sm = sm;
    for (Lane& lane : block->lanes) {
      lane.known = launch.known;
      launch.ready.push_back(&lane);
    }
  }
}

// One lane's turn. False: it only looked again at what it waits for.
bool Machine::turn(Launch& launch) {
  bool worked = true;
  ++now_;
  if (!pending_order_.empty() && write_back_every_ != 0 && random() % write_back_every_ == 0) write_back_some();
  try {
    if (launch.next_block < launch.request.grid) admit(launch);
    if (launch.ready.empty()) {
      launch.ready.swap(launch.sleeping);
      if (launch.ready.empty()) {
        if (!launch.late.empty()) return false;
        if (!launch.blocks.empty())
          throw std::runtime_error(launch.kernel->name + ": all lanes wait for each other in barriers");
        return false;  // there is no room for any block yet
      }
    }
    // Where nothing is judged, no order matters: lanes that met last are still in the cache.
    const u64 picked = settings_.judge ? random() % launch.ready.size() : launch.ready.size() - 1;
    Lane& lane = *launch.ready[picked];
    if (lane.lags && random() % kLagsTurns != 0) return true;
    lane.lags = false;
    launch.ready[picked] = launch.ready.back();
    launch.ready.pop_back();
    worked = lane.last_sleep == 0 || lane.executed - lane.last_sleep > kSpinInstructions;
    run(lane);
  } catch (const std::exception& error) { break_off(launch, error.what()); }
  if (launch.next_block == launch.request.grid && launch.blocks.empty() && !launch.done) finish(launch);
  return worked;
}

void Machine::end_block(Launch& launch, Block& block) {
  const u32 warps = static_cast<u32>(block.warps.size());
  for (u32 w = 0; w < warps; ++w) {
    Clock::Leaf leaf{};
    u64 busiest = 0;
    for (u32 l = 0; l < 32; ++l) {
      const Lane& lane = block.lanes[w * 32 + l];
      leaf[l] = lane.clock;
      launch.all_known.learn(lane.known);
      launch.last_clock = std::max(launch.last_clock, lane.clock);
      busiest = std::max(busiest, lane.wide);
      if (lane.trips.weight() > launch.counts.trips.weight()) launch.counts.trips = lane.trips;
      launch.counts.host_trips = std::max<u64>(launch.counts.host_trips, lane.host_trips);
      launch.counts.flag_trips = std::max<u64>(launch.counts.flag_trips, lane.flag_trips);
      launch.counts.fences = std::max<u64>(launch.counts.fences, lane.fences);
      launch.counts.instructions += lane.executed;
    }
    launch.all_known.learn(block.lanes[w * 32].id, leaf);
    launch.counts.warp.push_back(busiest);
    launch.counts.busiest_lane = std::max(launch.counts.busiest_lane, busiest);
  }
  leave(launch, block);
  launch.blocks.erase(block.number);
}

void Machine::finish(Launch& launch) {
  for (const auto& [_, block] : launch.blocks) leave(launch, *block);
  launch.blocks.clear();
  launch.ready.clear();
  launch.sleeping.clear();
  launch.late.clear();
  launch.all_known.learn(launch.known);
  std::erase_if(pending_, [&](const auto& entry) {  // the end of a kernel releases all that it stored
    if (entry.second.id >> kLaneBits != launch.first_id >> kLaneBits) return false;
    write_back(entry.first, entry.second);
    return true;
  });
  launch.counts.grid = launch.request.grid;
  launch.counts.warps = launch.request.lanes / 32;
  launch.counts.host_reads = launch.host_reads.size();
  launch.counts.plain_host_reads = launch.plain_host_reads.size();
  launch.done = true;
}

// ---- messages --------------------------------------------------------------------------------------------------------

std::string Machine::place(u32 kernel, u32 instruction) const {
  const Kernel& k = *by_number_[kernel];
  return k.name + " at " + k.places.at(k.code.at(instruction).place);
}

std::string Machine::describe(const Access& access) const {
  if (access.id == kHost) return "the host";
  static constexpr const char* kScopes[] = {"weakly", "strongly in the block", "strongly on the GPU",
                                            "strongly in the system"};
  return place(access.instruction >> kInstructionBits, access.instruction & ((1u << kInstructionBits) - 1)) +
         " (launch " + std::to_string(access.launch) + ", stream " + std::to_string((access.id >> kLaneBits) - 1) +
         ", block " + std::to_string(access.block) + ", " + kScopes[static_cast<u32>(access.scope)] + ")";
}

void Machine::fail(const Lane& lane, const std::string& what) const {
  const Launch& launch = lane.block->launch;
  throw std::runtime_error(place(launch.kernel_number, lane.at) + ", launch " + std::to_string(launch.number) +
                           " on stream " + std::to_string(launch.request.stream) + ", block " +
                           std::to_string(lane.block->number) + ", lane " + std::to_string(lane.tid) + ": " + what);
}

}  // namespace ptx

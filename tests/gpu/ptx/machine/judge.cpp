// Whether an access is ordered behind those before it, and what releases and acquires bring.
#include <algorithm>
#include <cstring>

#include "lanes.h"

namespace ptx {

Clock Machine::all_of(const Lane& lane) const {
  Clock all = lane.known;
  all.learn(lane.id, lane.clock);
  return all;
}

// By the host, some time since it was seen. What lanes read there before, it must have been told of: by a release to
// memory that it reads, or by a kernel's end that it waited for.
void Machine::changed_by_host(Cell& cell, u64 address) {
  const auto known = [&](const Access& read) {
    return host_known_.at(read.id) >= read.clock ||
           std::any_of(hosts_.begin(), hosts_.end(), [&](const auto& h) { return h.second.at(read.id) >= read.clock; });
  };
  const auto after = regions_.upper_bound(address);
  const bool of_ranks = after != regions_.begin() && std::prev(after)->second.kind != Kind::kTensor;
  for (const Access& read : cell.reads)
    if (of_ranks && read.scope == Scope::kNone && !known(read) && host_error_.empty())
      host_error_ = "the host overwrites what " + describe(read) + " reads, without order";
  cell.write = Access{};
  cell.write.clock = cell.seen;
  cell.write.scope = Scope::kSys;
  cell.noticed = now_;
  cell.reads.clear();
}

// Memory that the host may write, when a thread of it queues something: what it writes from now on, a kernel gets to
// know only by an acquire.
void Machine::look_at_all() {
  looked_ = now_;
  const auto of_host = [&](u64 begin, u64 end) {
    const auto after = regions_.lower_bound(end);
    return after != regions_.begin() && begin < std::prev(after)->second.end &&
           std::prev(after)->second.kind != Kind::kTensor;
  };
  shadow_.visit_touched(of_host, [&](Cell& cell, u64 address, u32 size) {
    if (!pending_.empty() && pending_.contains(address & ~3ull)) return;
    const auto after = regions_.upper_bound(address);
    const Region* const region = after == regions_.begin() ? nullptr : &std::prev(after)->second;
    u32 current = 0;
    look(region != nullptr && address < region->end ? region : nullptr, true, address, size, &current);
    if (current != cell.value) {
      changed_by_host(cell, address);
      cell.value = current;
    }
    cell.seen = now_;
  });
}

void Machine::judge(Lane& lane, const Instruction& i, u64 address, u32 bytes, bool shared, bool write,
                    const void* now) {
  Launch& launch = lane.block->launch;
  Access mine;
  mine.id = lane.id;
  mine.clock = lane.clock;
  mine.launch = launch.number;
  mine.instruction = launch.kernel_number << kInstructionBits | lane.at;
  mine.block = static_cast<u16>(lane.block->number);
  mine.device = static_cast<u16>(launch.request.device);
  mine.scope = i.order == Order::kWeak ? Scope::kNone : i.scope;
  const auto ordered = [&](const Access& before) {
    return before.id == lane.id || lane.known.at(before.id) >= before.clock || before.morally_strong_with(mine);
  };
  const auto* value = static_cast<const u8*>(now);
  Shadow& shadow = shared ? lane.block->shadow : shadow_;
  shadow.visit(address, bytes, [&](Cell& cell, u64 at, u32 size) {
    u32 current = 0;
    std::memcpy(&current, value + (at - address), size);
    if (shared && cell.seen == 0 && !write) fail(lane, "it reads shared memory that nobody has written");
    if (cell.seen == 0)
      cell.noticed = now_;
    else if (cell.value != current && !shared)
      changed_by_host(cell, at);
    if (cell.seen != 0 && cell.write.clock != 0 && !ordered(cell.write) && !(write && cell.write.id == kHost))
      fail(lane, std::string(write ? "it overwrites" : "it reads") + " what " + describe(cell.write) +
                     " wrote, without order");
    if (write) {
      for (const Access& read : cell.reads)
        if (!ordered(read)) fail(lane, "it overwrites what " + describe(read) + " reads, without order");
      cell.reads.clear();
    } else {
      std::erase_if(cell.reads,
                    [&](const Access& read) { return read.id == lane.id || lane.known.at(read.id) >= read.clock; });
      if (cell.reads.size() < Cell::kMaxReads) cell.reads.push_back(mine);
      cell.value = current;
    }
    if (write) cell.write = mine;
    cell.seen = now_;
  });
}

// What an acquire of the word at `address` brings: what was released with the value that it reads.
void Machine::acquire(Lane& lane, const Instruction& i, u64 address, bool shared) {
  bool from_host = false;
  u32 written = 0;  // by the host before
  const auto look = [&](const Cell& cell, u64, u32) {
    if (cell.write.id != kHost) return;
    from_host = true;
    written = std::max(written, cell.noticed);
  };
  if (!shared) shadow_.visit(address, i.bytes * i.count, look);
  if (from_host) {
    if (i.scope != Scope::kSys) return;
    // It does not bring what the host writes from now on, and whatever has changed since a look may be from before.
    const bool at_once = settings_.lag.owner == 0 && settings_.lag.others == 0;  // or a look would be the first of lags
    if (at_once && lane.known.at(kHost) < written && written > looked_ && now_ - looked_ >= kLooksApart) look_at_all();
    lane.known.learn(kHost, written);
    lane.known.learn(host_known_);
    return;
  }
  const auto sync = syncs_.find(address);
  if (sync == syncs_.end()) return;
  const Launch& launch = lane.block->launch;
  Access mine;
  mine.id = lane.id;
  mine.launch = launch.number;
  mine.block = static_cast<u16>(lane.block->number);
  mine.device = static_cast<u16>(launch.request.device);
  mine.scope = i.scope;
  if (sync->second.access.morally_strong_with(mine)) lane.known.learn(sync->second.known);
}

// A strong store or atomic at `address`: what it releases is for whoever acquires it. `chain`: it belongs to the release
// before it, as an atomic does.
void Machine::publish(Lane& lane, const Instruction& i, u64 address, bool chain) {
  const bool releases = i.order == Order::kRelease || i.order == Order::kAcqRel;
  if (!releases) {
    const auto sync = syncs_.find(address);
    if (!chain && sync != syncs_.end() && sync->second.access.id != lane.id) syncs_.erase(sync);
    return;
  }
  const Launch& launch = lane.block->launch;
  if (i.scope == Scope::kSys) write_back_known(lane);
  Sync& sync = syncs_[address];
  Clock all = all_of(lane);
  if (chain) all.learn(sync.known);
  sync.known = all;
  sync.access.id = lane.id;
  sync.access.launch = launch.number;
  sync.access.block = static_cast<u16>(lane.block->number);
  sync.access.device = static_cast<u16>(launch.request.device);
  sync.access.scope = i.scope;
  if (i.scope == Scope::kSys) {
    const auto region = regions_.upper_bound(address);
    if (region != regions_.begin() && std::prev(region)->second.kind == Kind::kPinned) host_known_.learn(all);
  }
  ++lane.clock;
}

}  // namespace ptx

// What comes late: weak stores to the host, a NIC's bytes to lanes, and lanes that dawdle.
#include <emmintrin.h>

#include <cstring>

#include "lanes.h"

namespace ptx {
namespace {

template <class T>
T value_of(const void* image) {
  T value;
  std::memcpy(&value, image, sizeof value);
  return value;
}

}  // namespace

// Where host threads may look at the same time: a word, or 16 bytes, at once, behind all that was stored before.
void Machine::store_now(u64 address, u32 bytes, const void* image) {
  __atomic_thread_fence(__ATOMIC_RELEASE);
  if (bytes == 16 && address % 16 == 0)
    _mm_store_si128(reinterpret_cast<__m128i*>(address), _mm_loadu_si128(static_cast<const __m128i*>(image)));
  else if (bytes == 8 && address % 8 == 0)
    __atomic_store_n(reinterpret_cast<u64*>(address), value_of<u64>(image), __ATOMIC_RELEASE);
  else if (bytes == 4)
    __atomic_store_n(reinterpret_cast<u32*>(address), value_of<u32>(image), __ATOMIC_RELEASE);
  else
    std::memcpy(reinterpret_cast<void*>(address), image, bytes);
}

void Machine::look(const Region* region, bool owner, u64 address, u32 bytes, void* image) {
  auto* const to = static_cast<u8*>(image);
  if (region != nullptr && region->visible) {
    Visible& v = *region->visible;
    look_late(v, owner, address, bytes);
    std::memcpy(to, v.bytes[!owner].data() + (address - v.begin), bytes);
  } else if (bytes == 8 && address % 8 == 0) {
    const u64 value = __atomic_load_n(reinterpret_cast<const u64*>(address), __ATOMIC_ACQUIRE);
    std::memcpy(to, &value, 8);
  } else if (bytes == 4) {
    const u32 value = __atomic_load_n(reinterpret_cast<const u32*>(address), __ATOMIC_ACQUIRE);
    std::memcpy(to, &value, 4);
  } else {
    std::memcpy(to, reinterpret_cast<const void*>(address), bytes);
  }
  if (pending_.empty()) return;
  for (u64 word = address & ~3ull; word < address + bytes; word += 4) {
    const auto found = pending_.find(word);
    if (found == pending_.end()) continue;
    for (u32 b = 0; b < 4; ++b)
      if ((found->second.bytes >> b & 1) != 0 && word + b >= address && word + b < address + bytes)
        to[word + b - address] = static_cast<u8>(found->second.value >> 8 * b);
  }
}

void Machine::put_off(const Lane& lane, u64 address, u32 bytes, const void* image) {
  for (u64 at = address; at < address + bytes; ++at) {
    const u64 word = at & ~3ull;
    const auto [found, fresh] = pending_.try_emplace(word);
    if (fresh) pending_order_.push_back(word);
    Pending& p = found->second;
    const u32 b = static_cast<u32>(at - word);
    p.value = (p.value & ~(0xffu << 8 * b)) | static_cast<u32>(static_cast<const u8*>(image)[at - address]) << 8 * b;
    p.bytes |= static_cast<u8>(1u << b);
    p.id = lane.id;
    p.clock = lane.clock;
  }
}

void Machine::write_back(u64 word, const Pending& pending) {
  if (pending.bytes == 0xf) {
    store_now(word, 4, &pending.value);
    show(word, 4);
    return;
  }
  for (u32 b = 0; b < 4; ++b)
    if ((pending.bytes >> b & 1) != 0) {
      *reinterpret_cast<u8*>(word + b) = static_cast<u8>(pending.value >> 8 * b);
      show(word + b, 1);
    }
}

void Machine::write_back_range(u64 address, u32 bytes) {
  for (u64 word = address & ~3ull; word < address + bytes; word += 4)
    if (const auto found = pending_.find(word); found != pending_.end()) {
      write_back(word, found->second);
      pending_.erase(found);
    }
}

// What a NIC has written comes to be seen some time after somebody looked.
void Machine::look_late(Visible& visible, bool owner, u64 address, u32 bytes) {
  const u32 lag = owner ? settings_.lag.owner : settings_.lag.others;
  auto& late = visible.late[!owner];
  for (u64 word = address & ~3ull; word < address + bytes; word += 4) {
    u8* const seen = visible.bytes[!owner].data() + (word - visible.begin);
    const u32 now = __atomic_load_n(reinterpret_cast<const u32*>(word), __ATOMIC_ACQUIRE);
    if (std::memcmp(seen, &now, 4) == 0) continue;
    const auto [first, fresh] = late.try_emplace(word, now_);
    if (lag == Lag::kNever || now_ - first->second < lag) continue;
    std::memcpy(seen, &now, 4);
    late.erase(first);
  }
}

// What lanes store is seen at once, where memory has it.
void Machine::show(u64 address, u32 bytes) {
  if (settings_.lag.owner == 0 && settings_.lag.others == 0) return;
  const auto after = regions_.upper_bound(address);
  if (after == regions_.begin() || address >= std::prev(after)->second.end || !std::prev(after)->second.visible) return;
  Visible& v = *std::prev(after)->second.visible;
  for (auto& image : v.bytes)
    std::memcpy(image.data() + (address - v.begin), reinterpret_cast<const void*>(address), bytes);
}

void Machine::flush(u32 owner) {
  const std::lock_guard lock(mutex_);
  for (auto& [begin, region] : regions_) {
    if (region.owner != owner || !region.visible) continue;
    for (u32 i = 0; i < 2; ++i) {
      std::memcpy(region.visible->bytes[i].data(), reinterpret_cast<const void*>(begin), region.end - begin);
      region.visible->late[i].clear();
    }
  }
}

// What a release to the system takes with it: all that the lane knows of.
void Machine::write_back_known(const Lane& lane) {
  std::erase_if(pending_, [&](const auto& entry) {
    const Pending& p = entry.second;
    if (p.id != lane.id && lane.known.at(p.id) < p.clock) return false;
    write_back(entry.first, p);
    return true;
  });
}

// Whatever else was stored comes through some time, in any order.
void Machine::write_back_some() {
  for (u64 n = pending_order_.size() / 256 + 1; n > 0 && !pending_order_.empty(); --n) {
    u64& picked = pending_order_[random() % pending_order_.size()];
    const u64 word = picked;
    picked = pending_order_.back();
    pending_order_.pop_back();
    write_back_range(word, 4);
  }
}

// Whether the lane rests before a strong load: until all others only wait, and what it then reads at its first look is
// there; or for some turns, in which others come further.
bool Machine::dawdles(Lane& lane, const Instruction& i) {
  if (!(dawdles_ || lags_) || i.op != Op::k_ld || i.order == Order::kWeak) return false;
  lane.dawdled = !lane.dawdled && random() % kDawdlesOneIn == 0;
  if (!lane.dawdled) return false;
  lane.next = lane.at;
  lane.lags = lags_;
  (lags_ ? lane.block->launch.ready : lane.block->launch.late).push_back(&lane);
  return true;
}

// All others have come as far as they come without those that dawdle, and so have host threads. One in kWakesOneIn of
// those goes on, so that some dawdle until even others that did have come to their end.
void Machine::wake_late() {
  for (Launch* launch : active_)
    std::erase_if(launch->late, [&](Lane* lane) {
      if (random() % kWakesOneIn != 0) return false;
      launch->ready.push_back(lane);
      idle_ = 0;
      return true;
    });
}

}  // namespace ptx

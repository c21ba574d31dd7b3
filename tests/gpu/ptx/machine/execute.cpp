// What each instruction does.
#include <emmintrin.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "lanes.h"

namespace ptx {
namespace {

constexpr u64 kNullPage = 4096;
constexpr u64 kLineBytes = 128;

float real(u64 bits) { return std::bit_cast<float>(static_cast<u32>(bits)); }
u64 bits(float value) { return std::bit_cast<u32>(value); }

u64 nanoseconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<u64>(t.tv_sec) * 1'000'000'000ull + static_cast<u64>(t.tv_nsec);
}

i64 signed_of(u64 value, u64 width) { return static_cast<i64>(value << (64 - width)) >> (64 - width); }

u32 reversed(u32 value) {
  u32 result = 0;
  for (u32 i = 0; i < 32; ++i) result |= (value >> i & 1) << (31 - i);
  return result;
}

u64 inserted(u64 field, u64 into, u64 position, u64 length, u64 width) {
  position &= 0xff;
  length &= 0xff;
  if (position >= width || length == 0) return into;
  const u64 ones = length >= 64 ? ~0ull : (1ull << length) - 1;
  const u64 all = width == 64 ? ~0ull : (1ull << width) - 1;
  const u64 mask = ones << position & all;
  return (into & ~mask) | (field << position & mask);
}

// cvt.rzi saturates, and NaN is 0.
u64 truncated(float value) {
  if (!(value > 0)) return 0;
  return value >= 4294967296.0f ? ~0u : static_cast<u32>(value);
}

// cvt.rn.satfinite.e4m3: ties to even, beyond 448 is 448, NaN is 0x7f.
u32 e4m3(float value) {
  const u32 all = std::bit_cast<u32>(value), sign = all >> 24 & 0x80;
  if (std::isnan(value)) return sign | 0x7f;
  const float size = std::fabs(value);
  if (size >= 448.0f) return sign | 0x7e;
  int exponent = 0;
  std::frexp(size, &exponent);  // size = m * 2^exponent, m in [0.5, 1)
  const int step = std::max(exponent - 4, -9);  // of the last bit: three bits behind the first, 2^-9 below 2^-6
  const float steps = std::nearbyint(std::ldexp(size, -step));
  const float rounded = std::ldexp(steps, step);
  if (rounded == 0) return sign;
  std::frexp(rounded, &exponent);
  if (exponent < -5) return sign | static_cast<u32>(std::ldexp(rounded, 9));
  const u32 mantissa = static_cast<u32>(std::ldexp(rounded, 4 - exponent)) & 7;
  return sign | static_cast<u32>(exponent + 6) << 3 | mantissa;
}

bool ordered(const Instruction& i) { return i.order != Order::kWeak; }

u64 element(const u8* image, u32 bytes) {
  u64 value = 0;
  std::memcpy(&value, image, bytes);
  return value;
}

// Lanes have stored this, as far as lanes see it.
void remember(Shadow& shadow, u64 address, u32 bytes, const void* image) {
  shadow.visit(address, bytes, [&](Cell& cell, u64 at, u32 size) {
    cell.value = 0;
    std::memcpy(&cell.value, static_cast<const u8*>(image) + (at - address), size);
  });
}

}  // namespace

// The host's address of what a lane accesses, and whether it is in shared memory.
u64 Machine::resolve(Lane& lane, const Instruction& i, u64 address, u32 bytes, bool* shared) {
  const u64 window = reinterpret_cast<u64>(lane.block->shared);
  const u32 room = lane.block->launch.request.shared_bytes;
  if (i.space == Space::kShared) address = window + static_cast<u32>(address);
  *shared = i.space == Space::kShared || address - window < room + kSharedGuard;
  if (i.space == Space::kShared || *shared) {
    if (address - window + bytes > room)
      fail(lane, "byte " + std::to_string(address - window) + " of shared memory is beyond the " +
                     std::to_string(room) + " that the launch gives a block");
    if (i.space == Space::kGlobal) fail(lane, "an instruction of the global state space on shared memory");
  } else if (address < kNullPage) {
    fail(lane, "a null pointer");
  }
  if (address % bytes != 0) {
    char text[96];
    std::snprintf(text, sizeof text, "%u bytes at %#llx are misaligned", bytes,
                  static_cast<unsigned long long>(address));
    fail(lane, text);
  }
  lane.region = nullptr;
  if (*shared) return address;
  if (bytes == 16) ++lane.wide;
  const auto after = regions_.upper_bound(address);
  if (after != regions_.begin()) {
    const auto& [begin, region] = *std::prev(after);
    if (address < region.end) {
      lane.region = &region;
      lane.away = region.owner != 0 && region.owner != lane.block->launch.request.device;
      if (address + bytes > region.end) fail(lane, "it reaches beyond the end of an allocation");
      if (region.kind == Kind::kPinned && i.order != Order::kWeak && i.scope != Scope::kSys)
        fail(lane, "a scope narrower than the system, of a word in memory that the host uses");
      const u64 sector = address / kSectorBytes ^ static_cast<u64>(lane.id - lane.tid % 32) << 40;  // of this warp
      const bool from_host = settings_.count && region.kind == Kind::kPinned && i.op == Op::k_ld;
      if (from_host && !ordered(i) && bytes <= 8) lane.block->launch.plain_host_reads.insert(sector);
      if (settings_.count && ordered(i) && i.op != Op::k_st) {
        const u64 word = address ^ static_cast<u64>(lane.id) << 44;
        if (from_host) {
          lane.block->launch.host_reads.insert(sector);
          lane.host_trips += lane.block->launch.host_words.insert(word).second;
        } else {
          lane.flag_trips += lane.block->launch.flags.insert(word).second;
        }
      }
      if ((i.order == Order::kRelease || i.order == Order::kAcqRel) && i.scope == Scope::kSys) ++lane.fences;
      return address;
    }
  }
  char text[96];
  std::snprintf(text, sizeof text, "%u bytes at %#llx are of no allocation", bytes,
                static_cast<unsigned long long>(address));
  fail(lane, text);
}

void Machine::load_elements(Lane& lane, const Instruction& i) {
  const u64 base = lane.value(i.from[0]) + static_cast<u64>(i.offset);
  const u32 bytes = i.bytes * i.count;
  u8 image[32];
  if (i.space == Space::kParam) {
    const auto& args = lane.block->launch.request.args;
    if (base + bytes > args.size()) fail(lane, "it reads beyond its arguments");
    std::memcpy(image, args.data() + base, bytes);
  } else {
    bool shared;
    const u64 address = resolve(lane, i, base, bytes, &shared);
    look(lane.region, !lane.away, address, bytes, image);
    if (!shared && !ordered(i)) {
      Counts& counts = lane.block->launch.counts;
      if (bytes == 16) counts.loaded += bytes;
      if (bytes == 16 && lane.away) counts.loaded_away += bytes;
      if (settings_.count) {
        const bool near = bytes != 16 && !lane.block->lines.insert(address / kLineBytes).second;
        lane.asked |= near ? 1 : lane.away ? 8 : bytes == 16 ? 4 : 2;
      }
    }
    if (settings_.judge) {
      judge(lane, i, address, bytes, shared, false, image);
      if (i.order == Order::kAcquire) acquire(lane, i, address, shared);
    }
  }
  for (u32 n = 0; n < i.count; ++n) {
    u64 value = element(image + n * i.bytes, i.bytes);
    if (i.extended != 0) {
      value = static_cast<u64>(signed_of(value, 8ull * i.bytes));
      if (i.extended == 2) value &= 0xffff;
      if (i.extended == 4) value &= 0xffffffff;
    }
    lane.set(i.to[n], value);
  }
}

void Machine::store_elements(Lane& lane, const Instruction& i) {
  const u64 base = lane.value(i.from[0]) + static_cast<u64>(i.offset);
  const u32 bytes = i.bytes * i.count;
  bool shared;
  const u64 address = resolve(lane, i, base, bytes, &shared);
  if (!shared && !ordered(i)) {
    lane.block->launch.counts.stored += bytes;
    if (lane.away) lane.block->launch.counts.stored_away += bytes;
  }
  u8 image[32];
  for (u32 n = 0; n < i.count; ++n) {
    const u64 value = lane.value(i.from[1 + n]);
    std::memcpy(image + n * i.bytes, &value, i.bytes);
  }
  if (settings_.judge) {
    u8 before[32];
    look(lane.region, !lane.away, address, bytes, before);
    judge(lane, i, address, bytes, shared, true, before);
    if (ordered(i)) publish(lane, i, address, false);
    remember(shared ? lane.block->shadow : shadow_, address, bytes, image);
    if (!shared && !ordered(i)) {
      put_off(lane, address, bytes, image);
      return;
    }
    if (!shared) write_back_range(address, bytes);  // older ones of the same words
  }
  store_now(address, bytes, image);
  if (lane.region != nullptr) show(address, bytes);
}

void Machine::atomic(Lane& lane, const Instruction& i) {
  bool shared;
  const u64 address = resolve(lane, i, lane.value(i.from[0]) + static_cast<u64>(i.offset), i.bytes, &shared);
  if (settings_.judge && !shared) {
    if (i.order >= Order::kRelease && i.scope == Scope::kSys) write_back_known(lane);
    write_back_range(address, i.bytes);
  }
  u64 old, made = lane.value(i.from[1]);
  if (i.op == Op::k_cas) {
    auto expected = static_cast<u32>(lane.value(i.from[1]));
    const auto desired = static_cast<u32>(lane.value(i.from[2]));
    const bool changed = __atomic_compare_exchange_n(reinterpret_cast<u32*>(address), &expected, desired, false,
                                                     __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    old = expected;
    made = changed ? desired : old;
  } else if (i.bytes == 8) {
    old = __atomic_fetch_add(reinterpret_cast<u64*>(address), made, __ATOMIC_ACQ_REL);
    made += old;
  } else {
    old = __atomic_fetch_add(reinterpret_cast<u32*>(address), static_cast<u32>(made), __ATOMIC_ACQ_REL);
    made = static_cast<u32>(made + old);
  }
  if (!shared) show(address, i.bytes);
  if (settings_.judge) {
    judge(lane, i, address, i.bytes, shared, false, &old);
    if (i.order == Order::kAcqRel || i.order == Order::kAcquire) acquire(lane, i, address, shared);
    judge(lane, i, address, i.bytes, shared, true, &old);
    publish(lane, i, address, true);
    remember(shared ? lane.block->shadow : shadow_, address, i.bytes, &made);
  }
  lane.set(i.to[0], old);
}

void Machine::run(Lane& lane) {
  Launch& launch = lane.block->launch;
  const auto a = [&](const Instruction& i) { return lane.value(i.from[0]); };
  const auto b = [&](const Instruction& i) { return lane.value(i.from[1]); };
  const auto c = [&](const Instruction& i) { return lane.value(i.from[2]); };
  constexpr u64 kWord = 0xffffffff;
  for (;;) {
    lane.at = lane.next++;
    const Instruction& i = lane.code[lane.at];
    ++lane.executed;
    ++launch.kernel->executed[lane.at];
    if (i.predicate != kNoSlot && (lane.registers[i.predicate] != 0) == i.negated) continue;
    if (i.waits && lane.asked != 0) {
      Trips& trips = lane.trips;
      ++(lane.asked & 8 ? trips.away : lane.asked & 4 ? trips.wide : lane.asked & 2 ? trips.line : trips.near);
      lane.asked = 0;
    }
    u64 to = 0;
    switch (i.op) {
      case Op::k_mov: to = a(i); break;
      case Op::k_tid: to = lane.tid; break;
      case Op::k_ntid: to = launch.request.lanes; break;
      case Op::k_ctaid: to = lane.block->number; break;
      case Op::k_nctaid: to = launch.request.grid; break;
      case Op::k_timer: to = nanoseconds(); break;
      case Op::k_add16: to = (a(i) + b(i)) & 0xffff; break;
      case Op::k_add32: to = (a(i) + b(i)) & kWord; break;
      case Op::k_add64: to = a(i) + b(i); break;
      case Op::k_sub16: to = (a(i) - b(i)) & 0xffff; break;
      case Op::k_sub32: to = (a(i) - b(i)) & kWord; break;
      case Op::k_sub64: to = a(i) - b(i); break;
      case Op::k_mullo32: to = (a(i) * b(i)) & kWord; break;
      case Op::k_mullo64:
      case Op::k_mulwide: to = a(i) * b(i); break;
      case Op::k_madlo32: to = (a(i) * b(i) + c(i)) & kWord; break;
      case Op::k_madlo64: to = a(i) * b(i) + c(i); break;
      case Op::k_minu: to = std::min(a(i), b(i)); break;
      case Op::k_maxu: to = std::max(a(i), b(i)); break;
      case Op::k_mins32: to = static_cast<u64>(std::min(signed_of(a(i), 32), signed_of(b(i), 32))) & kWord; break;
      case Op::k_maxs32: to = static_cast<u64>(std::max(signed_of(a(i), 32), signed_of(b(i), 32))) & kWord; break;
      case Op::k_divu:
      case Op::k_remu: {
        const u64 by = b(i);
        if (by == 0) fail(lane, "a division by zero");
        to = i.op == Op::k_divu ? a(i) / by : a(i) % by;
        break;
      }
      case Op::k_andb: to = a(i) & b(i); break;
      case Op::k_orb: to = a(i) | b(i); break;
      case Op::k_xorb: to = a(i) ^ b(i); break;
      case Op::k_shl32: to = b(i) > 31 ? 0 : a(i) << b(i) & kWord; break;
      case Op::k_shl64: to = b(i) > 63 ? 0 : a(i) << b(i); break;
      case Op::k_shr: to = b(i) > 63 ? 0 : a(i) >> b(i); break;
      case Op::k_shrs32: to = static_cast<u64>(signed_of(a(i), 32) >> std::min<u64>(b(i), 31)) & kWord; break;
      case Op::k_shflw: to = (b(i) << 32 | a(i)) << (c(i) & 31) >> 32 & kWord; break;  // shf.l.wrap
      case Op::k_popc: to = static_cast<u64>(std::popcount(a(i))); break;
      case Op::k_brev: to = reversed(static_cast<u32>(a(i))); break;
      case Op::k_clz: to = static_cast<u64>(std::countl_zero(static_cast<u32>(a(i)))); break;
      case Op::k_bfind: to = a(i) == 0 ? kWord : static_cast<u64>(std::countl_zero(static_cast<u32>(a(i)))); break;
      case Op::k_bfi32: to = inserted(a(i), b(i), c(i), lane.value(i.from[3]), 32); break;
      case Op::k_bfi64: to = inserted(a(i), b(i), c(i), lane.value(i.from[3]), 64); break;
      case Op::k_pack16: to = a(i) | b(i) << 16; break;
      case Op::k_pack32: to = a(i) | b(i) << 32; break;
      case Op::k_unpack16:
      case Op::k_unpack32: {
        const u64 both = a(i);
        const u32 half = i.op == Op::k_unpack16 ? 16 : 32;
        lane.set(i.to[0], both & ((1ull << half) - 1));
        lane.set(i.to[1], both >> half);
        continue;
      }
      case Op::k_sext8: to = static_cast<u64>(signed_of(a(i), 8)) & b(i); break;
      case Op::k_sext16: to = static_cast<u64>(signed_of(a(i), 16)) & b(i); break;
      case Op::k_sext32: to = static_cast<u64>(signed_of(a(i), 32)) & b(i); break;
      case Op::k_sel: to = c(i) != 0 ? a(i) : b(i); break;
      case Op::k_eq: to = a(i) == b(i); break;
      case Op::k_ne: to = a(i) != b(i); break;
      case Op::k_ltu: to = a(i) < b(i); break;
      case Op::k_leu: to = a(i) <= b(i); break;
      case Op::k_gtu: to = a(i) > b(i); break;
      case Op::k_geu: to = a(i) >= b(i); break;
      case Op::k_lts: to = signed_of(a(i), c(i)) < signed_of(b(i), c(i)); break;
      case Op::k_les: to = signed_of(a(i), c(i)) <= signed_of(b(i), c(i)); break;
      case Op::k_gts: to = signed_of(a(i), c(i)) > signed_of(b(i), c(i)); break;
      case Op::k_ges: to = signed_of(a(i), c(i)) >= signed_of(b(i), c(i)); break;
      case Op::k_feq: to = real(a(i)) == real(b(i)); break;
      case Op::k_fne: to = real(a(i)) < real(b(i)) || real(a(i)) > real(b(i)); break;
      case Op::k_flt: to = real(a(i)) < real(b(i)); break;
      case Op::k_fle: to = real(a(i)) <= real(b(i)); break;
      case Op::k_fgt: to = real(a(i)) > real(b(i)); break;
      case Op::k_fge: to = real(a(i)) >= real(b(i)); break;
      case Op::k_fltu: to = !(real(a(i)) >= real(b(i))); break;  // or one is NaN
      case Op::k_fleu: to = !(real(a(i)) > real(b(i))); break;
      case Op::k_fgtu: to = !(real(a(i)) <= real(b(i))); break;
      case Op::k_fgeu: to = !(real(a(i)) < real(b(i))); break;
      case Op::k_fadd: to = bits(real(a(i)) + real(b(i))); break;
      case Op::k_fsub: to = bits(real(a(i)) - real(b(i))); break;
      case Op::k_fmul: to = bits(real(a(i)) * real(b(i))); break;
      case Op::k_fdiv: to = bits(real(a(i)) / real(b(i))); break;
      case Op::k_ffma: to = bits(std::fma(real(a(i)), real(b(i)), real(c(i)))); break;
      case Op::k_fmax: to = bits(std::fmax(real(a(i)), real(b(i)))); break;
      case Op::k_fmin: to = bits(std::fmin(real(a(i)), real(b(i)))); break;
      case Op::k_fabs: to = a(i) & 0x7fffffff; break;
      case Op::k_fneg: to = a(i) ^ 0x80000000; break;
      case Op::k_frcp: to = bits(1.0f / real(a(i))); break;
      case Op::k_fex2: to = bits(std::exp2(real(a(i)))); break;  // .approx: to 2 ulp
      case Op::k_ffloor: to = bits(std::floor(real(a(i)))); break;
      case Op::k_fromu: to = bits(static_cast<float>(a(i))); break;
      case Op::k_froms: to = bits(static_cast<float>(signed_of(a(i), 32))); break;
      case Op::k_tou: to = truncated(real(a(i))); break;
      case Op::k_e4m3x2: to = e4m3(real(a(i))) << 8 | e4m3(real(b(i))); break;
      case Op::k_shared: to = reinterpret_cast<u64>(lane.block->shared) + a(i); break;
      case Op::k_global:
        to = a(i);
        if (to - reinterpret_cast<u64>(lane.block->shared) < launch.request.shared_bytes)
          fail(lane, "an address of shared memory is called global");
        break;
      case Op::k_ld:
      case Op::k_st:
      case Op::k_add:
      case Op::k_cas:
        if (dawdles(lane, i)) return;
        if (i.op == Op::k_ld)
          load_elements(lane, i);
        else if (i.op == Op::k_st)
          store_elements(lane, i);
        else
          atomic(lane, i);
        if (ordered(i) && settings_.preempt != 0 && random() % settings_.preempt == 0) {
          launch.ready.push_back(&lane);
          return;
        }
        continue;
      case Op::k_barwarp:
      case Op::k_barsync:
      case Op::k_barand:
        if (i.removed) {
          lane.set(i.to[0], a(i));
          continue;
        }
        i.op == Op::k_barwarp ? arrive_at_warp(lane, i) : arrive_at_block(lane, i);
        return;
      case Op::k_shflidx:
      case Op::k_shflbfly:
      case Op::k_ballot:
      case Op::k_redux: arrive_at_warp(lane, i); return;
      case Op::k_sleep:
        lane.last_sleep = lane.executed;
        launch.sleeping.push_back(&lane);
        return;
      case Op::k_bra: lane.next = static_cast<u32>(i.offset); continue;
      case Op::k_ret: end_lane(lane); return;
    }
    lane.set(i.to[0], to);
  }
}

}  // namespace ptx

// Small kernels with one mistake each, or none: what the machine must find, and what it must not.
#pragma once
#include "kernels/device/barrier.h"
#include "kernels/device/simt.h"

namespace uccl {

struct TwoWords {
  u32* data;
  u32* flag;
};

struct Odd {
  u8* bytes;
  u64 number;
};

struct SmallShared {
  u32 words[64];
};

// ---- trips to memory -------------------------------------------------------------------------------------------------

KERNEL copies_one_by_one(Odd a) {
  const u128* from = reinterpret_cast<const u128*>(a.bytes) + 4 * simt::tid();
  u128* to = reinterpret_cast<u128*>(a.number) + 4 * simt::tid();
  UCCL_UNROLL
  for (u32 i = 0; i < 4; ++i) simt::st_na(to + i, simt::ld_nc(from + i));
}
KERNEL copies_four_at_once(Odd a) {
  const u128* from = reinterpret_cast<const u128*>(a.bytes) + 4 * simt::tid();
  u128* to = reinterpret_cast<u128*>(a.number) + 4 * simt::tid();
  u128 unit[4];
  UCCL_UNROLL
  for (u32 i = 0; i < 4; ++i) unit[i] = simt::ld_nc(from + i);
  UCCL_UNROLL
  for (u32 i = 0; i < 4; ++i) simt::st_na(to + i, unit[i]);
}
// Each word says which word is next.
KERNEL follows(Odd a) {
  u32 at = 0;
  for (u32 i = 0; i < 3; ++i) at = reinterpret_cast<const u32*>(a.bytes)[at];
  reinterpret_cast<u32*>(a.number)[simt::tid()] = at;
}

// ---- addresses -------------------------------------------------------------------------------------------------------

KERNEL reads_at(Odd a) {
  if (simt::tid() == 0) *reinterpret_cast<u32*>(a.bytes) = simt::ld_relaxed_sys(reinterpret_cast<u32*>(a.number));
}
KERNEL calls_shared_global(Odd a) {
  if (simt::tid() == 0) simt::st_relaxed_sys(&simt::smem<SmallShared>().words[a.number], 1u);
}
KERNEL writes_shared(Odd a) {
  if (simt::tid() == 0) simt::st_relaxed_gpu(&simt::smem<SmallShared>().words[a.number], 1u);
}
KERNEL reads_unwritten_shared(Odd a) {
  SmallShared& s = simt::smem<SmallShared>();
  if (simt::tid() < a.number) s.words[simt::tid()] = 1;
  simt::sync_block();
  reinterpret_cast<u32*>(a.bytes)[simt::tid()] = s.words[simt::tid()];
}
KERNEL divides(Odd a) {
  if (simt::tid() == 0) *reinterpret_cast<u64*>(a.bytes) = 7 / a.number;
}

// ---- collectives -----------------------------------------------------------------------------------------------------

KERNEL leaves_lanes_out(Odd a) {
  u32 sum = 0;
  if (simt::lane() < a.number) sum = simt::warp_sum(1);
  reinterpret_cast<u32*>(a.bytes)[simt::tid()] = sum;
}
KERNEL parts_at_a_barrier(Odd a) {
  if (simt::lane() < a.number)
    asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
  else
    asm volatile("bar.warp.sync -1; // apart" ::: "memory");
}
KERNEL partial_mask(Odd a) {
  if (simt::lane() < 16) reinterpret_cast<u32*>(a.bytes)[simt::tid()] = __shfl_sync(0xffff, simt::lane(), 0);
}
KERNEL ends_before_a_barrier(Odd a) {
  if (simt::warp() < a.number) return;
  simt::sync_block();
}
KERNEL all_blocks_meet(TwoWords a) {
  simt::WaitContext never{};
  never.abort = reinterpret_cast<u64*>(a.flag);
  never.deadline_ns = ~0ull;
  simt::sync_grid(a.data, never, [] { return false; });
}

// ---- order -----------------------------------------------------------------------------------------------------------

// Block 0 says what it has written, block 1 waits for it: with each order of the flag.
#define MESSAGE(name, store, load)             \
  KERNEL name(TwoWords a) {                    \
    if (simt::tid() != 0) return;              \
    if (simt::bid() == 0) {                    \
      a.data[0] = 42;                          \
      store(a.flag, 1u);                       \
    } else {                                   \
      while (load(a.flag) == 0) simt::pause(); \
      a.data[1] = a.data[0];                   \
    }                                          \
  }
MESSAGE(message, simt::st_release_gpu, simt::ld_acquire_gpu)
MESSAGE(message_not_released, simt::st_relaxed_gpu, simt::ld_acquire_gpu)
MESSAGE(message_not_acquired, simt::st_release_gpu, simt::ld_relaxed_gpu)
#undef MESSAGE
// Wrong only where the message is there already when block 1 first looks, and block 0 takes its time.
KERNEL message_not_acquired_at_first(TwoWords a) {
  if (simt::tid() != 0) return;
  if (simt::bid() == 0) {
    for (u32 i = 0; i < 64; ++i) simt::add_gpu(a.data + 2, 1u);
    a.data[0] = 42;
    simt::st_release_gpu(a.flag, 1u);
  } else {
    if (simt::ld_relaxed_gpu(a.flag) == 0)
      while (simt::ld_acquire_gpu(a.flag) == 0) simt::pause();
    a.data[1] = a.data[0];
  }
}
// The same in two launches.
KERNEL sends_to_system(TwoWords a) {
  if (simt::tid() != 0) return;
  a.data[0] = 42;
  simt::st_release_sys(a.flag, 1u);
}
KERNEL sends_to_gpu(TwoWords a) {
  if (simt::tid() != 0) return;
  a.data[0] = 42;
  simt::st_release_gpu(a.flag, 1u);
}
KERNEL receives(TwoWords a) {
  if (simt::tid() != 0) return;
  while (simt::ld_acquire_sys(a.flag) == 0) simt::pause();
  a.data[1] = a.data[0];
}
KERNEL receives_relaxed(TwoWords a) {
  if (simt::tid() != 0) return;
  while (simt::ld_relaxed_sys(a.flag) == 0) simt::pause();
  a.data[1] = a.data[0];
}
// Acquires a word that nobody has written meanwhile.
KERNEL receives_beside(TwoWords a) {
  if (simt::tid() != 0) return;
  while (simt::ld_relaxed_sys(a.flag) == 0) simt::pause();
  if (simt::ld_acquire_sys(a.flag + 1) == 0) a.data[1] = a.data[0];
}
// Many blocks count themselves; the last one reads what all have written.
KERNEL last_one_reads(TwoWords a) {
  a.data[simt::bid() * simt::ntid() + simt::tid()] = 1;
  simt::sync_block();
  if (simt::tid() != 0 || simt::add_acq_rel_gpu(a.flag, 1u) + 1 != simt::nbid()) return;
  u32 sum = 0;
  for (u32 i = 0; i < simt::nbid() * simt::ntid(); ++i) sum += a.data[i];
  a.data[0] = sum;
}
KERNEL neighbours_with_barrier(TwoWords a) {
  a.data[simt::tid()] = simt::tid();
  simt::sync_warp();
  a.flag[simt::tid()] = a.data[simt::tid() ^ 1];
}
// A shuffle makes lanes wait for each other; it orders no memory.
KERNEL neighbours_with_shuffle(TwoWords a) {
  a.data[simt::tid()] = simt::tid();
  simt::shfl_xor(1u, 1);
  a.flag[simt::tid()] = a.data[simt::tid() ^ 1];
}
KERNEL reads_then_another_writes(TwoWords a) {
  if (simt::tid() == 0) a.flag[0] = a.data[0];
  simt::shfl_xor(1u, 1);
  if (simt::tid() == 1) a.data[0] = 5;
}
KERNEL shared_without_barrier(TwoWords a) {
  SmallShared& s = simt::smem<SmallShared>();
  if (simt::tid() == 0) s.words[0] = 3;
  simt::shfl_xor(1u, 1);
  a.data[simt::tid()] = s.words[0];
}

// What one rank writes and another reads, with nothing but rank_barrier between them.
KERNEL writes_row(Odd a) { reinterpret_cast<u32*>(a.bytes)[simt::tid()] = static_cast<u32>(a.number); }
KERNEL reads_row(TwoWords a) { a.flag[simt::tid()] = a.data[simt::tid()]; }

// ---- what the host sees ----------------------------------------------------------------------------------------------

KERNEL tells_host_released(TwoWords a) {
  if (simt::tid() != 0) return;
  for (u32 i = 0; i < 64; ++i) a.data[i] = 42;
  simt::st_release_sys(a.flag, 1u);
  while (simt::ld_acquire_sys(a.flag) != 2) simt::pause();
}
KERNEL tells_host_relaxed(TwoWords a) {
  if (simt::tid() != 0) return;
  for (u32 i = 0; i < 64; ++i) a.data[i] = 42;
  simt::st_relaxed_sys(a.flag, 1u);
  while (simt::ld_acquire_sys(a.flag) != 2) simt::pause();
}

// ---- arithmetic ------------------------------------------------------------------------------------------------------

struct Pairs {
  const float* from;  // [2 * count]
  u16* codes;         // [count]
  u32 count;
  u32 unused;
};
KERNEL casts_pairs(Pairs a) {
  for (u32 i = simt::tid(); i < a.count; i += simt::ntid())
    a.codes[i] = static_cast<u16>(simt::e4m3x2_hardware(a.from[2 * i], a.from[2 * i + 1]));
}
struct Integers {
  u64 a, b;
  i64* out;
};
KERNEL computes(Integers n) {
  if (simt::tid() != 0) return;
  const u32 x = static_cast<u32>(n.a), y = static_cast<u32>(n.b);
  const i32 sx = static_cast<i32>(x), sy = static_cast<i32>(y);
  u32 i = 0;
  n.out[i++] = sx < sy;
  n.out[i++] = static_cast<i64>(n.a) < static_cast<i64>(n.b);
  n.out[i++] = x < y;
  n.out[i++] = sx >> (y & 31);
  n.out[i++] = static_cast<i64>(x >> (y & 31));
  n.out[i++] = static_cast<i64>(n.a << (n.b & 63));
  n.out[i++] = static_cast<i64>(static_cast<u64>(x) * y);
  n.out[i++] = static_cast<i64>(n.a * n.b);
  n.out[i++] = static_cast<i64>(n.b == 0 ? 0 : n.a % n.b);
  n.out[i++] = static_cast<signed char>(x) + static_cast<short>(y);
  n.out[i++] = __popc(x) + __clz(y);
  n.out[i++] = static_cast<i64>(__brev(x));
  n.out[i++] = static_cast<i64>(static_cast<u32>(static_cast<float>(y)));
  n.out[i++] = static_cast<i64>(sx < sy ? sx : sy);
  n.out[i++] = static_cast<i64>(x < y ? y : x);
  n.out[i++] = static_cast<i64>(~x ^ y);
}

}  // namespace uccl

// The handler that reads stores to watched registers, and the ring through which devices get their values.
#include "providers/native/doorbell.h"

#include <sched.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <atomic>
#include <csignal>
#include <stdexcept>

namespace box {
namespace {

#ifndef __x86_64__
#error "the box reads the stores of x86-64 code"
#endif

struct Page {
  std::atomic<u64> begin{0};
  u64 end = 0;
  Device* device = nullptr;
};
struct Store {
  std::atomic<u64> turn;  // of the ring: written when equal to its number + 1
  Device* device;
  u64 place, value;
};
constexpr u64 kStores = 1 << 14;
constexpr std::size_t kPages = 1024;
Page pages[kPages];
Store stores[kStores];
std::atomic<u64> next_store{0}, handed_out{0};
struct sigaction before;

// Registers in the order in which instructions number them.
constexpr int kRegisters[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                              REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

// MOV and MOVNTI of a register or a constant to memory: the value, and how long the instruction is; 0: something else.
u32 read_store(const u8* code, const greg_t* registers, u64& value) {
  const u8* p = code;
  u8 rex = 0;
  if ((*p & 0xf0) == 0x40) rex = *p++;
  const bool wide = (rex & 8) != 0;
  const bool constant = p[0] == 0xc7, streamed = p[0] == 0x0f && p[1] == 0xc3;
  if (p[0] != 0x89 && !constant && !streamed) return 0;
  p += streamed ? 2 : 1;
  const u8 form = *p++;
  const u32 mode = form >> 6, base = form & 7;
  if (mode == 3) return 0;
  u32 displacement = mode == 1 ? 1u : mode == 2 ? 4u : base == 5 ? 4u : 0u;
  if (base == 4) {
    if (mode == 0 && (*p & 7) == 5) displacement = 4;
    ++p;
  }
  p += displacement;
  if (constant) {
    int number;
    std::memcpy(&number, p, sizeof(number));
    value = wide ? static_cast<u64>(static_cast<long long>(number)) : static_cast<u32>(number);
    p += sizeof(number);
  } else {
    value = static_cast<u64>(registers[kRegisters[(form >> 3 & 7) | (rex & 4) << 1]]);
    if (!wide) value = static_cast<u32>(value);
  }
  return static_cast<u32>(p - code);
}

const Page* watched(u64 address, u64& place) {
  for (const Page& page : pages) {
    const u64 begin = page.begin.load(std::memory_order_acquire);  // pairs with watch
    place = address - begin;
    if (begin != 0 && address >= begin && address < page.end) return &page;
  }
  return nullptr;
}

void on_fault(int number, siginfo_t* info, void* context) {
  auto* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  u64 place = 0, value = 0;
  const Page* page = watched(reinterpret_cast<u64>(info->si_addr), place);
  const u32 length =
      page == nullptr ? 0 : read_store(reinterpret_cast<const u8*>(registers[REG_RIP]), registers, value);
  if (length == 0) {  // not ours: as if nobody had watched
    sigaction(number, &before, nullptr);
    return;
  }
  const u64 mine = next_store.fetch_add(1, std::memory_order_relaxed);
  while (mine - handed_out.load(std::memory_order_acquire) >= kStores) sched_yield();  // pairs with hand_out_stores
  Store& s = stores[mine % kStores];
  s.device = page->device;
  s.place = place;
  s.value = value;
  s.turn.store(mine + 1, std::memory_order_release);  // pairs with hand_out_stores
  registers[REG_RIP] += length;
}

}  // namespace

void watch(void* at, std::size_t bytes, Device& device) {
  static const bool installed = [] {
    struct sigaction action{};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    return sigaction(SIGSEGV, &action, &before) == 0;
  }();
  if (!installed || mprotect(at, bytes, PROT_NONE) != 0) throw std::runtime_error("box: a register cannot be watched");
  for (Page& page : pages) {
    if (page.begin.load(std::memory_order_relaxed) != 0) continue;
    page.end = reinterpret_cast<u64>(at) + bytes;
    page.device = &device;
    page.begin.store(reinterpret_cast<u64>(at), std::memory_order_release);  // pairs with watched
    return;
  }
  throw std::runtime_error("box: too many registers");
}

void forget(void* at) {
  for (Page& page : pages)
    if (page.begin.load(std::memory_order_relaxed) == reinterpret_cast<u64>(at))
      page.begin.store(0, std::memory_order_relaxed);
}

bool hand_out_stores() {
  u64 n = handed_out.load(std::memory_order_relaxed);
  const u64 first = n;
  for (;; ++n) {
    Store& s = stores[n % kStores];
    if (s.turn.load(std::memory_order_acquire) != n + 1) break;  // pairs with on_fault
    s.device->provider().rang(*s.device, s.place, s.value);
    handed_out.store(n + 1, std::memory_order_release);  // pairs with on_fault
  }
  return n != first;
}

void hand_out_all_stores() {
  const u64 begun = next_store.load(std::memory_order_relaxed);
  while (handed_out.load(std::memory_order_relaxed) < begun)
    if (!hand_out_stores()) sched_yield();
}

}  // namespace box

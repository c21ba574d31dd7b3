// Kernels as the machine executes them: what lower.py made of PTX, one line an instruction.
#pragma once
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "clock.h"

namespace ptx {

// Every operation, by the name that lower.py gives it.
// clang-format off: it finds no form of this that it leaves alone
#define PTX_OPERATIONS(X)                                                                                             \
  X(mov)                                                                                                              \
  X(tid)                                                                                                              \
  X(ntid)                                                                                                             \
  X(add16) X(sub16) X(sub32) X(sub64)                                                                                 \
  X(ctaid) X(nctaid) X(timer) X(add32) X(add64) X(mullo32) X(mullo64) X(mulwide) X(madlo32)                           \
      X(madlo64) X(minu) X(maxu) X(mins32) X(maxs32) X(divu) X(remu) X(andb) X(orb) X(xorb) X(shl32) X(shl64) X(shr)  \
          X(shrs32) X(shflw) X(popc) X(brev) X(clz) X(bfind) X(bfi32) X(bfi64) X(pack16) X(pack32) X(unpack16)        \
              X(unpack32) X(sext8) X(sext16) X(sext32) X(sel) X(eq) X(ne) X(ltu) X(leu) X(gtu) X(geu) X(lts) X(les)   \
                  X(gts) X(ges) X(feq) X(fne) X(flt) X(fle) X(fgt) X(fge) X(fltu) X(fleu) X(fgtu) X(fgeu) X(fadd)     \
                      X(fsub) X(fmul) X(fdiv) X(ffma) X(fmax) X(fmin) X(fabs) X(fneg) X(frcp) X(fex2) X(ffloor)       \
                          X(fromu) X(froms) X(tou) X(e4m3x2) X(ld) X(st) X(add) X(cas) X(shared) X(global) X(barsync) \
                              X(barand) X(barwarp) X(shflidx) X(shflbfly) X(ballot) X(redux) X(sleep) X(bra) X(ret)
// clang-format on

enum class Op : u8 {
#define X(name) k_##name,
  PTX_OPERATIONS(X)
#undef X
};

enum class Space : u8 { kParam, kShared, kGlobal, kGeneric };
enum class Order : u8 { kWeak, kRelaxed, kAcquire, kRelease, kAcqRel };
enum class Scope : u8 { kNone, kCta, kGpu, kSys };

inline constexpr u16 kNoSlot = 0xffff;

// A register's slot, or a value.
struct Operand {
  u64 value = 0;
  u16 slot = kNoSlot;
};

struct Instruction {
  Op op{};
  bool negated = false;      // of the predicate
  u16 predicate = kNoSlot;
  std::array<u16, 4> to{kNoSlot, kNoSlot, kNoSlot, kNoSlot};
  std::array<Operand, 5> from;
  i64 offset = 0;            // of an address
  Space space{};
  u8 bytes = 0, count = 1;   // of one element; elements
  u8 extended = 0;           // a load extends the sign to so many bytes; 0: not at all
  Order order{};
  Scope scope{};
  bool removed = false;      // a barrier that a mutant has taken out
  bool waits = false;        // it uses what a load of this kernel may just have asked for
  u32 place = 0;             // in Kernel::places
};

struct Kernel {
  std::string name;
  u32 slots = 0, param_bytes = 0;
  std::vector<Instruction> code;
  std::vector<std::string> places;  // "header:line", what was inlined there first
  std::vector<u64> executed;        // lanes that have executed each instruction
};

// Reads what lower.py writes. Throws std::runtime_error with the line.
std::vector<Kernel> read_program(std::string_view text);

const char* name_of(Op op);

}  // namespace ptx

// See fiber_switch.h. The frame that the assembly pops is the frame that make_fiber writes.
#include "kernels/host/fiber_switch.h"

#include <cstring>

#if defined(__x86_64__)
asm(R"(
.text
.globl uccl_fiber_switch
.hidden uccl_fiber_switch
.type uccl_fiber_switch,@function
uccl_fiber_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size uccl_fiber_switch,.-uccl_fiber_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl uccl_fiber_switch
.hidden uccl_fiber_switch
.type uccl_fiber_switch,%function
uccl_fiber_switch:
  sub sp,sp,#160
  stp x19,x20,[sp]
  stp x21,x22,[sp,#16]
  stp x23,x24,[sp,#32]
  stp x25,x26,[sp,#48]
  stp x27,x28,[sp,#64]
  stp x29,x30,[sp,#80]
  stp d8,d9,[sp,#96]
  stp d10,d11,[sp,#112]
  stp d12,d13,[sp,#128]
  stp d14,d15,[sp,#144]
  mov x2,sp
  str x2,[x0]
  mov sp,x1
  ldp x19,x20,[sp]
  ldp x21,x22,[sp,#16]
  ldp x23,x24,[sp,#32]
  ldp x25,x26,[sp,#48]
  ldp x27,x28,[sp,#64]
  ldp x29,x30,[sp,#80]
  ldp d8,d9,[sp,#96]
  ldp d10,d11,[sp,#112]
  ldp d12,d13,[sp,#128]
  ldp d14,d15,[sp,#144]
  add sp,sp,#160
  ret
.size uccl_fiber_switch,.-uccl_fiber_switch
)");
#else
#error "the CPU runtime knows x86-64 and aarch64"
#endif

namespace uccl::simt {

void* make_fiber(void* top, void (*entry)()) {
  auto** frame = static_cast<void**>(top);
#if defined(__x86_64__)
  *--frame = nullptr;  // entry's return address: unwinding ends here, and the stack is aligned as after a call
  *--frame = reinterpret_cast<void*>(entry);
  frame -= 6;
  std::memset(frame, 0, 6 * sizeof(void*));
#else
  frame -= 20;
  std::memset(frame, 0, 20 * sizeof(void*));
  frame[11] = reinterpret_cast<void*>(entry);  // x30
#endif
  return frame;
}

}  // namespace uccl::simt

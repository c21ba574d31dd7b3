// libibverbs, opened at run time: the wheel imports where it is absent, and one wheel meets whatever version is there.
#pragma once
#include "transport/verbs/abi.h"

namespace uccl::ibv {

// The library's functions under their C names less "ibv_". A test puts a fabric of its own here.
struct Functions {
  Device** (*get_device_list)(int* count) = nullptr;
  void (*free_device_list)(Device** list) = nullptr;
  const char* (*get_device_name)(Device*) = nullptr;
  Context* (*open_device)(Device*) = nullptr;
  int (*close_device)(Context*) = nullptr;
  int (*query_device)(Context*, DeviceAttr*) = nullptr;
  int (*query_port)(Context*, u8 port, PortAttr*) = nullptr;  // fills what old libraries know
  int (*query_gid)(Context*, u8 port, int index, Gid*) = nullptr;
  int (*query_gid_ex)(Context*, u32 port, u32 index, GidEntry*, u32 flags,
                      std::size_t entry_bytes) = nullptr;  // may miss
  Pd* (*alloc_pd)(Context*) = nullptr;
  int (*dealloc_pd)(Pd*) = nullptr;
  Mr* (*reg_mr)(Pd*, void* address, std::size_t bytes, int access) = nullptr;
  Mr* (*reg_mr_iova2)(Pd*, void* address, std::size_t bytes, u64 iova, unsigned access) = nullptr;  // may miss
  Mr* (*reg_dmabuf_mr)(Pd*, u64 offset, std::size_t bytes, u64 iova, int fd, int access) = nullptr;  // may miss
  int (*dereg_mr)(Mr*) = nullptr;
  Cq* (*create_cq)(Context*, int entries, void* cq_context, void* channel, int vector) = nullptr;
  int (*destroy_cq)(Cq*) = nullptr;
  Srq* (*create_srq)(Pd*, SrqInitAttr*) = nullptr;
  int (*destroy_srq)(Srq*) = nullptr;
  Qp* (*create_qp)(Pd*, QpInitAttr*) = nullptr;
  QpEx* (*qp_to_qp_ex)(Qp*) = nullptr;  // may miss
  int (*modify_qp)(Qp*, QpAttr*, int mask) = nullptr;
  int (*destroy_qp)(Qp*) = nullptr;
  Ah* (*create_ah)(Pd*, AhAttr*) = nullptr;
  int (*destroy_ah)(Ah*) = nullptr;
  int (*get_async_event)(Context*, AsyncEvent*) = nullptr;
  void (*ack_async_event)(AsyncEvent*) = nullptr;
};

class Library {
 public:
  // Throws std::runtime_error that names the packages when the file cannot be opened or lacks a function. Stays loaded
  // for the life of the process: providers keep threads and handlers of their own.
  explicit Library(const char* file = "libibverbs.so.1");
  const Functions& functions() const { return functions_; }

  // The one of this process, opened at first use.
  static const Functions& shared();

 private:
  Functions functions_;
};

}  // namespace uccl::ibv

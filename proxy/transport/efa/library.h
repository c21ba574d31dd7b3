// libefa, opened at run time like libibverbs: what EFA has beyond verbs.
#pragma once
#include "transport/efa/abi.h"
#include "transport/verbs/library.h"

namespace uccl::efadv {

// Under their C names less "efadv_". A test puts a fabric of its own here.
struct Functions {
  int (*query_device)(ibv::Context*, DeviceAttr*, u32 bytes) = nullptr;
  ibv::Qp* (*create_qp_ex)(ibv::Context*, ibv::QpInitAttrEx*, QpInitAttr*, u32 bytes) = nullptr;
  int (*query_ah)(ibv::Ah*, AhAttr*, u32 bytes) = nullptr;
};

class Library {
 public:
  // Throws std::runtime_error that names the packages. Stays loaded for the life of the process.
  explicit Library(const char* file = "libefa.so.1");
  const Functions& functions() const { return functions_; }
  static const Functions& shared();

 private:
  Functions functions_;
};

}  // namespace uccl::efadv

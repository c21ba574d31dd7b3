// The part of libefa's binary interface that we use (efadv.h of rdma-core), as verbs/abi.h is for libibverbs.
// test_abi.cpp compares it with the real header where that is installed.
#pragma once
#include "transport/verbs/abi.h"

namespace uccl::efadv {

inline constexpr u32 kDriverTypeSrd = 0;
inline constexpr u16 kQpUnsolicitedWriteReceive = 1 << 0;  // refused by an rdma-core that does not know it
enum DeviceCaps : u32 {
  kCapsRdmaRead = 1 << 0,
  kCapsRnrRetry = 1 << 1,
  kCapsRdmaWrite = 1 << 3,
  kCapsUnsolicitedWriteReceive = 1 << 4
};

struct DeviceAttr {
  u64 comp_mask;
  u32 max_sq_wr, max_rq_wr;
  u16 max_sq_sge, max_rq_sge, inline_buf_size;
  u8 reserved[2];
  u32 device_caps, max_rdma_size;
};
struct AhAttr {
  u64 comp_mask;
  u16 ahn;
  u8 reserved[6];
};
struct QpInitAttr {
  u64 comp_mask;
  u32 driver_qp_type;
  u16 flags;  // this and the next were reserved, and zero, in older rdma-core
  u8 service_level;
  u8 reserved;
};

}  // namespace uccl::efadv

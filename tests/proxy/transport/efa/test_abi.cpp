// Our layouts of libefa against its header, where that is installed.
#include "native/check.h"
#include "transport/efa/abi.h"

#if __has_include(<infiniband/efadv.h>)
#include <infiniband/efadv.h>
#define HAVE_EFA_HEADER 1
#endif

using namespace uccl;

TEST(transport_efa_abi_sizes) {
  CHECK_EQ(sizeof(efadv::DeviceAttr), 32u);
  CHECK_EQ(sizeof(efadv::QpInitAttr), 16u);
  CHECK_EQ(sizeof(efadv::AhAttr), 16u);
}

#ifdef HAVE_EFA_HEADER
TEST(transport_efa_abi_matches_the_header) {
  CHECK_EQ(sizeof(efadv::DeviceAttr), sizeof(efadv_device_attr));
  CHECK_EQ(offsetof(efadv::DeviceAttr, inline_buf_size), offsetof(efadv_device_attr, inline_buf_size));
  CHECK_EQ(offsetof(efadv::DeviceAttr, device_caps), offsetof(efadv_device_attr, device_caps));
  CHECK_EQ(offsetof(efadv::DeviceAttr, max_rdma_size), offsetof(efadv_device_attr, max_rdma_size));
  CHECK_EQ(sizeof(efadv::QpInitAttr), sizeof(efadv_qp_init_attr));
  CHECK_EQ(offsetof(efadv::QpInitAttr, driver_qp_type), offsetof(efadv_qp_init_attr, driver_qp_type));
  CHECK_EQ(sizeof(efadv::AhAttr), sizeof(efadv_ah_attr));
  CHECK_EQ(offsetof(efadv::AhAttr, ahn), offsetof(efadv_ah_attr, ahn));
  CHECK_EQ(efadv::kDriverTypeSrd, static_cast<u32>(EFADV_QP_DRIVER_TYPE_SRD));
  CHECK_EQ(static_cast<u32>(efadv::kCapsRnrRetry), static_cast<u32>(EFADV_DEVICE_ATTR_CAPS_RNR_RETRY));
}
#endif

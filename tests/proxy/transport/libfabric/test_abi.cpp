// Our description of libfabric's binary interface against its own headers, where they are installed.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>

#include "native/check.h"
#include "transport/libfabric/abi.h"

#if __has_include(<rdma/fi_rma.h>)
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#define HAVE_LIBFABRIC_HEADERS 1
#else
#define HAVE_LIBFABRIC_HEADERS 0
#endif

namespace fi = uccl::fi;

#if HAVE_LIBFABRIC_HEADERS

#define SAME_FIELD(ours, our_field, theirs, their_field)                         \
  CHECK_EQ(offsetof(fi::ours, our_field), offsetof(struct theirs, their_field)); \
  CHECK_EQ(sizeof(fi::ours::our_field), sizeof(theirs::their_field))
#define SAME(ours, theirs, field) SAME_FIELD(ours, field, theirs, field)
#define SAME_VALUE(ours, theirs) \
  CHECK_EQ(static_cast<unsigned long long>(ours), static_cast<unsigned long long>(theirs))

TEST(libfabric_abi_structs_of_the_library) {
  SAME(TxAttr, fi_tx_attr, op_flags), SAME(TxAttr, fi_tx_attr, msg_order), SAME(TxAttr, fi_tx_attr, inject_size);
  SAME(TxAttr, fi_tx_attr, size), SAME(TxAttr, fi_tx_attr, tclass);
  SAME(RxAttr, fi_rx_attr, caps), SAME(RxAttr, fi_rx_attr, iov_limit);
  SAME(EpAttr, fi_ep_attr, type), SAME(EpAttr, fi_ep_attr, max_msg_size);
  SAME(EpAttr, fi_ep_attr, max_order_waw_size), SAME(EpAttr, fi_ep_attr, auth_key);
  SAME(DomainAttr, fi_domain_attr, name), SAME(DomainAttr, fi_domain_attr, threading);
  SAME(DomainAttr, fi_domain_attr, control_progress), SAME(DomainAttr, fi_domain_attr, data_progress);
  SAME(DomainAttr, fi_domain_attr, resource_mgmt), SAME(DomainAttr, fi_domain_attr, av_type);
  SAME(DomainAttr, fi_domain_attr, mr_mode), SAME(DomainAttr, fi_domain_attr, mr_key_size);
  SAME(DomainAttr, fi_domain_attr, cq_data_size), SAME(DomainAttr, fi_domain_attr, tclass);
  SAME(FabricAttr, fi_fabric_attr, prov_name), SAME(FabricAttr, fi_fabric_attr, prov_version);
  SAME(Info, fi_info, next), SAME(Info, fi_info, caps), SAME(Info, fi_info, mode), SAME(Info, fi_info, src_addr);
  SAME(Info, fi_info, tx_attr), SAME(Info, fi_info, rx_attr), SAME(Info, fi_info, ep_attr);
  SAME(Info, fi_info, domain_attr), SAME(Info, fi_info, fabric_attr), SAME(Info, fi_info, nic);
}

TEST(libfabric_abi_structs_of_the_caller) {
  SAME(AvAttr, fi_av_attr, type), SAME(AvAttr, fi_av_attr, count), SAME(AvAttr, fi_av_attr, flags);
  SAME(CqAttr, fi_cq_attr, size), SAME(CqAttr, fi_cq_attr, format), SAME(CqAttr, fi_cq_attr, wait_obj);
  SAME(CqAttr, fi_cq_attr, wait_cond), SAME(CqAttr, fi_cq_attr, wait_set);
  SAME(MrAttr, fi_mr_attr, mr_iov), SAME(MrAttr, fi_mr_attr, access), SAME(MrAttr, fi_mr_attr, requested_key);
  SAME(MrAttr, fi_mr_attr, auth_key), SAME(MrAttr, fi_mr_attr, iface), SAME(MrAttr, fi_mr_attr, device);
  SAME(CqEntry, fi_cq_data_entry, op_context), SAME(CqEntry, fi_cq_data_entry, flags);
  SAME(CqEntry, fi_cq_data_entry, len), SAME(CqEntry, fi_cq_data_entry, data);
  CHECK_EQ(sizeof(fi::CqEntry), sizeof(fi_cq_data_entry));
  SAME(CqError, fi_cq_err_entry, op_context), SAME(CqError, fi_cq_err_entry, err);
  SAME(CqError, fi_cq_err_entry, prov_errno), SAME(CqError, fi_cq_err_entry, err_data_size);
  SAME(RmaIov, fi_rma_iov, addr), SAME(RmaIov, fi_rma_iov, len), SAME(RmaIov, fi_rma_iov, key);
  CHECK_EQ(sizeof(fi::RmaIov), sizeof(fi_rma_iov));
  SAME(MsgRma, fi_msg_rma, msg_iov), SAME(MsgRma, fi_msg_rma, desc), SAME(MsgRma, fi_msg_rma, addr);
  SAME(MsgRma, fi_msg_rma, rma_iov), SAME(MsgRma, fi_msg_rma, context), SAME(MsgRma, fi_msg_rma, data);
  CHECK_EQ(sizeof(fi::MsgRma), sizeof(fi_msg_rma));
  // Room for what later versions append: at least as long as any of them.
  CHECK(sizeof(fi::AvAttr) > sizeof(fi_av_attr) && sizeof(fi::CqAttr) > sizeof(fi_cq_attr));
  CHECK(sizeof(fi::MrAttr) > sizeof(fi_mr_attr) && sizeof(fi::CqError) > sizeof(fi_cq_err_entry));
}

TEST(libfabric_abi_objects_and_tables) {
  SAME(Fid, fid, ops);
  SAME(Ops, fi_ops, close), SAME(Ops, fi_ops, bind), SAME(Ops, fi_ops, control);
  SAME(Fabric, fid_fabric, fid), SAME(Fabric, fid_fabric, ops);
  SAME(FabricOps, fi_ops_fabric, domain);
  SAME(Domain, fid_domain, ops), SAME(Domain, fid_domain, mr);
  SAME(DomainOps, fi_ops_domain, av_open), SAME(DomainOps, fi_ops_domain, cq_open);
  SAME(DomainOps, fi_ops_domain, endpoint);
  SAME(MrOps, fi_ops_mr, regattr);
  SAME(MemoryRegion, fid_mr, mem_desc), SAME(MemoryRegion, fid_mr, key);
  SAME(AddressVector, fid_av, ops), SAME(AvOps, fi_ops_av, insert), SAME(AvOps, fi_ops_av, remove);
  SAME(CompletionQueue, fid_cq, ops), SAME(CqOps, fi_ops_cq, read), SAME(CqOps, fi_ops_cq, readfrom);
  SAME(CqOps, fi_ops_cq, readerr), SAME(CqOps, fi_ops_cq, strerror);
  SAME(Endpoint, fid_ep, cm), SAME(Endpoint, fid_ep, rma);
  SAME(CmOps, fi_ops_cm, getname), SAME(RmaOps, fi_ops_rma, writemsg);
}

TEST(libfabric_abi_values) {
  SAME_VALUE(fi::version(1, 17), FI_VERSION(1, 17));
  SAME_VALUE(fi::kMsg, FI_MSG), SAME_VALUE(fi::kRma, FI_RMA), SAME_VALUE(fi::kRead, FI_READ);
  SAME_VALUE(fi::kWrite, FI_WRITE), SAME_VALUE(fi::kRecv, FI_RECV), SAME_VALUE(fi::kTransmit, FI_TRANSMIT);
  SAME_VALUE(fi::kRemoteRead, FI_REMOTE_READ), SAME_VALUE(fi::kRemoteWrite, FI_REMOTE_WRITE);
  SAME_VALUE(fi::kRemoteCqData, FI_REMOTE_CQ_DATA), SAME_VALUE(fi::kMore, FI_MORE);
  SAME_VALUE(fi::kCompletion, FI_COMPLETION), SAME_VALUE(fi::kInject, FI_INJECT);
  SAME_VALUE(fi::kTransmitComplete, FI_TRANSMIT_COMPLETE), SAME_VALUE(fi::kDeliveryComplete, FI_DELIVERY_COMPLETE);
  SAME_VALUE(fi::kHmem, FI_HMEM), SAME_VALUE(fi::kLocalComm, FI_LOCAL_COMM);
  SAME_VALUE(fi::kRemoteComm, FI_REMOTE_COMM), SAME_VALUE(fi::kSource, FI_SOURCE);
  SAME_VALUE(fi::kContext, FI_CONTEXT), SAME_VALUE(fi::kContext2, FI_CONTEXT2);
  SAME_VALUE(fi::kMrLocal, FI_MR_LOCAL), SAME_VALUE(fi::kMrRaw, FI_MR_RAW);
  SAME_VALUE(fi::kMrVirtAddr, FI_MR_VIRT_ADDR), SAME_VALUE(fi::kMrAllocated, FI_MR_ALLOCATED);
  SAME_VALUE(fi::kMrProvKey, FI_MR_PROV_KEY), SAME_VALUE(fi::kMrEndpoint, FI_MR_ENDPOINT);
  SAME_VALUE(fi::kMrHmem, FI_MR_HMEM);
  SAME_VALUE(fi::kOrderWaw, FI_ORDER_WAW), SAME_VALUE(fi::kOrderRmaWaw, FI_ORDER_RMA_WAW);
  SAME_VALUE(fi::kEpRdm, FI_EP_RDM), SAME_VALUE(fi::kAvTable, FI_AV_TABLE);
  SAME_VALUE(fi::kProgressManual, FI_PROGRESS_MANUAL), SAME_VALUE(fi::kThreadSafe, FI_THREAD_SAFE);
  SAME_VALUE(fi::kThreadDomain, FI_THREAD_DOMAIN), SAME_VALUE(fi::kThreadCompletion, FI_THREAD_COMPLETION);
  SAME_VALUE(fi::kRmEnabled, FI_RM_ENABLED), SAME_VALUE(fi::kCqFormatData, FI_CQ_FORMAT_DATA);
  SAME_VALUE(fi::kWaitNone, FI_WAIT_NONE), SAME_VALUE(fi::kEnable, FI_ENABLE);
  SAME_VALUE(fi::kHmemCuda, FI_HMEM_CUDA), SAME_VALUE(fi::kHmemRocr, FI_HMEM_ROCR);
  SAME_VALUE(fi::kErrAvail, FI_EAVAIL), SAME_VALUE(fi::kErrNoKey, FI_ENOKEY);
  SAME_VALUE(fi::kAddrUnspec, FI_ADDR_UNSPEC);
}

#else

TEST(libfabric_abi_structs_of_the_library) {
  const char* required = std::getenv("UCCL_EP_REQUIRE_TOOLS");
  CHECK(required == nullptr || std::string(required) != "1");
  std::printf("SKIPPED: no <rdma/fabric.h> to compare with (Debian: libfabric-dev)\n");
}

#endif

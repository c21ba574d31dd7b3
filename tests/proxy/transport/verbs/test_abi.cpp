// Our layouts against the real header, where libibverbs' development files are installed; without them the sizes that
// this test saw there (x86-64 and aarch64 Linux, rdma-core 44) are checked.
#include "native/check.h"
#include "transport/verbs/abi.h"

#if __has_include(<infiniband/verbs.h>)
#include <infiniband/verbs.h>
#define HAVE_VERBS_HEADER 1
#endif

using namespace uccl;

TEST(transport_verbs_abi_sizes) {
  CHECK_EQ(sizeof(ibv::DeviceAttr), 232u);
  CHECK_EQ(sizeof(ibv::PortAttr), 52u);
  CHECK_EQ(sizeof(ibv::SendWr), 128u);
  CHECK_EQ(sizeof(ibv::Wc), 48u);
  CHECK_EQ(sizeof(ibv::QpAttr), 144u);
  CHECK_EQ(sizeof(ibv::ContextOps), 32 * sizeof(void*));
}

#ifdef HAVE_VERBS_HEADER
#define SAME_SIZE(ours, theirs) CHECK_EQ(sizeof(ibv::ours), sizeof(theirs))
#define SAME(ours, a, theirs, b)                         \
  CHECK_EQ(offsetof(ibv::ours, a), offsetof(theirs, b)); \
  CHECK_EQ(sizeof(ibv::ours::a), sizeof(theirs::b))
#define SAME_VALUE(ours, theirs) CHECK_EQ(static_cast<u64>(ibv::ours), static_cast<u64>(theirs))

TEST(transport_verbs_abi_objects_match_the_header) {
  SAME_SIZE(Gid, union ibv_gid);
  SAME_SIZE(GidEntry, ibv_gid_entry);
  SAME_SIZE(DeviceAttr, ibv_device_attr);
  SAME(DeviceAttr, max_qp, ibv_device_attr, max_qp);
  SAME(DeviceAttr, max_qp_wr, ibv_device_attr, max_qp_wr);
  SAME(DeviceAttr, max_cqe, ibv_device_attr, max_cqe);
  SAME(DeviceAttr, max_mr_size, ibv_device_attr, max_mr_size);
  SAME(DeviceAttr, max_srq_wr, ibv_device_attr, max_srq_wr);
  SAME(DeviceAttr, phys_port_cnt, ibv_device_attr, phys_port_cnt);
  SAME(DeviceAttrEx, odp_caps, ibv_device_attr_ex, odp_caps);
  SAME_SIZE(OdpCaps, ibv_odp_caps);
  CHECK_EQ(sizeof(ibv::DeviceAttrEx), offsetof(ibv_device_attr_ex, completion_timestamp_mask));
  SAME_SIZE(PortAttr, ibv_port_attr);
  SAME(PortAttr, active_mtu, ibv_port_attr, active_mtu);
  SAME(PortAttr, max_msg_sz, ibv_port_attr, max_msg_sz);
  SAME(PortAttr, lid, ibv_port_attr, lid);
  SAME(PortAttr, link_layer, ibv_port_attr, link_layer);
  SAME_SIZE(GlobalRoute, ibv_global_route);
  SAME(GlobalRoute, flow_label, ibv_global_route, flow_label);
  SAME(GlobalRoute, traffic_class, ibv_global_route, traffic_class);
  SAME_SIZE(AhAttr, ibv_ah_attr);
  SAME(AhAttr, port_num, ibv_ah_attr, port_num);
  SAME_SIZE(Pd, ibv_pd);
  SAME_SIZE(Ah, ibv_ah);
  SAME_SIZE(Mr, ibv_mr);
  SAME(Mr, rkey, ibv_mr, rkey);
  SAME_SIZE(Srq, ibv_srq);
  SAME_SIZE(SrqInitAttr, ibv_srq_init_attr);
  SAME_SIZE(QpCap, ibv_qp_cap);
  SAME_SIZE(QpInitAttr, ibv_qp_init_attr);
  SAME(QpInitAttr, sq_sig_all, ibv_qp_init_attr, sq_sig_all);
  SAME_SIZE(QpInitAttrEx, ibv_qp_init_attr_ex);
  SAME(QpInitAttrEx, comp_mask, ibv_qp_init_attr_ex, comp_mask);
  SAME(QpInitAttrEx, pd, ibv_qp_init_attr_ex, pd);
  SAME(QpInitAttrEx, source_qpn, ibv_qp_init_attr_ex, source_qpn);
  SAME(QpInitAttrEx, send_ops_flags, ibv_qp_init_attr_ex, send_ops_flags);
  SAME_SIZE(QpAttr, ibv_qp_attr);
  SAME(QpAttr, qp_access_flags, ibv_qp_attr, qp_access_flags);
  SAME(QpAttr, ah_attr, ibv_qp_attr, ah_attr);
  SAME(QpAttr, pkey_index, ibv_qp_attr, pkey_index);
  SAME(QpAttr, min_rnr_timer, ibv_qp_attr, min_rnr_timer);
  SAME(QpAttr, retry_cnt, ibv_qp_attr, retry_cnt);
  SAME(QpAttr, rate_limit, ibv_qp_attr, rate_limit);
  SAME_SIZE(Qp, ibv_qp);
  SAME(Qp, qp_num, ibv_qp, qp_num);
}

TEST(transport_verbs_abi_data_path_matches_the_header) {
  SAME_SIZE(Cq, ibv_cq);
  SAME(Cq, cqe, ibv_cq, cqe);
  SAME(CqEx, comp_mask, ibv_cq_ex, comp_mask);
  SAME(CqEx, status, ibv_cq_ex, status);
  SAME(CqEx, wr_id, ibv_cq_ex, wr_id);
  SAME(CqEx, start_poll, ibv_cq_ex, start_poll);
  SAME(CqEx, end_poll, ibv_cq_ex, end_poll);
  SAME(CqEx, read_opcode, ibv_cq_ex, read_opcode);
  SAME(CqEx, read_vendor_err, ibv_cq_ex, read_vendor_err);
  SAME(CqEx, read_imm_data, ibv_cq_ex, read_imm_data);
  SAME(CqEx, read_src_qp, ibv_cq_ex, read_src_qp);
  SAME(CqEx, read_slid, ibv_cq_ex, read_slid);
  SAME(CqEx, read_wc_flags, ibv_cq_ex, read_wc_flags);
  SAME_SIZE(CqInitAttrEx, ibv_cq_init_attr_ex);
  SAME(CqInitAttrEx, wc_flags, ibv_cq_init_attr_ex, wc_flags);
  SAME_SIZE(Wc, ibv_wc);
  SAME(Wc, imm_data, ibv_wc, imm_data);
  SAME(Wc, qp_num, ibv_wc, qp_num);
  SAME(Wc, wc_flags, ibv_wc, wc_flags);
  SAME_SIZE(Sge, ibv_sge);
  SAME_SIZE(SendWr, ibv_send_wr);
  SAME(SendWr, send_flags, ibv_send_wr, send_flags);
  SAME(SendWr, imm_data, ibv_send_wr, imm_data);
  SAME(SendWr, rdma.remote_addr, ibv_send_wr, wr.rdma.remote_addr);
  SAME(SendWr, rdma.rkey, ibv_send_wr, wr.rdma.rkey);
  CHECK_EQ(offsetof(ibv::SendWr, xrc_remote_srqn), offsetof(ibv_send_wr, qp_type));
  CHECK_EQ(offsetof(ibv::SendWr, unused_bind_mw_tso), offsetof(ibv_send_wr, bind_mw));
  SAME_SIZE(RecvWr, ibv_recv_wr);
  SAME(QpEx, wr_id, ibv_qp_ex, wr_id);
  SAME(QpEx, wr_flags, ibv_qp_ex, wr_flags);
  SAME(QpEx, wr_rdma_write, ibv_qp_ex, wr_rdma_write);
  SAME(QpEx, wr_rdma_write_imm, ibv_qp_ex, wr_rdma_write_imm);
  SAME(QpEx, wr_send_imm, ibv_qp_ex, wr_send_imm);
  SAME(QpEx, wr_set_ud_addr, ibv_qp_ex, wr_set_ud_addr);
  SAME(QpEx, wr_set_inline_data, ibv_qp_ex, wr_set_inline_data);
  SAME(QpEx, wr_set_sge, ibv_qp_ex, wr_set_sge);
  SAME(QpEx, wr_start, ibv_qp_ex, wr_start);
  SAME(QpEx, wr_complete, ibv_qp_ex, wr_complete);
  SAME(QpEx, wr_abort, ibv_qp_ex, wr_abort);
  SAME_SIZE(AsyncEvent, ibv_async_event);
  SAME(AsyncEvent, event_type, ibv_async_event, event_type);
}

TEST(transport_verbs_abi_tables_match_the_header) {
  SAME_SIZE(ContextOps, ibv_context_ops);
  SAME(ContextOps, poll_cq, ibv_context_ops, poll_cq);
  SAME(ContextOps, post_srq_recv, ibv_context_ops, post_srq_recv);
  SAME(ContextOps, post_send, ibv_context_ops, post_send);
  SAME(ContextOps, post_recv, ibv_context_ops, post_recv);
  SAME_SIZE(Context, ibv_context);
  SAME(Context, async_fd, ibv_context, async_fd);
  SAME(Context, abi_compat, ibv_context, abi_compat);
  SAME_SIZE(VerbsContext, verbs_context);
  SAME(VerbsContext, query_port, verbs_context, query_port);
  SAME(VerbsContext, create_cq_ex, verbs_context, create_cq_ex);
  SAME(VerbsContext, query_device_ex, verbs_context, query_device_ex);
  SAME(VerbsContext, create_qp_ex, verbs_context, create_qp_ex);
  SAME(VerbsContext, sz, verbs_context, sz);
  SAME(VerbsContext, context, verbs_context, context);
  CHECK_EQ(reinterpret_cast<u64>(__VERBS_ABI_IS_EXTENDED), ~0ull);
}

TEST(transport_verbs_abi_values_match_the_header) {
  SAME_VALUE(kMtu256, IBV_MTU_256);
  SAME_VALUE(kMtu4096, IBV_MTU_4096);
  SAME_VALUE(kPortActive, IBV_PORT_ACTIVE);
  SAME_VALUE(kPortDown, IBV_PORT_DOWN);
  SAME_VALUE(kLinkInfiniband, IBV_LINK_LAYER_INFINIBAND);
  SAME_VALUE(kLinkEthernet, IBV_LINK_LAYER_ETHERNET);
  SAME_VALUE(kGidRoceV2, IBV_GID_TYPE_ROCE_V2);
  SAME_VALUE(kQptRc, IBV_QPT_RC);
  SAME_VALUE(kQptUd, IBV_QPT_UD);
  SAME_VALUE(kQptDriver, IBV_QPT_DRIVER);
  SAME_VALUE(kQpsInit, IBV_QPS_INIT);
  SAME_VALUE(kQpsRts, IBV_QPS_RTS);
  SAME_VALUE(kQpsErr, IBV_QPS_ERR);
  SAME_VALUE(kWrRdmaWrite, IBV_WR_RDMA_WRITE);
  SAME_VALUE(kWrRdmaWriteWithImm, IBV_WR_RDMA_WRITE_WITH_IMM);
  SAME_VALUE(kWrSendWithImm, IBV_WR_SEND_WITH_IMM);
  SAME_VALUE(kWrRdmaRead, IBV_WR_RDMA_READ);
  SAME_VALUE(kWcRdmaRead, IBV_WC_RDMA_READ);
  SAME_VALUE(kWcSend, IBV_WC_SEND);
  SAME_VALUE(kWcRecv, IBV_WC_RECV);
  SAME_VALUE(kWcRecvRdmaWithImm, IBV_WC_RECV_RDMA_WITH_IMM);
  SAME_VALUE(kSendSignaled, IBV_SEND_SIGNALED);
  SAME_VALUE(kSendInline, IBV_SEND_INLINE);
  SAME_VALUE(kWcWithImm, IBV_WC_WITH_IMM);
  SAME_VALUE(kAccessRemoteWrite, IBV_ACCESS_REMOTE_WRITE);
  SAME_VALUE(kAccessRemoteRead, IBV_ACCESS_REMOTE_READ);
  SAME_VALUE(kAccessRelaxedOrdering, IBV_ACCESS_RELAXED_ORDERING);
  SAME_VALUE(kOdpSupportWrite, IBV_ODP_SUPPORT_WRITE);
  SAME_VALUE(kWcExSrcQp, IBV_WC_EX_WITH_SRC_QP);
  SAME_VALUE(kWcExSlid, IBV_WC_EX_WITH_SLID);
  SAME_VALUE(kWcExQpNum, IBV_WC_EX_WITH_QP_NUM);
  SAME_VALUE(kQpInitSendOps, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS);
  SAME_VALUE(kExSendWithImm, IBV_QP_EX_WITH_SEND_WITH_IMM);
  SAME_VALUE(kExRdmaWriteWithImm, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM);
  SAME_VALUE(kQpState, IBV_QP_STATE);
  SAME_VALUE(kQpAccessFlags, IBV_QP_ACCESS_FLAGS);
  SAME_VALUE(kQpPkeyIndex, IBV_QP_PKEY_INDEX);
  SAME_VALUE(kQpPort, IBV_QP_PORT);
  SAME_VALUE(kQpQkey, IBV_QP_QKEY);
  SAME_VALUE(kQpAv, IBV_QP_AV);
  SAME_VALUE(kQpPathMtu, IBV_QP_PATH_MTU);
  SAME_VALUE(kQpTimeout, IBV_QP_TIMEOUT);
  SAME_VALUE(kQpRetryCnt, IBV_QP_RETRY_CNT);
  SAME_VALUE(kQpRnrRetry, IBV_QP_RNR_RETRY);
  SAME_VALUE(kQpRqPsn, IBV_QP_RQ_PSN);
  SAME_VALUE(kQpMaxRdAtomic, IBV_QP_MAX_QP_RD_ATOMIC);
  SAME_VALUE(kQpMinRnrTimer, IBV_QP_MIN_RNR_TIMER);
  SAME_VALUE(kQpSqPsn, IBV_QP_SQ_PSN);
  SAME_VALUE(kQpMaxDestRdAtomic, IBV_QP_MAX_DEST_RD_ATOMIC);
  SAME_VALUE(kQpDestQpn, IBV_QP_DEST_QPN);
  SAME_VALUE(kWcWrFlushErr, IBV_WC_WR_FLUSH_ERR);
  SAME_VALUE(kWcRemAccessErr, IBV_WC_REM_ACCESS_ERR);
  SAME_VALUE(kWcRetryExcErr, IBV_WC_RETRY_EXC_ERR);
  SAME_VALUE(kWcTmRndvIncomplete, IBV_WC_TM_RNDV_INCOMPLETE);
  SAME_VALUE(kEventDeviceFatal, IBV_EVENT_DEVICE_FATAL);
  SAME_VALUE(kEventPortActive, IBV_EVENT_PORT_ACTIVE);
  SAME_VALUE(kEventPortErr, IBV_EVENT_PORT_ERR);
  SAME_VALUE(kEventSrqErr, IBV_EVENT_SRQ_ERR);
}
#endif

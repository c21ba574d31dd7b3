// The part of libibverbs' binary interface that we use, so that no header of rdma-core is needed to build: layouts and
// values that its ABI has kept since IBVERBS_1.1. test_abi.cpp compares every one with the real header where that is
// installed. Fields keep rdma-core's names; what we never touch is a placeholder of the right size.
#pragma once
#include <pthread.h>

#include <cstddef>

#include "wire/types.h"

namespace uccl::ibv {

struct Device;
struct Context;
struct CqEx;
struct QpEx;
struct PortAttr;
struct DeviceAttrEx;
struct CqInitAttrEx;
struct QpInitAttrEx;

enum Mtu : u32 { kMtu256 = 1, kMtu512, kMtu1024, kMtu2048, kMtu4096 };
enum PortState : u32 { kPortDown = 1, kPortActive = 4 };
enum LinkLayer : u8 { kLinkUnspecified, kLinkInfiniband, kLinkEthernet };
enum GidType : u32 { kGidIb, kGidRoceV1, kGidRoceV2 };
enum QpType : u32 { kQptRc = 2, kQptUd = 4, kQptDriver = 0xff };
enum QpState : u32 { kQpsReset, kQpsInit, kQpsRtr, kQpsRts, kQpsSqd, kQpsSqe, kQpsErr };
enum WrOpcode : u32 { kWrRdmaWrite, kWrRdmaWriteWithImm, kWrSend, kWrSendWithImm, kWrRdmaRead };
enum WcOpcode : u32 { kWcSend = 0, kWcRdmaWrite = 1, kWcRdmaRead = 2, kWcRecv = 1 << 7, kWcRecvRdmaWithImm };
enum SendFlags : u32 { kSendSignaled = 1 << 1, kSendInline = 1 << 3 };
enum WcFlags : u32 { kWcWithImm = 1 << 1 };
enum AccessFlags : u32 {
  kAccessLocalWrite = 1,
  kAccessRemoteWrite = 1 << 1,
  kAccessRemoteRead = 1 << 2,
  kAccessRelaxedOrdering = 1 << 20
};
enum OdpTransportCaps : u32 { kOdpSupportWrite = 1 << 2 };
enum WcExFlags : u64 {
  kWcExByteLen = 1,
  kWcExImm = 1 << 1,
  kWcExQpNum = 1 << 2,
  kWcExSrcQp = 1 << 3,
  kWcExSlid = 1 << 4
};
enum QpInitAttrMask : u32 { kQpInitPd = 1, kQpInitSendOps = 1 << 6 };
enum SendOps : u64 { kExRdmaWrite = 1, kExRdmaWriteWithImm = 1 << 1, kExSend = 1 << 2, kExSendWithImm = 1 << 3 };
enum QpAttrMask : u32 {
  kQpState = 1,
  kQpAccessFlags = 1 << 3,
  kQpPkeyIndex = 1 << 4,
  kQpPort = 1 << 5,
  kQpQkey = 1 << 6,
  kQpAv = 1 << 7,
  kQpPathMtu = 1 << 8,
  kQpTimeout = 1 << 9,
  kQpRetryCnt = 1 << 10,
  kQpRnrRetry = 1 << 11,
  kQpRqPsn = 1 << 12,
  kQpMaxRdAtomic = 1 << 13,
  kQpMinRnrTimer = 1 << 15,
  kQpSqPsn = 1 << 16,
  kQpMaxDestRdAtomic = 1 << 17,
  kQpDestQpn = 1 << 20,
};
enum WcStatus : u32 {
  kWcSuccess,
  kWcLocLenErr,
  kWcLocQpOpErr,
  kWcLocEecOpErr,
  kWcLocProtErr,
  kWcWrFlushErr,
  kWcMwBindErr,
  kWcBadRespErr,
  kWcLocAccessErr,
  kWcRemInvReqErr,
  kWcRemAccessErr,
  kWcRemOpErr,
  kWcRetryExcErr,
  kWcRnrRetryExcErr,
  kWcLocRddViolErr,
  kWcRemInvRdReqErr,
  kWcRemAbortErr,
  kWcInvEecnErr,
  kWcInvEecStateErr,
  kWcFatalErr,
  kWcRespTimeoutErr,
  kWcGeneralErr,
  kWcTmErr,
  kWcTmRndvIncomplete,
};
enum EventType : u32 {
  kEventCqErr,
  kEventQpFatal,
  kEventDeviceFatal = 8,
  kEventPortActive,
  kEventPortErr,
  kEventSrqErr = 14
};

union Gid {
  u8 raw[16];
  u64 words[2];
};
struct GidEntry {
  Gid gid;
  u32 gid_index, port_num, gid_type, ndev_ifindex;
};
struct DeviceAttr {
  char fw_ver[64];
  u64 node_guid, sys_image_guid, max_mr_size, page_size_cap;
  u32 vendor_id, vendor_part_id, hw_ver;
  int max_qp, max_qp_wr;
  u32 device_cap_flags;
  int max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom;
  int max_qp_init_rd_atom, max_ee_init_rd_atom;
  u32 atomic_cap;
  int max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach;
  int max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge;
  u16 max_pkeys;
  u8 local_ca_ack_delay, phys_port_cnt;
};
struct OdpCaps {
  u64 general_caps;
  u32 rc_odp_caps, uc_odp_caps, ud_odp_caps;
};
struct DeviceAttrEx {  // its beginning; the size that we pass says so
  DeviceAttr orig_attr;
  u32 comp_mask;
  OdpCaps odp_caps;
};
struct PortAttr {
  u32 state, max_mtu, active_mtu;
  int gid_tbl_len;
  u32 port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
  u16 pkey_tbl_len, lid, sm_lid;
  u8 lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer, flags;
  u16 port_cap_flags2;
};
struct GlobalRoute {
  Gid dgid;
  u32 flow_label;
  u8 sgid_index, hop_limit, traffic_class;
};
struct AhAttr {
  GlobalRoute grh;
  u16 dlid;
  u8 sl, src_path_bits, static_rate, is_global, port_num;
};

struct Pd {
  Context* context;
  u32 handle;
};
struct Ah {
  Context* context;
  Pd* pd;
  u32 handle;
};
struct Mr {
  Context* context;
  Pd* pd;
  void* addr;
  std::size_t length;
  u32 handle, lkey, rkey;
};
struct Cq {
  Context* context;
  void* channel;
  void* cq_context;
  u32 handle;
  int cqe;
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  u32 comp_events_completed, async_events_completed;
};
struct PollCqAttr {
  u32 comp_mask;
};
struct CqEx {
  Cq base;
  u32 comp_mask;
  u32 status;
  u64 wr_id;
  int (*start_poll)(CqEx*, PollCqAttr*);
  int (*next_poll)(CqEx*);
  void (*end_poll)(CqEx*);
  u32 (*read_opcode)(CqEx*);
  u32 (*read_vendor_err)(CqEx*);
  u32 (*read_byte_len)(CqEx*);
  u32 (*read_imm_data)(CqEx*);  // network byte order
  u32 (*read_qp_num)(CqEx*);
  u32 (*read_src_qp)(CqEx*);
  u32 (*read_wc_flags)(CqEx*);
  u32 (*read_slid)(CqEx*);
};
struct CqInitAttrEx {
  u32 cqe;
  void* cq_context;
  void* channel;
  u32 comp_vector;
  u64 wc_flags;
  u32 comp_mask, flags;
  Pd* parent_domain;
};
struct Wc {
  u64 wr_id;
  u32 status, opcode, vendor_err, byte_len;
  u32 imm_data;  // network byte order
  u32 qp_num, src_qp, wc_flags;
  u16 pkey_index, slid;
  u8 sl, dlid_path_bits;
};
struct SrqInitAttr {
  void* srq_context;
  u32 max_wr, max_sge, srq_limit;
};
struct Srq {
  Context* context;
  void* srq_context;
  Pd* pd;
  u32 handle;
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  u32 events_completed;
};
struct QpCap {
  u32 max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
};
struct QpInitAttr {
  void* qp_context;
  Cq* send_cq;
  Cq* recv_cq;
  Srq* srq;
  QpCap cap;
  u32 qp_type;
  int sq_sig_all;
};
struct QpInitAttrEx {  // not a QpInitAttr and more: comp_mask lies where that one is padded
  void* qp_context;
  Cq* send_cq;
  Cq* recv_cq;
  Srq* srq;
  QpCap cap;
  u32 qp_type;
  int sq_sig_all;
  u32 comp_mask;
  Pd* pd;
  void* xrcd;
  u32 create_flags;
  u16 max_tso_header;
  void* rwq_ind_tbl;
  u8 rx_hash_function, rx_hash_key_len;
  u8* rx_hash_key;
  u64 rx_hash_fields_mask;
  u32 source_qpn;
  u64 send_ops_flags;
};
struct QpAttr {
  u32 qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags;
  QpCap cap;
  AhAttr ah_attr, alt_ah_attr;
  u16 pkey_index, alt_pkey_index;
  u8 en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt;
  u8 rnr_retry, alt_port_num, alt_timeout;
  u32 rate_limit;
};
struct Qp {
  Context* context;
  void* qp_context;
  Pd* pd;
  Cq* send_cq;
  Cq* recv_cq;
  Srq* srq;
  u32 handle, qp_num, state, qp_type;
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  u32 events_completed;
};
struct QpEx {
  Qp base;
  u64 comp_mask, wr_id;
  u32 wr_flags;
  void* unused_atomics_bind_inv_read[5];
  void (*wr_rdma_write)(QpEx*, u32 rkey, u64 remote_addr);
  void (*wr_rdma_write_imm)(QpEx*, u32 rkey, u64 remote_addr, u32 imm_data);
  void (*wr_send)(QpEx*);
  void (*wr_send_imm)(QpEx*, u32 imm_data);
  void* unused_send_inv_tso[2];
  void (*wr_set_ud_addr)(QpEx*, Ah*, u32 remote_qpn, u32 remote_qkey);
  void* unused_set_xrc_srqn;
  void (*wr_set_inline_data)(QpEx*, void* addr, std::size_t length);
  void* unused_set_inline_data_list;
  void (*wr_set_sge)(QpEx*, u32 lkey, u64 addr, u32 length);
  void* unused_set_sge_list;
  void (*wr_start)(QpEx*);
  int (*wr_complete)(QpEx*);
  void (*wr_abort)(QpEx*);
};
struct Sge {
  u64 addr;
  u32 length, lkey;
};
struct SendWr {
  u64 wr_id;
  SendWr* next;
  Sge* sg_list;
  int num_sge;
  u32 opcode, send_flags;
  u32 imm_data;  // network byte order
  struct {
    u64 remote_addr;
    u32 rkey;
    u64 unused[2];
  } rdma;
  u32 xrc_remote_srqn;
  u64 unused_bind_mw_tso[6];
};
struct RecvWr {
  u64 wr_id;
  RecvWr* next;
  Sge* sg_list;
  int num_sge;
};
struct AsyncEvent {
  union {
    Qp* qp;
    int port_num;
  } element;
  u32 event_type;
};

struct ContextOps {
  void* unused_to_poll[11];
  int (*poll_cq)(Cq*, int num_entries, Wc*);
  void* unused_to_srq[8];
  int (*post_srq_recv)(Srq*, RecvWr*, RecvWr** bad);
  void* unused_to_send[4];
  int (*post_send)(Qp*, SendWr*, SendWr** bad);
  int (*post_recv)(Qp*, RecvWr*, RecvWr** bad);
  void* unused_tail[5];
};
struct Context {
  Device* device;
  ContextOps ops;
  int cmd_fd, async_fd, num_comp_vectors;
  pthread_mutex_t mutex;
  void* abi_compat;  // all ones: a VerbsContext surrounds this
};
struct VerbsContext {
  int (*query_port)(Context*, u8 port_num, PortAttr*, std::size_t attr_bytes);
  void* unused_to_cq[24];
  CqEx* (*create_cq_ex)(Context*, CqInitAttrEx*);
  void* priv;
  int (*query_device_ex)(Context*, const void* input, DeviceAttrEx*, std::size_t attr_bytes);
  void* unused_to_qp[5];
  Qp* (*create_qp_ex)(Context*, QpInitAttrEx*);
  void* unused_to_xrcd[4];
  u64 placeholder;
  std::size_t sz;
  Context context;
};

// The VerbsContext around `context` when it has `op`, else null (an old library, or a provider without it).
template <class Op>
VerbsContext* extended(Context* context, Op VerbsContext::* op) {
  if (context->abi_compat != reinterpret_cast<void*>(~0ull)) return nullptr;
  auto* v = reinterpret_cast<VerbsContext*>(reinterpret_cast<u8*>(context) - offsetof(VerbsContext, context));
  const u64 behind =
      sizeof(VerbsContext) - static_cast<u64>(reinterpret_cast<u8*>(&(v->*op)) - reinterpret_cast<u8*>(v));
  return v->sz < behind || v->*op == nullptr ? nullptr : v;
}

}  // namespace uccl::ibv

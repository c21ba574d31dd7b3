// The states of a reliable connected queue pair, and posting with ibv_wr_* or ibv_post_send.
#include "transport/verbs/queue_pair.h"

#include <sched.h>

#include <cerrno>
#include <chrono>
#include <stdexcept>

#include "transport/verbs/errors.h"

namespace uccl {
namespace {

constexpr u32 kFirstUdpPort = 0xc000;  // RoCE's range; the low 14 bits of the flow label choose within it
constexpr u8 kRnrTimer = 12;           // 0.64 ms: how long a peer without a posted receive asks us to wait
constexpr u8 kRnrRetriesForEver = 7;   // the engine's deadline judges a peer that never posts one
constexpr u32 kTrialEntries = 16;
constexpr u64 kSendOps = ibv::kExRdmaWrite | ibv::kExRdmaWriteWithImm | ibv::kExSendWithImm;

ibv::Qp* create_extended(const VerbsNic& nic, const ibv::QpInitAttr& a) {
  ibv::VerbsContext* v = ibv::extended(nic.context(), &ibv::VerbsContext::create_qp_ex);
  if (v == nullptr || nic.functions().qp_to_qp_ex == nullptr) return nullptr;
  ibv::QpInitAttrEx x{};
  x.send_cq = a.send_cq;
  x.recv_cq = a.recv_cq;
  x.srq = a.srq;
  x.cap = a.cap;
  x.qp_type = a.qp_type;
  x.pd = nic.pd();
  x.comp_mask = ibv::kQpInitPd | ibv::kQpInitSendOps;
  x.send_ops_flags = kSendOps;
  return v->create_qp_ex(nic.context(), &x);
}

}  // namespace

ibv::AhAttr address_handle(const VerbsNic& nic, const FabricSettings& fabric, const VerbsPath& path) {
  ibv::AhAttr a{};
  a.dlid = static_cast<u16>(path.lid);
  a.sl = static_cast<u8>(fabric.service_level);
  a.port_num = static_cast<u8>(nic.settings().port);
  if (path.gid == nullptr) return a;
  a.is_global = 1;
  a.grh.dgid = *path.gid;
  a.grh.sgid_index = static_cast<u8>(nic.settings().gid_index);
  a.grh.hop_limit = static_cast<u8>(fabric.hop_limit);
  a.grh.traffic_class = static_cast<u8>(fabric.traffic_class);
  a.grh.flow_label = path.udp_source_port == 0 ? 0 : path.udp_source_port & (kFirstUdpPort ^ 0xffff);
  return a;
}

VerbsPath path_to_itself(const VerbsNic& nic, u32 queue_pair) {
  VerbsPath path;
  path.gid = nic.uses_gid() ? &nic.gid() : nullptr;
  path.lid = nic.port().lid;
  path.queue_pair = queue_pair;
  path.mtu = mtu_of_bytes(nic.mtu());
  return path;
}

QueuePair::QueuePair(const VerbsNic& nic, const QueuePairShape& shape) : nic_(&nic) {
  ibv::QpInitAttr a{};
  a.send_cq = shape.send_cq;
  a.recv_cq = shape.receive_cq;
  a.srq = shape.srq;
  a.qp_type = ibv::kQptRc;
  const u32 receives = shape.srq == nullptr ? shape.receive_depth : 0;
  // Room for inline data makes every entry larger: without it, rather than not at all.
  for (const u32 inline_bytes : {shape.inline_bytes, 0u}) {
    a.cap = {shape.depth, receives, 1, shape.srq == nullptr ? 1u : 0u, inline_bytes};
    errno = 0;
    if (shape.try_extended) qp_ = create_extended(nic, a);
    if (qp_ != nullptr) extended_ = nic.functions().qp_to_qp_ex(qp_);
    if (qp_ == nullptr) qp_ = nic.functions().create_qp(nic.pd(), &a);
    inline_bytes_ = inline_bytes;
    if (qp_ != nullptr) break;
  }
  if (qp_ == nullptr) {
    throw std::runtime_error("verbs: " + nic.name() + ": a queue pair of " + std::to_string(shape.depth) +
                             " writes: " + verbs_errno(errno) + "; the device allows " +
                             std::to_string(nic.limits().max_qp) + " of " + std::to_string(nic.limits().max_qp_wr) +
                             " (fewer lanes or queue_pairs need fewer)");
  }
  if (shape.reads) access_ = ibv::kAccessLocalWrite | ibv::kAccessRemoteRead;
  try {
    to_init();
  } catch (...) {
    destroy();
    throw;
  }
}

QueuePair& QueuePair::operator=(QueuePair&& o) noexcept {
  std::swap(nic_, o.nic_);
  std::swap(qp_, o.qp_);
  std::swap(extended_, o.extended_);
  std::swap(inline_bytes_, o.inline_bytes_);
  std::swap(access_, o.access_);
  return *this;
}

void QueuePair::destroy() {
  if (qp_ != nullptr) nic_->functions().destroy_qp(qp_);
  qp_ = nullptr;
}

void QueuePair::modify(ibv::QpAttr& attr, u32 mask, const char* step) {
  const int e = nic_->functions().modify_qp(qp_, &attr, static_cast<int>(mask));
  if (e != 0) {
    throw std::runtime_error("verbs: " + nic_->name() + ": moving a queue pair to " + step + ": " + verbs_errno(e));
  }
}

void QueuePair::to_init() {
  ibv::QpAttr a{};
  a.qp_state = ibv::kQpsInit;
  a.port_num = static_cast<u8>(nic_->settings().port);
  a.qp_access_flags = access_;
  modify(a, ibv::kQpState | ibv::kQpPkeyIndex | ibv::kQpPort | ibv::kQpAccessFlags, "INIT");
}

void QueuePair::connect(const FabricSettings& fabric, const VerbsPath& path) {
  ibv::QpAttr a{};
  a.qp_state = ibv::kQpsRtr;
  a.ah_attr = address_handle(*nic_, fabric, path);
  a.path_mtu = path.mtu;
  a.dest_qp_num = path.queue_pair;
  a.rq_psn = path.receive_psn;
  a.max_dest_rd_atomic = 1;
  a.min_rnr_timer = kRnrTimer;
  modify(a,
         ibv::kQpState | ibv::kQpAv | ibv::kQpPathMtu | ibv::kQpDestQpn | ibv::kQpRqPsn | ibv::kQpMaxDestRdAtomic |
             ibv::kQpMinRnrTimer,
         "RTR (is the peer's address reachable from here?)");
  a = ibv::QpAttr{};
  a.qp_state = ibv::kQpsRts;
  a.timeout = static_cast<u8>(fabric.timeout);
  a.retry_cnt = static_cast<u8>(nic_->retries(fabric));
  a.rnr_retry = kRnrRetriesForEver;
  a.sq_psn = path.send_psn;
  a.max_rd_atomic = 1;
  modify(a, ibv::kQpState | ibv::kQpTimeout | ibv::kQpRetryCnt | ibv::kQpRnrRetry | ibv::kQpSqPsn | ibv::kQpMaxRdAtomic,
         "RTS");
}

void QueuePair::reset() {
  ibv::QpAttr a{};
  a.qp_state = ibv::kQpsReset;
  modify(a, ibv::kQpState, "RESET");
  to_init();
}

void QueuePair::to_error() {
  ibv::QpAttr a{};
  a.qp_state = ibv::kQpsErr;
  nic_->functions().modify_qp(qp_, &a, ibv::kQpState);
}

int QueuePair::send(ibv::SendWr* first, ibv::SendWr** bad) {
  return extended_ != nullptr ? send_extended(first, bad) : qp_->context->ops.post_send(qp_, first, bad);
}

int QueuePair::send_extended(ibv::SendWr* first, ibv::SendWr** bad) {
  ibv::QpEx* x = extended_;
  x->wr_start(x);
  for (const ibv::SendWr* w = first; w != nullptr; w = w->next) {
    x->wr_id = w->wr_id;
    x->wr_flags = w->send_flags;  // inline too: the setter says it, but soft-RoCE wants to read it here
    switch (w->opcode) {
      case ibv::kWrRdmaWriteWithImm: x->wr_rdma_write_imm(x, w->rdma.rkey, w->rdma.remote_addr, w->imm_data); break;
      case ibv::kWrRdmaWrite: x->wr_rdma_write(x, w->rdma.rkey, w->rdma.remote_addr); break;
      default: x->wr_send_imm(x, w->imm_data); break;
    }
    // A setter is called for zero bytes too: providers finish a request in it.
    if ((w->send_flags & ibv::kSendInline) != 0)
      x->wr_set_inline_data(x, reinterpret_cast<void*>(w->sg_list->addr), w->sg_list->length);
    else
      x->wr_set_sge(x, w->sg_list->lkey, w->sg_list->addr, w->sg_list->length);
  }
  const int error = x->wr_complete(x);  // all or none
  if (error != 0) *bad = first;
  return error;
}

int QueuePair::post_receives(ibv::RecvWr* first, ibv::RecvWr** bad) {
  return qp_->context->ops.post_recv(qp_, first, bad);
}

bool can_be_reset(const VerbsNic& nic, const FabricSettings& fabric, u64 limit_ns) {
  if (nic.surely_resets()) return true;
  using Clock = std::chrono::steady_clock;
  CompletionQueue completions(nic, kTrialEntries, false);
  QueuePairShape shape;
  shape.send_cq = shape.receive_cq = completions.get();
  shape.depth = shape.receive_depth = kTrialEntries;
  shape.try_extended = false;
  QueuePair pair(nic, shape);
  ibv::Sge dummy = nic.dummy();
  ibv::RecvWr receive{0, nullptr, &dummy, 1}, *bad = nullptr;
  Completion flushed;
  pair.connect(fabric, path_to_itself(nic, pair.number()));
  if (pair.post_receives(&receive, &bad) != 0) return true;
  pair.to_error();
  for (const auto deadline = Clock::now() + std::chrono::nanoseconds(limit_ns); completions.poll({&flushed, 1}) == 0;) {
    if (Clock::now() > deadline) return true;
    sched_yield();
  }
  pair.reset();
  return pair.post_receives(&receive, &bad) == 0 && completions.poll({&flushed, 1}) == 0;
}

}  // namespace uccl

// The fake fabric's data path as C functions: posting with chains and with ibv_wr_*, both ways to poll, receives.
#include <cerrno>

#include "proxy/transport/verbs/fake_verbs.h"

namespace fake {
namespace {

Fabric& f() { return Fabric::the(); }
Cq* of(ibv::Cq* cq) { return static_cast<Cq*>(reinterpret_cast<ibv::CqEx*>(cq)); }
Qp* of_ex(ibv::QpEx* qp) { return static_cast<Qp*>(qp); }

int post_send(ibv::Qp* base, ibv::SendWr* first, ibv::SendWr** bad) {
  Qp& qp = *fake::of(base);
  std::lock_guard lock(f().mutex);
  ++f().doorbells_;
  for (ibv::SendWr* w = first; w != nullptr; w = w->next) {
    if (qp.base.state < ibv::kQpsRts || qp.queue.size() >= qp.depth) {
      *bad = w;
      return qp.base.state < ibv::kQpsRts ? EINVAL : ENOMEM;
    }
    Wr wr{};
    wr.wr_id = w->wr_id;
    wr.opcode = w->opcode;
    wr.flags = w->send_flags;
    wr.imm = w->imm_data;
    wr.remote = w->rdma.remote_addr;
    wr.rkey = w->rdma.rkey;
    wr.dest_qpn = qp.dest_qpn;
    if (w->num_sge != 0) {
      wr.local = w->sg_list->addr;
      wr.bytes = w->sg_list->length;
      wr.lkey = w->sg_list->lkey;
    }
    f().post(qp, std::move(wr));
  }
  return 0;
}

int post_srq_recv(ibv::Srq* base, ibv::RecvWr* first, ibv::RecvWr** bad) {
  std::lock_guard lock(f().mutex);
  Srq& srq = *static_cast<Srq*>(base);
  for (ibv::RecvWr* w = first; w != nullptr; w = w->next) {
    if (srq.posted == srq.capacity) {
      *bad = w;
      return ENOMEM;
    }
    srq.posted += f().is_receive(*w);
  }
  return 0;
}

int post_recv(ibv::Qp* base, ibv::RecvWr* first, ibv::RecvWr**) {
  std::lock_guard lock(f().mutex);
  for (ibv::RecvWr* w = first; w != nullptr; w = w->next) fake::of(base)->posted_receives += f().is_receive(*w);
  return 0;
}

int poll_cq(ibv::Cq* base, int most, ibv::Wc* out) {
  std::lock_guard lock(f().mutex);
  Cq& cq = *of(base);
  if (f().polls_nothing(cq)) return 0;
  int n = 0;
  for (; n < most && !cq.entries.empty(); ++n) {
    out[n] = cq.entries.front();
    if (f().options.old_intel && out[n].opcode == ibv::kWcRecvRdmaWithImm) out[n].opcode = ibv::kWcRecv;
    cq.entries.pop_front();
  }
  return n;
}

int next_locked(Cq& cq) {
  if (cq.entries.empty()) return ENOENT;
  cq.current = cq.entries.front();
  cq.entries.pop_front();
  cq.status = cq.current.status;
  cq.wr_id = cq.current.wr_id;
  return 0;
}
int start_poll(ibv::CqEx* cq, ibv::PollCqAttr*) {
  std::lock_guard lock(f().mutex);
  f().deadlocks_ += static_cast<Cq*>(cq)->sessions != 0;
  if (f().polls_nothing(*static_cast<Cq*>(cq))) return ENOENT;
  return next_locked(*static_cast<Cq*>(cq));
}
int next_poll(ibv::CqEx* cq) {
  std::lock_guard lock(f().mutex);
  return next_locked(*static_cast<Cq*>(cq));
}
void end_poll(ibv::CqEx*) {}
const ibv::Wc& current(ibv::CqEx* cq) { return static_cast<Cq*>(cq)->current; }

Wr& building(ibv::QpEx* qp) { return of_ex(qp)->building.back(); }
void begin_wr(ibv::QpEx* qp, u32 opcode, u32 rkey, u64 remote, u32 imm) {
  Wr wr{};
  wr.wr_id = qp->wr_id;
  wr.flags = qp->wr_flags;
  wr.opcode = opcode;
  wr.rkey = rkey;
  wr.remote = remote;
  wr.imm = imm;
  wr.dest_qpn = of_ex(qp)->dest_qpn;
  of_ex(qp)->building.push_back(std::move(wr));
}
void wr_start(ibv::QpEx* base) {
  std::lock_guard lock(f().mutex);
  of_ex(base)->building.clear();
  ++of(base->base.send_cq)->sessions;
}
int wr_complete(ibv::QpEx* base) {
  Qp& qp = *of_ex(base);
  std::lock_guard lock(f().mutex);
  --of(qp.base.send_cq)->sessions;
  ++f().doorbells_;
  if (qp.base.state < ibv::kQpsRts) return EINVAL;
  if (qp.queue.size() + qp.building.size() > qp.depth) return ENOMEM;
  if (f().options.vendor == kBroadcom && qp.building.size() > 1) qp.building[0].broken = true;
  for (Wr& wr : qp.building) f().post(qp, std::move(wr));
  qp.building.clear();
  return 0;
}

}  // namespace

void install_polling(Cq& made) {
  Cq* cq = &made;
  cq->start_poll = start_poll;
  cq->next_poll = next_poll;
  cq->end_poll = end_poll;
  cq->read_opcode = [](ibv::CqEx* c) {
    const u32 opcode = current(c).opcode;
    const bool arrived = opcode == ibv::kWcRecv || opcode == ibv::kWcRecvRdmaWithImm;
    return arrived && f().options.vendor == kIntel ? u32{ibv::kWcSend} : opcode;
  };
  cq->read_vendor_err = [](ibv::CqEx* c) { return current(c).vendor_err; };
  cq->read_byte_len = [](ibv::CqEx* c) { return current(c).byte_len; };
  cq->read_imm_data = [](ibv::CqEx* c) { return current(c).imm_data; };
  cq->read_qp_num = [](ibv::CqEx* c) { return current(c).qp_num; };
  cq->read_src_qp = [](ibv::CqEx* c) { return current(c).src_qp; };
  cq->read_slid = [](ibv::CqEx* c) { return u32{current(c).slid}; };
  cq->read_wc_flags = [](ibv::CqEx* c) { return current(c).wc_flags; };
}

void install_posting(Qp& made) {
  Qp* qp = &made;
  qp->wr_start = wr_start;
  qp->wr_complete = wr_complete;
  qp->wr_rdma_write = [](ibv::QpEx* q, u32 rkey, u64 at) { begin_wr(q, ibv::kWrRdmaWrite, rkey, at, 0); };
  qp->wr_rdma_write_imm = [](ibv::QpEx* q, u32 rkey, u64 at, u32 imm) {
    begin_wr(q, ibv::kWrRdmaWriteWithImm, rkey, at, imm);
  };
  qp->wr_send_imm = [](ibv::QpEx* q, u32 imm) { begin_wr(q, ibv::kWrSendWithImm, 0, 0, imm); };
  qp->wr_set_sge = [](ibv::QpEx* q, u32 lkey, u64 at, u32 bytes) {
    building(q).lkey = lkey;
    building(q).local = at;
    building(q).bytes = bytes;
  };
  qp->wr_set_inline_data = [](ibv::QpEx* q, void* at, std::size_t bytes) {
    building(q).local = reinterpret_cast<u64>(at);
    building(q).bytes = bytes;
    building(q).flags |= ibv::kSendInline;
  };
  qp->wr_set_ud_addr = [](ibv::QpEx* q, ibv::Ah*, u32 number, u32 qkey) {
    building(q).dest_qpn = number;
    building(q).qkey = qkey;
  };
}

void install_posting(ibv::ContextOps& ops) {
  ops.poll_cq = poll_cq;
  ops.post_send = post_send;
  ops.post_recv = post_recv;
  ops.post_srq_recv = post_srq_recv;
}

}  // namespace fake

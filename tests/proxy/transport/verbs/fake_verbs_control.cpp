// The fake fabric's C functions: objects made and destroyed, states, registrations, what a device says of itself.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "proxy/transport/verbs/fake_verbs.h"

namespace fake {
namespace {

struct Device {
  std::string name;
};
Device g_devices[8] = {{"fake0"}, {"fake1"}, {"fake2"}, {"fake3"}, {"fake4"}, {"fake5"}, {"fake6"}, {"fake7"}};

Fabric& f() { return Fabric::the(); }
Context* of(ibv::Context* c) {
  return reinterpret_cast<Context*>(reinterpret_cast<u8*>(c) - offsetof(ibv::VerbsContext, context));
}
Cq* of(ibv::Cq* cq) { return static_cast<Cq*>(reinterpret_cast<ibv::CqEx*>(cq)); }

ibv::Device** get_device_list(int* count) {
  *count = static_cast<int>(f().options.num_devices);
  auto** list = new ibv::Device*[f().options.num_devices + 1]();
  for (u32 i = 0; i < f().options.num_devices; ++i) list[i] = reinterpret_cast<ibv::Device*>(&g_devices[i]);
  return list;
}
void free_device_list(ibv::Device** list) { delete[] list; }
const char* get_device_name(ibv::Device* d) { return reinterpret_cast<Device*>(d)->name.c_str(); }

ibv::Qp* create_qp(ibv::Pd* pd, ibv::QpInitAttr* attr) { return make_queue_pair(pd->context, pd, *attr); }
ibv::Qp* create_qp_ex(ibv::Context* context, ibv::QpInitAttrEx* x) {
  ibv::QpInitAttr a{nullptr, x->send_cq, x->recv_cq, x->srq, x->cap, x->qp_type, x->sq_sig_all};
  return make_queue_pair(context, x->pd, a);
}
ibv::CqEx* create_cq_ex(ibv::Context* context, ibv::CqInitAttrEx* attr) {
  return make_completion_queue(context, attr->cqe);
}
ibv::Cq* create_cq(ibv::Context* context, int entries, void*, void*, int) {
  ibv::CqEx* cq = make_completion_queue(context, static_cast<u32>(entries));
  return cq == nullptr ? nullptr : &cq->base;
}
int destroy_cq(ibv::Cq* cq) {
  std::lock_guard lock(f().mutex);
  delete of(cq);
  return 0;
}

int modify_qp(ibv::Qp* base, ibv::QpAttr* a, int mask) {
  std::lock_guard lock(f().mutex);
  Qp& qp = *fake::of(base);
  auto has = [mask](u32 bits) { return (static_cast<u32>(mask) & bits) == bits; };
  if (!has(ibv::kQpState)) return EINVAL;
  const u32 from = qp.base.state, to = a->qp_state;
  const bool srd = qp.base.qp_type == ibv::kQptDriver;
  const bool legal = to == ibv::kQpsErr || to == ibv::kQpsReset || (from == ibv::kQpsReset && to == ibv::kQpsInit) ||
                     (from == ibv::kQpsInit && to == ibv::kQpsRtr) || (from == ibv::kQpsRtr && to == ibv::kQpsRts);
  if (!legal) return EINVAL;
  if (to == ibv::kQpsRtr && !srd) {
    if (!has(ibv::kQpAv | ibv::kQpDestQpn | ibv::kQpRqPsn | ibv::kQpPathMtu | ibv::kQpMinRnrTimer)) return EINVAL;
    qp.dest_qpn = a->dest_qp_num;
    qp.expected_psn = a->rq_psn;
    qp.flow_label = a->ah_attr.grh.flow_label;
  }
  if (to == ibv::kQpsInit && srd) qp.qkey = a->qkey;
  if (to == ibv::kQpsInit) qp.access = a->qp_access_flags;
  if (to == ibv::kQpsRts) qp.next_psn = a->sq_psn;
  // A device of EFA's that has no such setting waits.
  if (to == ibv::kQpsRts) qp.rnr_retries = has(ibv::kQpRnrRetry) ? a->rnr_retry : srd ? 7 : 0;
  if (to == ibv::kQpsRts && has(ibv::kQpTimeout | ibv::kQpRetryCnt)) {
    qp.timeout = a->timeout;
    qp.retries = a->retry_cnt;
  }
  f().moved_to_error_ += to == ibv::kQpsErr;
  if (to == ibv::kQpsErr) f().flush(qp);
  if (to == ibv::kQpsReset) {
    qp.queue.clear();
    for (ibv::Cq* cq : {qp.base.send_cq, qp.base.recv_cq}) {  // as mlx5 does
      std::erase_if(of(cq)->entries, [&](const ibv::Wc& wc) { return wc.qp_num == qp.base.qp_num; });
    }
  }
  qp.base.state = to;
  return 0;
}
int destroy_qp(ibv::Qp* base) {
  std::lock_guard lock(f().mutex);
  f().qps_.erase(base->qp_num);
  delete fake::of(base);
  return 0;
}

ibv::Mr* register_memory(ibv::Pd* pd, void* address, std::size_t bytes, int error, u64 access, bool device = false) {
  std::lock_guard lock(f().mutex);
  errno = error != 0 ? error : bytes > f().options.largest_registration ? ENOMEM : 0;
  if (errno != 0) return nullptr;
  const u32 key = f().next_key_++;
  auto* mr = new ibv::Mr{pd->context, pd, address, bytes, 0, key, key};
  f().regions_[key] = {mr, access, device};
  f().last_access_ = access;
  return mr;
}
ibv::Mr* reg_mr(ibv::Pd* pd, void* address, std::size_t bytes, int access) {
  return register_memory(pd, address, bytes, bytes > 4096 ? f().options.plain_errno : 0, static_cast<u64>(access));
}
ibv::Mr* reg_mr_iova2(ibv::Pd* pd, void* address, std::size_t bytes, u64 iova, unsigned access) {
  f().last_address_ = address;
  return register_memory(pd, reinterpret_cast<void*>(iova), bytes, f().options.address_errno, access);
}
ibv::Mr* reg_dmabuf_mr(ibv::Pd* pd, u64 offset, std::size_t bytes, u64 iova, int fd, int access) {
  f().dmabufs_.push_back({fd, offset});
  return register_memory(pd, reinterpret_cast<void*>(iova), bytes, f().options.dmabuf_errno, static_cast<u64>(access),
                         true);
}
int dereg_mr(ibv::Mr* mr) {
  std::lock_guard lock(f().mutex);
  f().regions_.erase(mr->rkey);
  delete mr;
  return 0;
}

int query_device(ibv::Context*, ibv::DeviceAttr* a) {
  const Options& o = f().options;
  *a = {};
  std::strcpy(a->fw_ver, "1.0");
  a->vendor_id = o.vendor;
  a->max_qp = o.max_qp;
  a->max_qp_wr = o.max_qp_wr;
  a->max_cqe = o.max_cqe;
  a->max_srq = o.max_srq;
  a->max_srq_wr = o.max_srq_wr;
  a->phys_port_cnt = 1;
  return 0;
}
int query_port(ibv::Context* c, u8, ibv::PortAttr* a) {
  const Options& o = f().options;
  const u32 d = of(c)->device;
  *a = {};
  a->state = ibv::kPortActive;
  a->active_mtu = a->max_mtu = d < o.mtus.size() ? o.mtus[d] : u32{ibv::kMtu4096};
  a->gid_tbl_len = 3;
  a->max_msg_sz = o.max_message;
  a->lid = static_cast<u16>(d + 1);
  a->link_layer = static_cast<u8>(d < o.link_layers.size() ? o.link_layers[d] : u32{ibv::kLinkEthernet});
  return 0;
}
// A table as RoCE has it: link-local version 1 and 2, then IPv4 version 2.
int query_gid(ibv::Context* c, u8, int index, ibv::Gid* gid) {
  *gid = {};
  if (index > 2) return EINVAL;
  if (index < 2) gid->raw[0] = 0xfe;
  if (index == 2) gid->raw[10] = gid->raw[11] = 0xff;
  gid->raw[15] = static_cast<u8>(of(c)->device + 1);
  return 0;
}
int query_gid_ex(ibv::Context* c, u32, u32 index, ibv::GidEntry* e, u32, std::size_t) {
  e->gid_type = index == 0 ? u32{ibv::kGidRoceV1} : u32{ibv::kGidRoceV2};
  return query_gid(c, 1, static_cast<int>(index), &e->gid);
}

ibv::Context* open_device(ibv::Device* device) {
  auto* c = new Context{};
  c->device = static_cast<u32>(reinterpret_cast<Device*>(device) - g_devices);
  if (pipe(c->events) != 0) return nullptr;
  ibv::Context& v = c->verbs.context;
  v.device = device;
  v.async_fd = c->events[0];
  install_posting(v.ops);
  if (f().options.extended) install_extended(*c);
  std::lock_guard lock(f().mutex);
  f().contexts_.push_back(c);
  return &v;
}
int close_device(ibv::Context* context) {
  std::lock_guard lock(f().mutex);
  Context* c = of(context);
  std::erase(f().contexts_, c);
  close(c->events[0]);
  close(c->events[1]);
  delete c;
  return 0;
}
int get_async_event(ibv::Context* context, ibv::AsyncEvent* event) {
  std::lock_guard lock(f().mutex);
  Context* c = of(context);
  if (c->waiting.empty()) return -1;
  *event = c->waiting.front();
  c->waiting.pop_front();
  return 0;
}

}  // namespace

ibv::CqEx* make_completion_queue(ibv::Context* context, u32 entries) {
  if (entries == 0 || entries > static_cast<u32>(f().options.max_cqe)) {
    errno = EINVAL;
    return nullptr;
  }
  auto* cq = new Cq{};
  cq->base.context = context;
  cq->capacity = entries;
  install_polling(*cq);
  return cq;
}

ibv::Qp* make_queue_pair(ibv::Context* context, ibv::Pd* pd, const ibv::QpInitAttr& a) {
  std::lock_guard lock(f().mutex);
  const Options& o = f().options;
  if (a.cap.max_send_wr > static_cast<u32>(o.max_qp_wr) || a.cap.max_inline_data > o.max_inline ||
      f().qps_.size() >= static_cast<std::size_t>(o.max_qp)) {
    errno = EINVAL;
    return nullptr;
  }
  auto* qp = new Qp{};
  qp->base.context = context;
  qp->base.pd = pd;
  qp->base.send_cq = a.send_cq;
  qp->base.recv_cq = a.recv_cq;
  qp->base.srq = a.srq;
  qp->base.qp_type = a.qp_type;
  qp->base.qp_num = f().next_number_;
  qp->depth = a.cap.max_send_wr;
  qp->max_inline = a.cap.max_inline_data;
  f().next_number_ += 7;
  f().qps_[qp->base.qp_num] = qp;
  install_posting(*qp);
  return &qp->base;
}

void install_extended(Context& c) {
  c.verbs.context.abi_compat = reinterpret_cast<void*>(~0ull);
  c.verbs.sz = sizeof(ibv::VerbsContext);
  c.verbs.create_cq_ex = create_cq_ex;
  c.verbs.create_qp_ex = create_qp_ex;
  c.verbs.query_port = [](ibv::Context* context, u8 port, ibv::PortAttr* a, std::size_t) {
    return query_port(context, port, a);
  };
  c.verbs.query_device_ex = [](ibv::Context* context, const void*, ibv::DeviceAttrEx* a, std::size_t) {
    *a = {};
    a->odp_caps.rc_odp_caps = ibv::kOdpSupportWrite;
    return query_device(context, &a->orig_attr);
  };
}

ibv::Functions control_functions() {
  ibv::Functions t;
  t.get_device_list = get_device_list;
  t.free_device_list = free_device_list;
  t.get_device_name = get_device_name;
  t.open_device = open_device;
  t.close_device = close_device;
  t.query_device = query_device;
  t.query_port = query_port;
  t.query_gid = query_gid;
  t.query_gid_ex = query_gid_ex;
  t.alloc_pd = [](ibv::Context* c) { return new ibv::Pd{c, 0}; };
  t.dealloc_pd = [](ibv::Pd* pd) {
    delete pd;
    return 0;
  };
  t.reg_mr = reg_mr;
  t.reg_mr_iova2 = reg_mr_iova2;
  t.reg_dmabuf_mr = reg_dmabuf_mr;
  t.dereg_mr = dereg_mr;
  t.create_cq = create_cq;
  t.destroy_cq = destroy_cq;
  t.create_srq = [](ibv::Pd* pd, ibv::SrqInitAttr* a) -> ibv::Srq* {
    auto* srq = new Srq{};
    srq->context = pd->context;
    srq->pd = pd;
    srq->capacity = a->max_wr;
    return srq;
  };
  t.destroy_srq = [](ibv::Srq* srq) {
    std::lock_guard lock(f().mutex);
    delete static_cast<Srq*>(srq);
    return 0;
  };
  t.create_qp = create_qp;
  t.qp_to_qp_ex = [](ibv::Qp* qp) -> ibv::QpEx* { return fake::of(qp); };
  t.modify_qp = modify_qp;
  t.destroy_qp = destroy_qp;
  t.create_ah = [](ibv::Pd* pd, ibv::AhAttr* a) {
    std::lock_guard lock(f().mutex);
    f().handles_.insert({pd, a->grh.dgid.raw[15]});
    return new ibv::Ah{pd->context, pd, a->grh.dgid.raw[15]};
  };
  t.destroy_ah = [](ibv::Ah* ah) {
    std::lock_guard lock(f().mutex);
    const auto found = f().handles_.find({ah->pd, ah->handle});
    if (found != f().handles_.end()) f().handles_.erase(found);
    delete ah;
    return 0;
  };
  t.get_async_event = get_async_event;
  t.ack_async_event = [](ibv::AsyncEvent*) {};
  return t;
}

}  // namespace fake

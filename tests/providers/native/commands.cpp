// Methods of the ioctl interface that the box has itself are few: libibverbs falls back to the older commands where one is
// missing, and sends them through "invoke write", so that a table of those serves every release of it.
#include "providers/native/commands.h"

#include <fcntl.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "providers/native/doorbell.h"
#include "providers/native/objects.h"

namespace box {
namespace {

constexpr u32 kExtended = IB_USER_VERBS_CMD_FLAG_EXTENDED;

struct Attributes {
  std::span<ib_uverbs_attr> all;
  ib_uverbs_attr* find(u32 id) const {
    for (ib_uverbs_attr& a : all)
      if (a.attr_id == id) return &a;
    return nullptr;
  }
  // Up to 8 bytes lie in the attribute itself.
  std::span<const u8> in(u32 id) const {
    ib_uverbs_attr* a = find(id);
    if (a == nullptr) return {};
    return {a->len <= 8 ? reinterpret_cast<const u8*>(&a->data) : reinterpret_cast<const u8*>(a->data), a->len};
  }
  std::span<u8> out(u32 id) const {
    ib_uverbs_attr* a = find(id);
    if (a == nullptr) return {};
    a->flags |= UVERBS_ATTR_F_VALID_OUTPUT;
    return {reinterpret_cast<u8*>(a->data), a->len};
  }
};

template <class T>
T read(std::span<const u8> from) {
  return Extra{from, {}}.read<T>();
}

struct Command {
  Context& context;
  Device& device;
  u32 number;
  Extra core, extra;
};

int get_context(Command& c) {
  if (c.context.events[0] >= 0) return EINVAL;
  if (const int error = c.device.provider().open(c.device, c.extra); error != 0) return error;
  if (pipe2(c.context.events.data(), O_CLOEXEC) != 0) return errno;
  ib_uverbs_get_context_resp r{};
  r.async_fd = static_cast<u32>(c.context.events[0]);
  r.num_comp_vectors = 1;
  c.core.write(r);
  return 0;
}

ib_uverbs_query_device_resp limits_of(Device& d) {
  ibv::DeviceAttr a{};
  a.max_mr_size = 1ull << 40;
  a.page_size_cap = 0xfffff000;
  a.max_qp = 4096;
  a.max_qp_wr = 16384;
  a.max_sge = 16;
  a.max_sge_rd = 16;
  a.max_cq = 4096;
  a.max_cqe = 32768;
  a.max_mr = 65536;
  a.max_pd = 1024;
  a.max_qp_rd_atom = a.max_qp_init_rd_atom = 16;
  a.max_ah = 1024;
  d.provider().limits(a);
  ib_uverbs_query_device_resp r{};
  r.node_guid = r.sys_image_guid = 0x0100 + d.index();
  r.vendor_id = d.identity().vendor;
  r.vendor_part_id = d.identity().part;
  r.max_mr_size = a.max_mr_size;
  r.page_size_cap = a.page_size_cap;
  r.max_qp = static_cast<u32>(a.max_qp);
  r.max_qp_wr = static_cast<u32>(a.max_qp_wr);
  r.max_sge = static_cast<u32>(a.max_sge);
  r.max_sge_rd = static_cast<u32>(a.max_sge_rd);
  r.max_cq = static_cast<u32>(a.max_cq);
  r.max_cqe = static_cast<u32>(a.max_cqe);
  r.max_mr = static_cast<u32>(a.max_mr);
  r.max_pd = static_cast<u32>(a.max_pd);
  r.max_qp_rd_atom = r.max_qp_init_rd_atom = static_cast<u32>(a.max_qp_rd_atom);
  r.max_ah = static_cast<u32>(a.max_ah);
  r.max_srq = static_cast<u32>(a.max_srq);
  r.max_srq_wr = static_cast<u32>(a.max_srq_wr);
  r.max_srq_sge = static_cast<u32>(a.max_srq_sge);
  r.max_pkeys = 1;
  r.phys_port_cnt = 1;
  return r;
}

int query_device(Command& c) {
  c.core.write(limits_of(c.device));
  return 0;
}

int query_device_ex(Command& c) {
  ib_uverbs_ex_query_device_resp r{};
  r.base = limits_of(c.device);
  r.response_length = static_cast<u32>(std::min(sizeof(r), c.core.out.size()));
  c.core.write(r);
  c.device.provider().query(c.device, c.extra);
  return 0;
}

int query_port(Command& c) {
  ib_uverbs_query_port_resp r{};
  r.max_msg_sz = 1u << 30;
  r.gid_tbl_len = 1;
  r.pkey_tbl_len = 1;
  r.state = ibv::kPortActive;
  r.max_mtu = r.active_mtu = ibv::kMtu4096;
  r.active_width = 2;
  r.active_speed = 32;
  r.phys_state = 5;
  r.lid = c.device.identity().link_layer == ibv::kLinkInfiniband ? static_cast<u16>(c.device.index() + 1) : u16{0};
  r.link_layer = c.device.identity().link_layer;
  c.core.write(r);
  return 0;
}

int alloc_pd(Command& c) {
  const u32 handle = c.device.next_handle++;
  c.device.domains[handle] = 0;
  c.core.write(handle);  // all that the answer holds, here and where objects are made below
  c.device.provider().make_domain(c.device, handle, c.extra);
  return 0;
}

int reg_mr(Command& c) {
  const auto q = read<ib_uverbs_reg_mr>(c.core.in);
  if (!c.device.domains.contains(q.pd_handle)) return EINVAL;
  const Memory m{q.hca_va, q.length, reinterpret_cast<u8*>(q.start), q.pd_handle, q.access_flags};
  const u32 key = add_registration(c.device, m);
  c.device.provider().registered(m, c.extra);
  c.core.write(std::array{key, key, key});  // handle, local key, remote key
  return 0;
}

int create_ah(Command& c) {
  const auto q = read<ib_uverbs_create_ah>(c.core.in);
  Handle h;
  h.pd = q.pd_handle;
  std::copy(std::begin(q.attr.grh.dgid), std::end(q.attr.grh.dgid), h.gid.begin());
  auto& all = c.device.handles;
  const auto known =
      std::find_if(all.begin(), all.end(), [&](const auto& o) { return o.second.pd == h.pd && o.second.gid == h.gid; });
  h.number = known != all.end() ? known->first : c.device.next_handle++ & 0x7fff;
  c.core.write(h.number);
  c.device.provider().made_handle(c.device, h, c.extra);
  ++all.try_emplace(h.number, h).first->second.users;
  return 0;
}

int create_cq(Command& c) {
  const auto q = read<ib_uverbs_create_cq>(c.core.in);
  ib_uverbs_create_cq_resp r{};
  const int error = make_queue(c.context, {q.cqe, q.user_handle}, c.extra, r.cq_handle, r.cqe);
  c.core.write(r);
  return error;
}

int create_cq_ex(Command& c) {
  const auto q = read<ib_uverbs_ex_create_cq>(c.core.in);
  ib_uverbs_ex_create_cq_resp r{};
  const int error = make_queue(c.context, {q.cqe, q.user_handle}, c.extra, r.base.cq_handle, r.base.cqe);
  r.response_length = sizeof(r);
  c.core.write(r);
  return error;
}

template <class Q, class R>
int create_qp(Command& c, const Q& q, R& r) {
  WantedPair w{q.pd_handle,
               q.send_cq_handle,
               q.recv_cq_handle,
               q.is_srq != 0,
               q.srq_handle,
               q.user_handle,
               q.qp_type,
               q.sq_sig_all != 0,
               {q.max_send_wr, q.max_recv_wr, q.max_send_sge, q.max_recv_sge, q.max_inline_data}};
  const int error = make_pair(c.context, w, c.extra);
  r.qp_handle = r.qpn = w.number;
  r.max_send_wr = w.cap.max_send_wr;
  r.max_recv_wr = w.cap.max_recv_wr;
  r.max_send_sge = w.cap.max_send_sge;
  r.max_recv_sge = w.cap.max_recv_sge;
  r.max_inline_data = w.cap.max_inline_data;
  return error;
}

int create_qp_plain(Command& c) {
  ib_uverbs_create_qp_resp r{};
  const int error = create_qp(c, read<ib_uverbs_create_qp>(c.core.in), r);
  c.core.write(r);
  return error;
}

int create_qp_ex(Command& c) {
  ib_uverbs_ex_create_qp_resp r{};
  const int error = create_qp(c, read<ib_uverbs_ex_create_qp>(c.core.in), r.base);
  r.response_length = sizeof(r);
  c.core.write(r);
  return error;
}

int modify_qp(Command& c) {
  const auto q = read<ib_uverbs_modify_qp>(c.core.in);
  const auto found = c.device.pairs.find(q.qp_handle);
  if (found == c.device.pairs.end()) return EINVAL;
  Pair& p = *found->second;
  if (q.attr_mask & ibv::kQpAv) std::copy(std::begin(q.dest.dgid), std::end(q.dest.dgid), p.peer.begin());
  if (q.attr_mask & ibv::kQpDestQpn) p.peer_number = q.dest_qp_num;
  if (q.attr_mask & ibv::kQpRqPsn) p.expected_number = q.rq_psn;
  if (q.attr_mask & ibv::kQpSqPsn) p.next_number = q.sq_psn;
  if (q.attr_mask & ibv::kQpQkey) p.qkey = q.qkey;
  if (q.attr_mask & ibv::kQpAccessFlags) p.access = q.qp_access_flags;
  if (q.attr_mask & ibv::kQpTimeout) p.timeout = q.timeout;
  if (q.attr_mask & ibv::kQpRetryCnt) p.retries = q.retry_cnt;
  if (q.attr_mask & ibv::kQpRnrRetry) p.rnr_retries = q.rnr_retry;
  if ((q.attr_mask & ibv::kQpState) == 0) return 0;
  p.state = q.qp_state;
  if (p.state == ibv::kQpsReset) {
    p.ended = false;
    flush_pair(c.device, p);
    c.device.provider().reset(c.device, p);
  }
  return 0;
}

int modify_qp_ex(Command& c) {
  c.core.write(ib_uverbs_ex_modify_qp_resp{0, sizeof(ib_uverbs_ex_modify_qp_resp)});
  return modify_qp(c);
}

int create_srq(Command& c) {
  const auto q = read<ib_uverbs_create_srq>(c.core.in);
  ib_uverbs_create_srq_resp r{};
  r.max_wr = q.max_wr;
  r.max_sge = q.max_sge;
  const int error = make_shared(c.context, {q.pd_handle, r.max_wr, r.max_sge}, c.extra, r.srq_handle);
  r.srqn = r.srq_handle;
  c.core.write(r);
  return error;
}

int create_xsrq(Command& c) {
  const auto q = read<ib_uverbs_create_xsrq>(c.core.in);
  ib_uverbs_create_srq_resp r{};
  r.max_wr = q.max_wr;
  r.max_sge = q.max_sge;
  const int error = make_shared(c.context, {q.pd_handle, r.max_wr, r.max_sge}, c.extra, r.srq_handle);
  r.srqn = r.srq_handle;
  c.core.write(r);
  return error;
}

int destroy_qp(Command& c) {
  u32 events = 0;
  const int error = remove_pair(c.device, read<ib_uverbs_destroy_qp>(c.core.in).qp_handle, events);
  c.core.write(ib_uverbs_destroy_qp_resp{events});
  return error;
}

int destroy_cq(Command& c) {
  u32 events = 0;
  const int error = remove_queue(c.device, read<ib_uverbs_destroy_cq>(c.core.in).cq_handle, events);
  c.core.write(ib_uverbs_destroy_cq_resp{0, events});
  return error;
}

int destroy_srq(Command& c) {
  c.core.write(ib_uverbs_destroy_srq_resp{0});
  return remove_shared(c.device, read<ib_uverbs_destroy_srq>(c.core.in).srq_handle);
}

int dealloc_pd(Command& c) { return remove_domain(c.device, read<ib_uverbs_dealloc_pd>(c.core.in).pd_handle); }
int dereg_mr(Command& c) { return remove_registration(c.device, read<ib_uverbs_dereg_mr>(c.core.in).mr_handle); }
int destroy_ah(Command& c) {
  const auto found = c.device.handles.find(read<ib_uverbs_destroy_ah>(c.core.in).ah_handle);
  if (found == c.device.handles.end()) return EINVAL;
  if (--found->second.users == 0) c.device.handles.erase(found);
  return 0;
}

constexpr struct {
  u32 number;
  int (*answer)(Command&);
} kCommands[] = {
    {IB_USER_VERBS_CMD_GET_CONTEXT, get_context},
    {IB_USER_VERBS_CMD_QUERY_DEVICE, query_device},
    {IB_USER_VERBS_EX_CMD_QUERY_DEVICE | kExtended, query_device_ex},
    {IB_USER_VERBS_CMD_QUERY_PORT, query_port},
    {IB_USER_VERBS_CMD_ALLOC_PD, alloc_pd},
    {IB_USER_VERBS_CMD_DEALLOC_PD, dealloc_pd},
    {IB_USER_VERBS_CMD_REG_MR, reg_mr},
    {IB_USER_VERBS_CMD_DEREG_MR, dereg_mr},
    {IB_USER_VERBS_CMD_CREATE_AH, create_ah},
    {IB_USER_VERBS_CMD_DESTROY_AH, destroy_ah},
    {IB_USER_VERBS_CMD_CREATE_CQ, create_cq},
    {IB_USER_VERBS_EX_CMD_CREATE_CQ | kExtended, create_cq_ex},
    {IB_USER_VERBS_CMD_DESTROY_CQ, destroy_cq},
    {IB_USER_VERBS_CMD_CREATE_QP, create_qp_plain},
    {IB_USER_VERBS_EX_CMD_CREATE_QP | kExtended, create_qp_ex},
    {IB_USER_VERBS_CMD_MODIFY_QP, modify_qp},
    {IB_USER_VERBS_EX_CMD_MODIFY_QP | kExtended, modify_qp_ex},
    {IB_USER_VERBS_CMD_DESTROY_QP, destroy_qp},
    {IB_USER_VERBS_CMD_CREATE_SRQ, create_srq},
    {IB_USER_VERBS_CMD_CREATE_XSRQ, create_xsrq},
    {IB_USER_VERBS_CMD_DESTROY_SRQ, destroy_srq},
};

int invoke_write(Context& context, const Attributes& attributes) {
  const auto number = read<u64>(attributes.in(UVERBS_ATTR_WRITE_CMD));
  // libibverbs asks with too little whether this way is open.
  if (attributes.all.size() == 1) return ENOSPC;
  Command c{context,
            *context.device,
            static_cast<u32>(number),
            {attributes.in(UVERBS_ATTR_CORE_IN), attributes.out(UVERBS_ATTR_CORE_OUT)},
            {attributes.in(UVERBS_ATTR_UHW_IN), attributes.out(UVERBS_ATTR_UHW_OUT)}};
  for (const auto& known : kCommands)
    if (known.number == c.number) return known.answer(c);
  find(Rule::kUnknown, "command " + std::to_string(c.number));
  return EOPNOTSUPP;
}

int register_dmabuf(Context& context, const Attributes& a) {
  auto* handle = a.find(UVERBS_ATTR_REG_DMABUF_MR_HANDLE);
  const auto domain = a.find(UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE);
  const auto file = a.find(UVERBS_ATTR_REG_DMABUF_MR_FD);
  if (handle == nullptr || domain == nullptr || file == nullptr) return EINVAL;
  Memory m{read<u64>(a.in(UVERBS_ATTR_REG_DMABUF_MR_IOVA)), read<u64>(a.in(UVERBS_ATTR_REG_DMABUF_MR_LENGTH)), nullptr,
           static_cast<u32>(domain->data), read<u32>(a.in(UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS))};
  const u64 offset = read<u64>(a.in(UVERBS_ATTR_REG_DMABUF_MR_OFFSET));
  void* at = mmap(nullptr, offset + m.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, static_cast<int>(file->data_s64), 0);
  if (at == MAP_FAILED) return errno;
  m.at = static_cast<u8*>(at) + offset;
  const u32 key = add_registration(*context.device, m);
  handle->data = key;
  const Extra l{{}, a.out(UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY)}, r{{}, a.out(UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY)};
  l.write(key);
  r.write(key);
  return 0;
}

}  // namespace

int answer_ioctl(Context& context, ib_uverbs_ioctl_hdr* h) {
  const Attributes attributes{{h->attrs, h->num_attrs}};
  const std::lock_guard lock(mutex());
  hand_out_all_stores();  // what was rung before a command is seen before it
  if (h->object_id == UVERBS_OBJECT_DEVICE && h->method_id == UVERBS_METHOD_INVOKE_WRITE)
    return invoke_write(context, attributes);
  if (h->object_id == UVERBS_OBJECT_MR && h->method_id == UVERBS_METHOD_REG_DMABUF_MR)
    return register_dmabuf(context, attributes);
  return EPROTONOSUPPORT;
}

}  // namespace box

// Making and using one end of a connection, connected or by datagrams.
#include "providers/native/end.h"

#include <sched.h>

#include <algorithm>
#include <chrono>

#include "native/check.h"
#include "providers/native/device.h"

namespace box {

using namespace uccl;

namespace {

constexpr u32 kQkey = 77;
constexpr auto kNoLonger = std::chrono::seconds(20);

NicSettings named(const std::string& device, bool datagrams) { return {device, 1, datagrams ? 0 : -1}; }

}  // namespace

End::End(const std::string& device, bool datagrams, const EndShape& shape)
    : nic_(ibv::Library::shared(), named(device, datagrams), {}, notes_), datagrams_(datagrams) {
  const ibv::Functions& f = nic_.functions();
  mr_ = f.reg_mr(nic_.pd(), memory_.data(), memory_.size(), ibv::kAccessLocalWrite | ibv::kAccessRemoteWrite);
  CHECK(mr_ != nullptr);
  sends_ = std::make_unique<CompletionQueue>(nic_, shape.entries, true, datagrams);
  receives_ = std::make_unique<CompletionQueue>(nic_, shape.entries, true, datagrams);
  if (datagrams) {
    make_datagram_pair(shape);
    return;
  }
  QueuePairShape s{sends_->get(), receives_->get(), nullptr, shape.depth, shape.depth, shape.inline_bytes};
  if (shape.shared) {
    ibv::SrqInitAttr a{nullptr, shape.depth, 1, 0};
    s.srq = srq_ = f.create_srq(nic_.pd(), &a);
    CHECK(srq_ != nullptr);
  }
  s.try_extended = shape.extended;
  pair_ = std::make_unique<QueuePair>(nic_, s);
}

void End::make_datagram_pair(const EndShape& shape) {
  ibv::QpInitAttrEx x{};
  x.send_cq = sends_->get();
  x.recv_cq = receives_->get();
  x.cap = {shape.depth, shape.depth, 1, 1, shape.inline_bytes};
  x.qp_type = ibv::kQptDriver;
  x.pd = nic_.pd();
  x.comp_mask = ibv::kQpInitPd | ibv::kQpInitSendOps;
  x.send_ops_flags = ibv::kExRdmaWrite | ibv::kExRdmaWriteWithImm;
  efadv::QpInitAttr e{};
  ibv::Qp* qp = efadv::Library::shared().create_qp_ex(nic_.context(), &x, &e, sizeof(e));
  CHECK(qp != nullptr);
  pair_ = std::make_unique<QueuePair>(nic_, qp, nic_.functions().qp_to_qp_ex(qp), shape.inline_bytes);
  ibv::QpAttr a{};
  const u32 masks[] = {ibv::kQpState | ibv::kQpPkeyIndex | ibv::kQpPort | ibv::kQpQkey, ibv::kQpState,
                       ibv::kQpState | ibv::kQpSqPsn | ibv::kQpRnrRetry};
  a.port_num = 1;
  a.qkey = kQkey;
  a.rnr_retry = 7;
  for (u32 i = 0; i < 3; ++i) {
    a.qp_state = ibv::kQpsInit + i;
    CHECK_EQ(nic_.functions().modify_qp(qp, &a, static_cast<int>(masks[i])), 0);
  }
}

End::~End() {
  pair_.reset();
  sends_.reset();
  receives_.reset();
  if (handle_ != nullptr) nic_.functions().destroy_ah(handle_);
  if (srq_ != nullptr) nic_.functions().destroy_srq(srq_);
  nic_.functions().dereg_mr(mr_);
}

void End::connect(const End& to) {
  VerbsPath path;
  path.gid = &to.nic_.gid();
  if (!datagrams_) {
    path.queue_pair = to.pair_->number();
    path.mtu = ibv::kMtu1024;
    return pair_->connect({}, path);
  }
  ibv::AhAttr a = address_handle(nic_, {}, path);
  handle_ = nic_.functions().create_ah(nic_.pd(), &a);
  CHECK(handle_ != nullptr);
}

void End::connect_again(const End& to) {
  pair_->reset();
  connect(to);
}

int End::write_plain(const End& to, const Posted& what) {
  std::vector<ibv::Sge> pieces(what.requests);
  std::vector<ibv::SendWr> wrs(what.requests);
  for (u32 i = 0; i < what.requests; ++i) {
    pieces[i] = {reinterpret_cast<u64>(memory_.data()), what.bytes, what.lkey != 0 ? what.lkey : mr_->lkey};
    if (what.no_local_key) pieces[i] = {0, what.bytes, 0};
    ibv::SendWr& w = wrs[i];
    w = {};
    w.next = i + 1 == what.requests ? nullptr : &wrs[i + 1];
    w.sg_list = &pieces[i];
    w.num_sge = 1;
    w.opcode = what.immediate ? ibv::kWrRdmaWriteWithImm : ibv::kWrRdmaWrite;
    w.send_flags = ibv::kSendSignaled | (what.is_inline ? u32{ibv::kSendInline} : 0u);
    w.rdma.remote_addr = reinterpret_cast<u64>(to.memory_.data()) + what.beyond;
    w.rdma.rkey = what.rkey != 0 ? what.rkey : to.mr_->rkey;
  }
  ibv::SendWr* bad = nullptr;
  return pair_->send(&wrs[0], &bad);
}

int End::write(const End& to, const Posted& what) {
  if (!pair_->is_extended() || !datagrams_) return write_plain(to, what);
  ibv::QpEx* x = pair_->extended();
  x->wr_start(x);
  for (u32 i = 0; i < what.requests; ++i) {
    x->wr_flags = ibv::kSendSignaled;
    const u64 target = reinterpret_cast<u64>(to.memory_.data()) + what.beyond;
    const u32 rkey = what.rkey != 0 ? what.rkey : to.mr_->rkey;
    if (what.immediate)
      x->wr_rdma_write_imm(x, rkey, target, 0);
    else
      x->wr_rdma_write(x, rkey, target);
    if (what.is_inline)
      x->wr_set_inline_data(x, memory_.data(), what.bytes);
    else if (what.no_local_key)
      x->wr_set_sge(x, 0, 0, what.bytes);
    else
      x->wr_set_sge(x, what.lkey != 0 ? what.lkey : mr_->lkey, reinterpret_cast<u64>(memory_.data()), what.bytes);
    x->wr_set_ud_addr(x, handle_, to.pair_->number(), kQkey);
  }
  return x->wr_complete(x);
}

int End::receive(int pieces) {
  ibv::Sge piece{reinterpret_cast<u64>(memory_.data()), 64, mr_->lkey};
  ibv::RecvWr w{0, nullptr, &piece, pieces}, *bad = nullptr;
  return srq_ != nullptr ? srq_->context->ops.post_srq_recv(srq_, &w, &bad) : pair_->post_receives(&w, &bad);
}

u32 End::status() {
  const auto deadline = Clock::now() + kNoLonger;
  uccl::Completion c{};
  while (sends_->poll(std::span(&c, 1)) != 1) {
    if (Clock::now() > deadline) return ~0u;
    sched_yield();
  }
  return c.status;
}

u32 End::num_arrived() {
  uccl::Completion several[8];
  return static_cast<u32>(std::max(receives_->poll(several), 0));
}

}  // namespace box

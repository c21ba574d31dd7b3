// Both ways to poll. Immediates leave here in host byte order.
#include "transport/verbs/completion_queue.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>

#include "transport/verbs/errors.h"

namespace uccl {
namespace {

constexpr std::size_t kBatch = 32;

}  // namespace

// Soft-RoCE's provider (rdma-core 32 to today) ends the session in ibv_next_poll when it finds nothing, and the
// ibv_end_poll that must follow then drops a completion. Sessions of one entry are right on every provider.
CompletionQueue::CompletionQueue(const VerbsNic& nic, u32 entries, bool try_extended, bool datagrams)
    : nic_(nic), one_a_session_(nic.is_soft()), datagrams_(datagrams) {
  ibv::VerbsContext* v =
      try_extended && nic.polls_extended() ? ibv::extended(nic.context(), &ibv::VerbsContext::create_cq_ex) : nullptr;
  if (v != nullptr) {
    ibv::CqInitAttrEx attr{};
    attr.cqe = entries;
    attr.wc_flags = ibv::kWcExByteLen | ibv::kWcExImm | ibv::kWcExQpNum;
    if (datagrams) attr.wc_flags |= ibv::kWcExSrcQp | ibv::kWcExSlid;
    extended_ = v->create_cq_ex(nic.context(), &attr);
    cq_ = extended_ == nullptr ? nullptr : &extended_->base;
  }
  errno = 0;
  if (cq_ == nullptr) cq_ = nic.functions().create_cq(nic.context(), static_cast<int>(entries), nullptr, nullptr, 0);
  if (cq_ == nullptr) {
    throw std::runtime_error("verbs: " + nic.name() + ": a completion queue of " + std::to_string(entries) +
                             " entries (the device allows " + std::to_string(nic.limits().max_cqe) +
                             "): " + verbs_errno(errno));
  }
}

CompletionQueue::~CompletionQueue() { nic_.functions().destroy_cq(cq_); }

int CompletionQueue::poll_plain(std::span<Completion> out) {
  ibv::Wc wc[kBatch];
  std::size_t n = 0;
  while (n < out.size()) {
    const int want = static_cast<int>(std::min(kBatch, out.size() - n));
    const int got = cq_->context->ops.poll_cq(cq_, want, wc);
    if (got < 0) return n != 0 ? static_cast<int>(n) : got;
    for (int i = 0; i < got; ++i) {
      const ibv::Wc& w = wc[i];
      out[n++] = {w.wr_id, w.status, w.opcode, ntohl(w.imm_data), w.byte_len, w.qp_num, w.src_qp, w.slid};
    }
    if (got < want) break;
  }
  return static_cast<int>(n);
}

int CompletionQueue::poll_extended(std::span<Completion> out) {
  std::size_t n = 0;
  while (n < out.size()) {
    const std::size_t most = one_a_session_ ? 1 : out.size() - n;
    const int got = poll_session(out.subspan(n, most));
    if (got <= 0) return n != 0 ? static_cast<int>(n) : got;
    n += static_cast<std::size_t>(got);
    if (static_cast<std::size_t>(got) < most) break;
  }
  return static_cast<int>(n);
}

int CompletionQueue::poll_session(std::span<Completion> out) {
  ibv::PollCqAttr attr{};
  ibv::CqEx* cq = extended_;
  int result = cq->start_poll(cq, &attr);
  if (result != 0) return result == ENOENT ? 0 : -result;
  std::size_t n = 0;
  while (result == 0) {
    Completion& c = out[n++];
    c = {cq->wr_id, cq->status, 0, 0, 0, cq->read_qp_num(cq), 0, 0};
    if (c.status == ibv::kWcSuccess) {
      c.opcode = cq->read_opcode(cq);
      c.bytes = cq->read_byte_len(cq);
      if (datagrams_) c.source_queue_pair = cq->read_src_qp(cq);
      if (datagrams_) c.source_handle = cq->read_slid(cq);
      if ((cq->read_wc_flags(cq) & ibv::kWcWithImm) != 0) c.immediate = ntohl(cq->read_imm_data(cq));
    }
    if (n == out.size()) break;
    result = cq->next_poll(cq);
  }
  cq->end_poll(cq);
  return static_cast<int>(n);
}

}  // namespace uccl

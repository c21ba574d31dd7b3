// Sizes of a lane's queues from the in-flight bound and the device's limits; receives, whose memory nothing is written to.
#include "transport/verbs/endpoint.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <stdexcept>

#include "transport/verbs/errors.h"

namespace uccl {
namespace {

constexpr u32 kLeastEntries = 64;
constexpr u32 kLeastReceives = 2;  // of a queue pair: a message, and the farewell behind it

u32 limit(u64 wanted, int most) {
  return static_cast<u32>(std::min<u64>(std::max<u64>(wanted, kLeastEntries), most > 0 ? static_cast<u32>(most) : 1));
}

// Of each queue pair, where none are shared: all of them together never complete more than their queue holds.
u32 own_receives(const VerbsNic& nic, const EndpointShape& shape, u32 entries) {
  const u32 queues = std::max(shape.num_queues, 1u);
  const u32 n = std::min(limit(ceil_div(shape.receives, queues), nic.limits().max_qp_wr), entries / queues);
  if (nic.limits().max_srq <= 0 && n < kLeastReceives)
    throw std::runtime_error("verbs: " + nic.name() + ": a completion queue of " + std::to_string(entries) +
                             " entries is all that the device allows, and " + std::to_string(queues) +
                             " queue pairs of a lane need " + std::to_string(kLeastReceives) +
                             " each; use fewer queue_pairs");
  return n;
}

}  // namespace

QueuePairTable::QueuePairTable(u32 most)
    : mask_(std::bit_ceil(2 * std::max(most, 1u)) - 1), entries_(mask_ + 1, Entry{0, kNone}) {}

void QueuePairTable::add(u32 number, u32 index) {
  u32 i = hash(number);
  while (entries_[i].index != kNone && entries_[i].number != number) i = (i + 1) & mask_;
  entries_[i] = {number, index};
}

VerbsEndpoint::VerbsEndpoint(const VerbsNic& nic, const EndpointShape& shape, std::vector<Note>& notes)
    : nic_(nic),
      shape_(shape),
      depth_(static_cast<u32>(std::min<u64>(shape.queue_depth, static_cast<u32>(std::max(nic.limits().max_qp_wr, 1))))),
      send_entries_(limit(static_cast<u64>(shape.num_queues) * depth_, nic.limits().max_cqe)),
      receive_entries_(limit(shape.receives, nic.limits().max_cqe)),
      own_receives_(own_receives(nic, shape, receive_entries_)),
      sends_(nic, send_entries_, shape.try_extended),
      receives_(nic, receive_entries_, shape.try_extended),
      table_(shape.num_queues),
      dummy_(nic.dummy()),
      blank_(kBatch, ibv::RecvWr{0, nullptr, &dummy_, 1}) {
  for (u32 i = 0; i + 1 < kBatch; ++i) blank_[i].next = &blank_[i + 1];
  if (nic.shares_receives()) {
    receive_entries_ = std::min(receive_entries_, limit(shape.receives, nic.limits().max_srq_wr));
    ibv::SrqInitAttr a{nullptr, receive_entries_, 1, 0};
    errno = 0;
    srq_ = nic.functions().create_srq(nic.pd(), &a);
    if (srq_ == nullptr) {
      throw std::runtime_error("verbs: " + nic.name() + ": a shared receive queue of " +
                               std::to_string(receive_entries_) + ": " + verbs_errno(errno));
    }
  }
  const u64 granted = srq_ != nullptr ? receive_entries_ : static_cast<u64>(own_receives_) * shape.num_queues;
  if (granted < shape.receives) {
    notes.push_back(
        {std::to_string(granted) + " receives a lane on " + nic.name(),
         "peers may have " + std::to_string(shape.receives) +
             " writes on their way; beyond what the device "
             "allows they wait (receiver not ready) and are sent again; a smaller in-flight bound avoids it"});
  }
  if (shape.try_extended && !nic.chains_extended()) {
    notes.push_back({"ibv_post_send on " + nic.name(),
                     "its provider is not known to take several requests between ibv_wr_start and ibv_wr_complete"});
  }
  if (depth_ < shape.queue_depth) {
    notes.push_back({"queue pairs of " + std::to_string(depth_) + " writes on " + nic.name(),
                     "the device's limit; " + std::to_string(shape.queue_depth) + " were asked for"});
  }
}

VerbsEndpoint::~VerbsEndpoint() {
  if (srq_ != nullptr) nic_.functions().destroy_srq(srq_);
}

QueuePair VerbsEndpoint::make_queue_pair() {
  QueuePairShape s;
  s.send_cq = sends_.get();
  s.receive_cq = receives_.get();
  s.srq = srq_;
  s.depth = depth_;
  s.receive_depth = own_receives_;
  s.inline_bytes = nic_.takes_inline() ? shape_.inline_bytes : 0;
  s.try_extended = shape_.try_extended && nic_.chains_extended();
  QueuePair q(nic_, s);
  u32 owed = 0;
  renew_receives(q, owed);
  return q;
}

void VerbsEndpoint::renew_receives(QueuePair& queue, u32& owed_of_queue) {
  owed_of_queue = 0;
  const int e = srq_ != nullptr ? 0 : post_own(queue, own_receives_);
  if (e != 0) throw std::runtime_error("verbs: " + nic_.name() + ": ibv_post_recv: " + verbs_errno(e));
}

void VerbsEndpoint::post_first_receives() {
  const int e = srq_ == nullptr ? 0 : post_shared(receive_entries_);
  if (e != 0) throw std::runtime_error("verbs: " + nic_.name() + ": ibv_post_srq_recv: " + verbs_errno(e));
}

int VerbsEndpoint::used_receive(QueuePair& queue, u32& owed_of_queue) {
  if (srq_ != nullptr) {
    if (++owed_ < batch_of(receive_entries_)) return 0;
    return refill_shared();
  }
  if (++owed_of_queue < batch_of(own_receives_)) return 0;
  const u32 n = owed_of_queue;
  owed_of_queue = 0;
  return post_own(queue, n);
}

int VerbsEndpoint::refill_shared() {
  const u32 n = owed_;
  owed_ = 0;
  return n == 0 || srq_ == nullptr ? 0 : post_shared(n);
}

int VerbsEndpoint::post_shared(u32 count) {
  int error = 0;
  for (u32 left = count; left != 0 && error == 0;) {
    const u32 n = std::min(left, kBatch);  // the last n of the chain
    ibv::RecvWr* bad = nullptr;
    error = srq_->context->ops.post_srq_recv(srq_, &blank_[kBatch - n], &bad);
    left -= n;
  }
  return error;
}

int VerbsEndpoint::post_own(QueuePair& queue, u32 count) {
  int error = 0;
  for (u32 left = count; left != 0 && error == 0;) {
    const u32 n = std::min(left, kBatch);
    ibv::RecvWr* bad = nullptr;
    error = queue.post_receives(&blank_[kBatch - n], &bad);
    left -= n;
  }
  return error;
}

}  // namespace uccl

// One queue pair: its life from reset to error, and how work requests reach it. Owned by a lane, used by its thread.
#pragma once
#include <utility>

#include "transport/verbs/completion_queue.h"

namespace uccl {

struct VerbsPath {  // everything that both ends must agree on
  const ibv::Gid* gid = nullptr;  // the peer's; null: by LID
  u32 lid = 0;
  u32 queue_pair = 0;  // the peer's number
  u32 mtu = 0;         // ibv::Mtu
  u32 send_psn = 0, receive_psn = 0;
  u32 udp_source_port = 0;  // 0: the driver chooses
};

struct QueuePairShape {
  ibv::Cq* send_cq = nullptr;
  ibv::Cq* receive_cq = nullptr;
  ibv::Srq* srq = nullptr;
  u32 depth = 0;          // work requests that may be outstanding
  u32 receive_depth = 0;  // when there is no srq
  u32 inline_bytes = 0;   // asked for; what was granted is in QueuePair
  bool try_extended = true;
  bool reads = false;  // it reads its peer's memory and lets that read its own, instead of writes
};

// The address as verbs wants it; also for address handles.
ibv::AhAttr address_handle(const VerbsNic& nic, const FabricSettings& fabric, const VerbsPath& path);

VerbsPath path_to_itself(const VerbsNic& nic, u32 queue_pair);

class QueuePair {
 public:
  // Made, and moved to INIT. Throws std::runtime_error with the device's limits.
  QueuePair(const VerbsNic& nic, const QueuePairShape& shape);
  // Takes over one that another library made (efa); it is destroyed with this object.
  QueuePair(const VerbsNic& nic, ibv::Qp* qp, ibv::QpEx* extended, u32 inline_bytes)
      : nic_(&nic), qp_(qp), extended_(extended), inline_bytes_(inline_bytes) {}
  ~QueuePair() { destroy(); }
  QueuePair(QueuePair&& o) noexcept { *this = std::move(o); }
  QueuePair& operator=(QueuePair&& o) noexcept;

  ibv::Qp* get() const { return qp_; }
  u32 number() const { return qp_->qp_num; }
  u32 inline_bytes() const { return inline_bytes_; }
  bool is_extended() const { return extended_ != nullptr; }
  ibv::QpEx* extended() const { return extended_; }

  // INIT -> ready to send. Throws std::runtime_error with the step and errno.
  void connect(const FabricSettings& fabric, const VerbsPath& path);
  // Whatever it is in -> INIT. The completions of what was outstanding must have been polled.
  void reset();
  // Nothing more goes out, and the NIC refuses what comes in. What is outstanding is flushed. Fails only when the
  // device is gone, which has the same effect.
  void to_error();
  // Posts a chain; 0 or an errno, and then *bad is the first that was not taken.
  int send(ibv::SendWr* first, ibv::SendWr** bad);
  int post_receives(ibv::RecvWr* first, ibv::RecvWr** bad);

 private:
  void to_init();
  void modify(ibv::QpAttr& attr, u32 mask, const char* step);
  void destroy();
  int send_extended(ibv::SendWr* first, ibv::SendWr** bad);

  const VerbsNic* nic_ = nullptr;
  ibv::Qp* qp_ = nullptr;
  ibv::QpEx* extended_ = nullptr;
  u32 inline_bytes_ = 0;
  unsigned access_ = ibv::kAccessLocalWrite | ibv::kAccessRemoteWrite;
};

// Whether a queue pair that has failed can be used again once it was reset: tried with one that is made for it, where the
// vendor leaves a doubt (VerbsNic::surely_resets). True when the device says nothing for `limit_ns`. Control path; throws
// std::runtime_error.
bool can_be_reset(const VerbsNic& nic, const FabricSettings& fabric, u64 limit_ns);

}  // namespace uccl

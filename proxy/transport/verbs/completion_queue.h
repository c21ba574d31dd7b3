// A completion queue, polled by extended verbs where the provider has them and by ibv_poll_cq elsewhere. Used by one
// thread.
#pragma once
#include <span>

#include "transport/verbs/nic.h"

namespace uccl {

struct Completion {
  u64 wr_id;
  u32 status;  // ibv::WcStatus
  u32 opcode;  // ibv::WcOpcode; this and what follows only when status is success
  u32 immediate, bytes;
  u32 queue_pair;         // ours; also when status is an error
  u32 source_queue_pair;  // datagrams: theirs
  u32 source_handle;      // datagrams: the number of our address handle for them (efa)
};

class CompletionQueue {
 public:
  // Throws std::runtime_error with the errno.
  CompletionQueue(const VerbsNic& nic, u32 entries, bool try_extended, bool datagrams = false);
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  ibv::Cq* get() const { return cq_; }
  bool is_extended() const { return extended_ != nullptr; }
  // How many; negative errno-like when the device says the queue is broken.
  int poll(std::span<Completion> out) { return extended_ != nullptr ? poll_extended(out) : poll_plain(out); }

 private:
  int poll_plain(std::span<Completion> out);
  int poll_extended(std::span<Completion> out);
  int poll_session(std::span<Completion> out);

  const VerbsNic& nic_;
  const bool one_a_session_, datagrams_;
  ibv::Cq* cq_ = nullptr;
  ibv::CqEx* extended_ = nullptr;
};

}  // namespace uccl

// Makes visible what a NIC has written into a GPU's memory: an RDMA read of a few of its bytes through the same NIC, over a
// queue pair that is connected to itself. A read does not pass the writes that were sent before it.
#pragma once
#include "transport/verbs/memory.h"
#include "transport/verbs/queue_pair.h"

namespace uccl {

class VerbsFlush {
 public:
  // `at`: in a span of `memory` that the settings name for it; both outlive the flush. Control path; throws
  // std::runtime_error.
  VerbsFlush(const VerbsNic& nic, const VerbsMemory& memory, const u8* at, const FabricSettings& fabric);

  // Everything that has been written by now will be visible once `poll` says so. Not while one runs. False: the device
  // refuses, and `error` says why.
  bool begin();
  bool runs() const { return runs_; }
  // Looks whether it has ended; true when it has, well or with an `error`.
  bool poll();
  int error() const { return error_; }  // a code of errors.h, 0: none
  // Control path: a whole one. Throws std::runtime_error when it fails or has not ended by then.
  void run(u64 limit_ns);

 private:
  const VerbsNic& nic_;
  u64 remote_address_;
  u32 rkey_;
  CompletionQueue completions_;
  QueuePair pair_;
  bool runs_ = false;
  int error_ = 0;
};

}  // namespace uccl

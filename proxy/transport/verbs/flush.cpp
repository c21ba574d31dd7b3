// The read and its queue pair.
#include "transport/verbs/flush.h"

#include <sched.h>

#include <cerrno>
#include <chrono>
#include <stdexcept>

#include "transport/verbs/errors.h"

namespace uccl {
namespace {

constexpr u32 kEntries = 4;
constexpr u32 kReadBytes = 8;

QueuePairShape shape_of(const CompletionQueue& completions) {
  QueuePairShape s;
  s.send_cq = s.receive_cq = completions.get();
  s.depth = s.receive_depth = kEntries;
  s.try_extended = false;  // reads are no part of what extended queue pairs here are made for
  s.reads = true;
  return s;
}

}  // namespace

VerbsFlush::VerbsFlush(const VerbsNic& nic, const VerbsMemory& memory, const u8* at, const FabricSettings& fabric)
    : nic_(nic),
      remote_address_(reinterpret_cast<u64>(at)),
      rkey_(memory.find(at).rkey),
      completions_(nic, kEntries, false),
      pair_(nic, shape_of(completions_)) {
  pair_.connect(fabric, path_to_itself(nic, pair_.number()));
}

bool VerbsFlush::begin() {
  ibv::Sge sge = nic_.dummy();
  sge.length = kReadBytes;
  ibv::SendWr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = ibv::kWrRdmaRead;
  wr.send_flags = ibv::kSendSignaled;
  wr.rdma.remote_addr = remote_address_;
  wr.rdma.rkey = rkey_;
  ibv::SendWr* bad = nullptr;
  error_ = pair_.send(&wr, &bad);
  runs_ = error_ == 0;
  return runs_;
}

bool VerbsFlush::poll() {
  Completion c;
  const int n = completions_.poll({&c, 1});
  if (n == 0) return false;
  runs_ = false;
  if (n < 0) error_ = -n;
  if (n > 0 && c.status != ibv::kWcSuccess) error_ = kVerbsFlush | static_cast<int>(c.status);
  return true;
}

void VerbsFlush::run(u64 limit_ns) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(limit_ns);
  for (bool ended = !begin(); !ended; ended = poll()) {
    if (std::chrono::steady_clock::now() > deadline) error_ = ETIMEDOUT;
    if (error_ != 0) break;
    sched_yield();
  }
  if (error_ == 0) return;
  throw std::runtime_error("verbs: " + nic_.name() +
                           " cannot read the GPU's memory, which would make visible what NICs "
                           "write there: " +
                           verbs_explain(error_) +
                           ". UCCL_EP_GPU_MEMORY=host keeps rows in pinned "
                           "host memory");
}

}  // namespace uccl

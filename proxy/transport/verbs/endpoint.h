// A lane's share of a NIC: two completion queues, a shared receive queue, and which queue pair belongs to whom.
#pragma once
#include <memory>
#include <vector>

#include "transport/verbs/queue_pair.h"

namespace uccl {

// Queue pair number -> index, for numbers of 24 bits. Filled on the control path, looked up for every arrival.
class QueuePairTable {
 public:
  static constexpr u32 kNone = ~0u;
  explicit QueuePairTable(u32 most);
  void add(u32 number, u32 index);  // at most `most` times
  u32 find(u32 number) const {
    for (u32 i = hash(number);; i = (i + 1) & mask_) {
      if (entries_[i].index == kNone || entries_[i].number == number) return entries_[i].index;
    }
  }

 private:
  struct Entry {
    u32 number, index;
  };
  u32 hash(u32 number) const { return (number * 0x9e3779b1u >> 8) & mask_; }
  u32 mask_;
  std::vector<Entry> entries_;
};

struct EndpointShape {
  u32 num_queues = 0;      // queue pairs that will use it
  u32 queue_depth = 0;     // of each
  u64 receives = 0;        // messages that may be on their way here at once
  u32 inline_bytes = 0;
  bool try_extended = true;
};

class VerbsEndpoint {
 public:
  // Throws std::runtime_error. Says in `notes` where the device's limits are below what was asked for.
  VerbsEndpoint(const VerbsNic& nic, const EndpointShape& shape, std::vector<Note>& notes);
  ~VerbsEndpoint();
  VerbsEndpoint(const VerbsEndpoint&) = delete;
  VerbsEndpoint& operator=(const VerbsEndpoint&) = delete;

  const VerbsNic& nic() const { return nic_; }
  CompletionQueue& sends() { return sends_; }
  CompletionQueue& receives() { return receives_; }
  QueuePairTable& table() { return table_; }
  bool shares_receives() const { return srq_ != nullptr; }
  u32 queue_depth() const { return depth_; }  // granted

  // Control path: receives are posted before the peer can write. Throws std::runtime_error.
  QueuePair make_queue_pair();
  void post_first_receives();
  // A queue pair that was reset has lost the receives of its own; shared ones stay. Throws std::runtime_error.
  void renew_receives(QueuePair& queue, u32& owed_of_queue);

  // Completions that may still be owed by the device: never more than the queue holds.
  bool has_room(u32 work_requests) const { return outstanding_ + work_requests <= send_entries_; }
  void take_room(u32 work_requests) { outstanding_ += work_requests; }
  void give_room(u32 work_requests) { outstanding_ -= work_requests; }

  // A receive of `queue` was used. Posted again in batches; an errno when the device refuses.
  int used_receive(QueuePair& queue, u32& owed_of_queue);
  int refill_shared();

 private:
  static constexpr u32 kBatch = 64;
  u32 batch_of(u32 receives) const { return receives < 4 * kBatch ? (receives < 4 ? 1 : receives / 4) : kBatch; }
  int post_shared(u32 count);
  int post_own(QueuePair& queue, u32 count);

  const VerbsNic& nic_;
  EndpointShape shape_;
  u32 depth_, send_entries_, receive_entries_, own_receives_;
  CompletionQueue sends_, receives_;
  QueuePairTable table_;
  ibv::Srq* srq_ = nullptr;
  u32 outstanding_ = 0;
  u32 owed_ = 0;  // shared receives used and not posted again
  ibv::Sge dummy_;
  std::vector<ibv::RecvWr> blank_;  // kBatch receives of no bytes, chained
};

}  // namespace uccl

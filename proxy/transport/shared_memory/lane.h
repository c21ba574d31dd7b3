// A lane between processes of one host: the sender copies into the receiver's memory and pushes the immediate.
#pragma once
#include <vector>

#include "transport/judging_lane.h"
#include "transport/shared_memory/mailbox.h"
#include "transport/transport.h"

namespace uccl {

class SharedMemoryLane final : public JudgingLane {
 public:
  SharedMemoryLane(const TransportSettings& settings, u32 index);
  ~SharedMemoryLane() override;  // peers see kLost, code 0

  // What of a peer is mapped here. The mappings outlive the lane.
  struct Mapping {
    MailboxRing* out = nullptr;  // ours, in the peer's mailbox
    MailboxRing* in = nullptr;   // the peer's, in our mailbox
    u32 out_capacity = 0, in_capacity = 0;
    const AddressSpace* memory = nullptr;
  };
  void attach(u32 peer, const Mapping& mapping);  // control path

  void flush() override {}  // `take` has published everything it took
  std::size_t poll_completions(std::span<u64> wr_ids) override;
  std::size_t poll_arrivals(std::span<Arrival> out) override;

 private:
  struct Peer {
    u32 rank;
    Mapping m;
    u32 limit;                 // immediates that may wait in the peer's mailbox
    u64 tail = 0;              // ours, in the peer's mailbox: pushed
    u64 cached_consumed = 0;
    u64 consumed = 0;          // the peer's, in our mailbox: taken
  };

  std::size_t take(std::span<const WriteRequest> requests) override;
  void part(u32 peer, u32 farewell) override;
  void copy(const WriteRequest& r);
  bool has_room(Peer& p);
  static void publish(Peer& p);
  std::size_t drain(Peer& p, std::span<Arrival> out);

  u32 max_in_flight_;
  std::size_t turn_ = 0;  // peer that is served first, so that none starves
  std::vector<Peer> peers_;
  std::vector<Peer*> by_rank_;
  std::vector<u64> completed_;  // ring of wr_ids, a power of two
  u64 completed_head_ = 0, completed_tail_ = 0;
};

}  // namespace uccl

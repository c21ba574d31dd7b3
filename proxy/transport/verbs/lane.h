// The data path of verbs: writes with immediate on reliable connected queue pairs, chained to one doorbell a queue pair.
//
// Beside writes, two messages of our own travel on a queue pair: a *probe* (a write of zero bytes, which the peer's
// software never sees) asks an idle peer's NIC for a sign of life; a *farewell* (a send, so that no immediate has to be
// reserved for it) is the last message of a peer that leaves, after everything it wrote.
#pragma once
#include <memory>
#include <vector>

#include "transport/judging_lane.h"
#include "transport/verbs/endpoint.h"
#include "transport/verbs/flush.h"
#include "transport/verbs/remote_spans.h"
#include "transport/verbs/rounds.h"

namespace uccl {

// Indices below `most`, each at most once, first in first out.
class IndexQueue {
 public:
  explicit IndexQueue(u32 most) : ring_(most), listed_(most, false) {}
  u32 size() const { return size_; }
  void push(u32 i) {
    if (listed_[i]) return;
    listed_[i] = true;
    ring_[(head_ + size_++) % ring_.size()] = i;
  }
  u32 pop() {
    const u32 i = ring_[head_];
    head_ = (head_ + 1) % static_cast<u32>(ring_.size());
    --size_;
    listed_[i] = false;
    return i;
  }

 private:
  std::vector<u32> ring_;
  std::vector<bool> listed_;
  u32 head_ = 0, size_ = 0;
};

struct VerbsQueue {
  enum class State : u8 {
    kGreeting,  // not proven yet, or never used
    kOpen,
    kBroken,  // a completion was flushed: the reason is awaited for a moment
    kLeaving,  // our farewell is on its way
    kEnded,
  };
  struct Slot {
    u64 wr_id;
    bool last;  // of its request: the wr_id is reported
  };
  VerbsQueue(QueuePair p, u32 endpoint_idx, u32 peer_rank)
      : pair(std::move(p)), endpoint(endpoint_idx), peer(peer_rank) {}

  QueuePair pair;
  u32 endpoint, peer;
  State state = State::kGreeting;
  bool heard_farewell = false;
  u32 unsignalled = 0;
  u32 owed_receives = 0;
  u32 patience = 0;  // kBroken: polls left until the flush itself is what is reported
  // Work requests are numbered: reported <= good <= done <= posted <= reported + depth.
  u64 posted = 0, done = 0, good = 0, reported = 0;
  std::vector<Slot> slots;  // a power of two
  u64 writes = 0, write_bytes = 0;  // requests; written by the lane's thread, read racily by others
  ibv::SendWr* first = nullptr;  // staged since the last flush
  ibv::SendWr* last = nullptr;
  const u32* rkeys = nullptr;  // the peer's, on the NIC that this queue pair reaches
  u64 greeting_address = 0;  // our slot in the peer's greeting area
  u32 greeting_rkey = 0;

  bool idle() const { return posted == done; }
  u64 held() const { return posted - reported; }  // slots in use; at most the depth
};

class VerbsLane final : public JudgingLane {
 public:
  // One memory a NIC, in the order of `nics`; they outlive the lane. Control path; throws std::runtime_error.
  VerbsLane(const TransportSettings& settings, const VerbsTuning& tuning,
            const std::vector<std::unique_ptr<VerbsNic>>& nics,
            const std::vector<std::unique_ptr<VerbsMemory>>& memories, bool hears_events, std::vector<Note>& notes);
  ~VerbsLane() override;  // peers see kLost, code 0, after everything that was posted

  void flush() override;
  std::size_t poll_completions(std::span<u64> wr_ids) override;
  std::size_t poll_arrivals(std::span<Arrival> out) override;
  std::size_t poll_events(std::span<PeerEvent> out) override;

  // Control path, once greetings are over: makes visible what came with them. Throws std::runtime_error.
  void flush_device(u64 limit_ns);
  // What each queue pair has carried, appended; `lane` is this one's index.
  void count_queues(u32 lane, std::vector<QueueCounters>& out) const;

  // Control path, before and during connect(). Only of peers that the settings reach.
  u32 queue_index(u32 peer, u32 nic, u32 queue) const;
  u32 num_queues() const { return static_cast<u32>(queues_.size()); }
  VerbsQueue& queue(u32 index) { return queues_[index]; }
  VerbsEndpoint& endpoint(u32 index) { return *endpoints_[index]; }
  u32 num_endpoints() const { return static_cast<u32>(endpoints_.size()); }
  u32 owner(u32 queue_pair, u32 endpoint) { return endpoints_[endpoint]->table().find(queue_pair); }
  void stash(const Arrival& arrival, u64 bytes);
  // The peer's proven queue pairs, and where its memory is. `address` outlives the lane.
  void open_peer(u32 peer, const VerbsAddress& address, std::vector<u32> queues);

 private:
  friend class VerbsGreeting;
  struct Peer {
    std::vector<u32> queues;
    RemoteSpans spans;
    u32 open = 0;  // requests taken whose wr_ids have not been handed out
    u32 turn = 0;
  };
  struct Staged {
    ibv::SendWr wr;
    ibv::Sge sge;
  };
  struct Held {  // what a NIC has told, until its bytes are visible in the GPU's memory
    std::unique_ptr<VerbsFlush> flush;
    std::array<Arrival, 64> arrivals;
    u32 first = 0, end = 0;
  };
  static constexpr u32 kStaged = 256;
  static constexpr u32 kBatch = 64;
  static constexpr u32 kNowhere = ~0u;

  // lane.cpp
  std::size_t take(std::span<const WriteRequest> requests) override;
  VerbsQueue& least_outstanding(Peer& peer);
  void stage_request(VerbsQueue& q, const Route& route, const WriteRequest& r, Cut c);
  Staged& stage(VerbsQueue& q, u32 opcode, u64 wr_id, bool last);
  void ring_doorbell(VerbsQueue& q);
  void poll_sends(u32 endpoint);
  void complete(const Completion& c);
  std::size_t poll_endpoint(u32 endpoint, std::span<Arrival> out, bool* bytes);
  std::size_t poll_held(u32 endpoint, std::span<Arrival> out);
  bool take_arrival(const Completion& c, u32 endpoint, Arrival* out);
  std::size_t take_stash(std::span<Arrival> out);

  // lane_events.cpp
  void end_peer(u32 peer, PeerFault fault, int code);
  void fail_queue(VerbsQueue& q, int code);
  void fail_endpoint(u32 endpoint, int code);
  void completion_failed(VerbsQueue& q, u32 status);
  void hear_farewell(VerbsQueue& q, u32 immediate);
  void part(u32 peer, u32 farewell) override;
  void end_queue(VerbsQueue& q);
  void drop_staged(VerbsQueue& q);
  void look_around(u64 now_ns);
  void probe_some(u64 now_ns);
  void leave();
  bool wait_all(bool (VerbsLane::*done)() const, u64 limit_ns);
  bool all_sent() const;
  bool all_left() const;

  const TransportSettings settings_;
  const VerbsTuning tuning_;
  const std::vector<std::unique_ptr<VerbsNic>>& nics_;
  const std::vector<std::unique_ptr<VerbsMemory>>& memories_;
  const bool hears_events_;
  std::vector<std::unique_ptr<VerbsEndpoint>> endpoints_;
  std::vector<u32> place_of_;  // by rank: its place among those that are reached, kNowhere: it is not
  std::vector<VerbsQueue> queues_;  // [place][nic][queue]; after the endpoints, so that they are destroyed first
  std::vector<Peer> peers_;
  std::vector<Held> held_;  // by endpoint; empty: what has arrived is visible
  std::vector<Staged> staged_;
  u32 num_staged_ = 0;
  IndexQueue unsent_, completed_;  // queues
  std::vector<Arrival> stash_;  // data that came while other peers were still greeting
  std::size_t stash_taken_ = 0;
  u32 next_endpoint_ = 0;
  bool receives_drained_ = true;
  u32 num_broken_ = 0;
  Rounds rounds_;
  u32 next_probed_ = 0;
};

}  // namespace uccl

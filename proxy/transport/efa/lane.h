// The data path of EFA: one scalable-reliable-datagram queue pair a NIC for all peers. It delivers reliably and in any
// order, also within a queue pair, so nothing here relies on any: the last piece of a request that had to be cut is
// posted when the others are complete, and a farewell when everything before it is.
#pragma once
#include <memory>
#include <vector>

#include "transport/efa/library.h"
#include "transport/efa/senders.h"
#include "transport/judging_lane.h"
#include "transport/verbs/queue_pair.h"
#include "transport/verbs/remote_spans.h"
#include "transport/verbs/rounds.h"

namespace uccl {

struct EfaDevice {  // what both lanes and set-up know of a NIC beyond VerbsNic
  efadv::DeviceAttr attr{};
  u32 qkey = 0;
  u64 largest = 0;  // bytes of one write
};

// Where a peer is, on one pair of NICs.
struct EfaPath {
  u32 nic = 0;  // ours
  ibv::Ah* handle = nullptr;
  u32 handle_number = 0;
  u32 queue_pair = 0, qkey = 0;
  const u32* rkeys = nullptr;
  u64 greeting_address = 0;
  u32 greeting_rkey = 0;
};

// Control messages are sends; their immediate says which.
inline constexpr u32 kEfaGreeting = 1u << 16;  // the sender's proof lies in the greeting area
inline constexpr u32 kEfaFarewell = 2u << 16;  // | code

// What all lanes of a rank share; outlives them.
struct EfaShared {
  const std::vector<std::unique_ptr<VerbsNic>>& nics;
  const std::vector<std::unique_ptr<VerbsMemory>>& memories;  // one a NIC
  const std::vector<EfaDevice>& devices;
  const efadv::Functions& functions;
  const VerbsTuning& tuning;
};

class EfaLane final : public JudgingLane {
 public:
  // Control path; throws std::runtime_error. Says in `notes` which features the device granted.
  EfaLane(const TransportSettings& settings, const EfaShared& shared, bool hears_events, std::vector<Note>& notes);
  ~EfaLane() override;

  void flush() override;
  std::size_t poll_completions(std::span<u64> wr_ids) override;
  std::size_t poll_arrivals(std::span<Arrival> out) override;
  std::size_t poll_events(std::span<PeerEvent> out) override;

  // Control path.
  u32 queue_pair_number(u32 nic) const { return rails_[nic]->pair->number(); }
  bool unsolicited() const { return rails_[0]->unsolicited; }  // the same on all: one library, devices of one kind
  void add_peer(u32 peer, const VerbsAddress& address, std::vector<EfaPath> paths);
  // Writes the proof, and sends a note once that is complete; false: no room now.
  bool greet(u32 peer, u32 path, u64 proof_address, u32 lkey);
  // Whether the greeting on this path was refused since the last call: the peer has no address handle for us yet.
  bool take_refused(u32 peer, u32 path);
  bool greeted(u32 peer) const { return peers_[peer].greetings_done == peers_[peer].paths.size(); }
  u32 greetings_heard(u32 peer) const { return peers_[peer].greetings_heard; }
  void open_peer(u32 peer) { book_.open(peer); }
  // One turn of the queues before the lane is in use: counts greetings, keeps early data.
  void poll_greetings();

 private:
  struct Peer {
    std::vector<EfaPath> paths;
    RemoteSpans spans;
    u32 open = 0;         // requests taken whose wr_ids have not been handed out
    u32 outstanding = 0;  // work requests on their way
    u32 greetings_done = 0, greetings_heard = 0, farewell_code = 0;
    u64 refused = 0;  // greetings, by path
    bool leaving = false, farewell_sent = false, heard_farewell = false;
  };
  struct RailShape {
    u32 depth, receives, arriving;
    u32 own_receives;  // of greetings and farewells alone
    bool unsolicited;
  };
  struct Rail {  // a NIC's queue pair and queues
    Rail(const VerbsNic& on, const RailShape& shape);
    const VerbsNic& nic;
    CompletionQueue sends, arrivals;
    ibv::Sge dummy;  // the NIC's
    std::vector<ibv::RecvWr> blank;  // kBatch receives of no bytes, chained
    std::unique_ptr<QueuePair> pair;  // after its completion queues, so that it goes first
    u32 depth, receives, own_receives;
    u32 outstanding = 0, owed_receives = 0;
    EfaSenders senders;  // fixed once connected
    bool unsolicited, started = false;
  };
  enum class Kind : u8 { kPiece, kLast, kGreeting, kControl, kProbe };
  struct Request {  // of one write, or of a control message; in use from post to its last completion
    WriteRequest write;
    u64 at = 0;  // where the last piece begins
    u32 path = 0, left = 0;
    Kind kind = Kind::kLast;
  };
  static constexpr u32 kBatch = 64;
  static constexpr u32 kControls = 64;  // requests beyond the in-flight bounds: greetings, farewells

  // rails.cpp
  RailShape shape_of(const VerbsNic& nic, const EfaDevice& device) const;
  void make_queue_pair(Rail& rail, std::vector<Note>& notes) const;
  void to_ready(ibv::Qp* qp, const VerbsNic& nic, u32 qkey, bool rnr_retries) const;
  // lane.cpp
  std::size_t take(std::span<const WriteRequest> requests) override;
  Route route_of(const WriteRequest& r, u32 path) const;
  u32 least_outstanding(const Peer& peer) const;
  void start_request(u32 index, const Route& route, Cut c);
  void succeed(u32 index, Kind kind);
  void release(u32 index) { free_.push_back(index); }
  void emit_piece(u32 index, const Cut& c, bool last);
  ibv::QpEx* begin(u32 index, Kind kind, const EfaPath& path);
  bool send_control(u32 peer, u32 path, u32 immediate);
  void ring(u32 nic);
  void report_farewells();
  void look_around(u64 now_ns);
  void probe(u32 peer);
  bool wait_until(bool (EfaLane::*done)() const);
  bool all_quiet() const;
  void complete(const Completion& c);
  bool arrive(const Completion& c, u32 nic, Arrival* out);
  void refill(Rail& rail, bool now);
  void part(u32 peer, u32 farewell) override;
  void say_farewells(u32 peer);
  void leave();

  const TransportSettings settings_;
  const EfaShared shared_;
  const bool hears_events_;
  std::vector<std::unique_ptr<Rail>> rails_;
  std::vector<Peer> peers_;
  std::vector<Request> requests_;
  std::vector<u32> free_;  // indices into requests_
  std::vector<u32> complete_;  // requests whose wr_id waits to be handed out, a ring
  u32 complete_begin_ = 0, num_complete_ = 0;
  u32 num_farewells_ = 0;  // heard, and not reported: arrivals may still lie in front of them
  std::vector<Arrival> stash_;
  std::size_t stash_taken_ = 0;
  bool receives_drained_ = true;
  Rounds rounds_;
  u32 next_probed_ = 0, probed_path_ = 0;
};

}  // namespace uccl

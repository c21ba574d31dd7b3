// A lane of libfabric: requests become RMA writes with CQ data, in pieces where the provider's messages are shorter;
// completions and arrivals come out of one queue. Everything a provider may refuse for now (EAGAIN) waits in a queue by
// peer, so that a peer that cannot be reached holds up nobody else.
#pragma once
#include <chrono>
#include <memory>
#include <vector>

#include "transport/judging_lane.h"
#include "transport/libfabric/endpoint.h"
#include "transport/libfabric/operations.h"

namespace uccl {

// How long who greets or says goodbye, and hears nothing, leaves its core to peers; a lane in use never sleeps.
inline constexpr auto kBetweenLooks = std::chrono::microseconds(20);

// What a lane must know of its provider and of itself.
struct LaneShape {
  u32 rank = 0, index = 0, num_ranks = 1, max_in_flight = 1;
  u64 session = 0;
  std::string secret;
  u64 max_piece = 0;  // bytes of one write to the provider
  bool ordered = false;  // the last piece may follow the others at once
  u32 transmit_entries = 0;
  SourceForm source_form = SourceForm::kTag;
  // A peer to which the provider takes no write for so long is lost. Providers that reconnect by themselves (tcp) and
  // those without connections (shm) never say that a peer's process has ended.
  u64 unreachable_ns = 30ull * 1000 * 1000 * 1000;
};

class LibfabricLane final : public JudgingLane {
 public:
  // `inbox` and `outbox` hold a slot per rank, registered with the port.
  LibfabricLane(const LaneShape& shape, std::unique_ptr<RmaPort> port, MailboxSlot* inbox, MailboxSlot* outbox);
  ~LibfabricLane() override;  // peers see kLost, code 0

  // Control path, in this order. A peer that was added may be greeted; one that is open exchanges.
  void add_peer(u32 peer, const LibfabricAddress::LaneAddress& address);
  u32 tag_for(u32 peer) const { return peers_[peer].tag_in; }  // what the peer has to put into its CQ data
  void set_tag(u32 peer, u32 tag) { peers_[peer].tag_out = tag; }
  void open(u32 peer) { book_.open(peer); }
  Greeting received(u32 peer, GreetingKind kind) const;  // from the inbox; may be torn or nobody's: look at its seal
  void send_record(u32 peer, const Greeting& greeting);  // sealed; only when none of its kind is on its way
  enum class Record { kIdle, kOnItsWay, kSent, kFailed };
  Record record(u32 peer, GreetingKind kind) const { return peers_[peer].records[static_cast<u32>(kind) - 1]; }
  int record_error(u32 peer) const { return peers_[peer].record_error; }
  void work();  // lets everything move; keeps what arrives however much it is

  void flush() override;
  std::size_t poll_completions(std::span<u64> wr_ids) override;
  std::size_t poll_arrivals(std::span<Arrival> out) override;  // moves everything
  std::size_t poll_events(std::span<PeerEvent> out) override;

 private:
  struct Peer {
    bool known = false;
    u64 destination = fi::kAddrUnspec;
    RemoteMemory mailbox;  // of the peer: our slot in it
    std::vector<RemoteMemory> spans;
    u32 tag_in = 0, tag_out = 0;
    u32 open = 0;  // requests taken and not yet handed to poll_completions' caller
    u64 arrived = 0, completed = 0;
    OperationQueue queue;
    Record records[3] = {};
    int record_error = 0;
    bool refused = false;  // the provider did not take its first queued write, since `refused_since`
    std::chrono::steady_clock::time_point refused_since;
    bool leaving = false;  // its goodbye is here; the last arrivals may not be
    std::chrono::steady_clock::time_point patience;
  };
  enum class Step { kGiven, kAgain, kWait };

  std::size_t take(std::span<const WriteRequest> requests) override;
  void part(u32 peer, u32 farewell) override;
  void pump();
  Step issue(Operation& o, bool more, int* error);
  int issue_piece(Operation& o, u64 bytes, bool last, bool more);
  std::size_t read(std::size_t most);
  bool gave_up(Peer& p);
  void settle(Operation& o, int error);
  void on_arrival(const RmaEvent& event);
  u32 sender_of(const RmaEvent& event) const;  // num_ranks: nobody
  void retire(Operation& o);
  void drop_queue(u32 peer);
  void fail(u32 peer, PeerFault fault, int code, bool tell);
  void say_goodbye(u32 peer, int code);
  void look_for_goodbyes();
  void look_for_goodbye(u32 peer);

  const LaneShape shape_;
  std::unique_ptr<RmaPort> port_;
  MailboxSlot *inbox_, *outbox_;
  OperationPool pool_;
  std::vector<Peer> peers_;
  std::vector<u32> rank_of_;  // by destination, where the provider reports it
  PeerRing waiting_;  // peers with something queued
  OperationQueue done_;  // completed requests whose wr_ids nobody has taken
  ArrivalBuffer arrivals_;
  u32 pieces_open_ = 0;
  u32 next_look_ = 0;  // the peer whose goodbye is looked for next
};

}  // namespace uccl

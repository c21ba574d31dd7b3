// A network in virtual time. One seed decides when each write's bytes land, when its immediate is seen and when its
// sender's completion comes; a write's bytes always land before its immediate, and nothing else is promised.
//
// One object for all ranks of a group, behind one mutex: lanes call in from any thread (the contract's tests), or one
// thread drives it (a simulation), and then the same calls give the same run. It may allocate while it runs, up to the
// most writes that were ever open: this family is for proofs, not for speed.
#pragma once
#include <mutex>
#include <span>
#include <vector>

#include "memory/address_space.h"
#include "transport/peer_book.h"
#include "transport/simulated/plan.h"
#include "transport/transport.h"

namespace uccl {

// What the network has done so far.
struct NetworkTotals {
  u64 writes = 0, arrivals = 0, completions = 0;
  u64 overtakes = 0;  // arrivals before an earlier write of the same (source, target, lane)
  u64 deepest = 0;    // most earlier writes of its (source, target, lane) that one arrival overtook
  u64 dropped = 0;    // writes that a fault or a closed peer swallowed
  u64 faults = 0;     // plans that have begun
  u64 lagging = 0;    // writes whose bytes were not visible yet when their immediate was polled
  u64 trace = 0x5eed;  // hash over everything that was delivered, in order
};

class SimulatedNetwork {
 public:
  explicit SimulatedNetwork(const NetworkSettings& settings);

  // ---- a lane's calls (lane.h); `self` is rank * num_lanes + lane --------------------------------------------------
  void open(u32 self, u32 peer);                       // control path: may exchange with `peer`
  void set_local(u32 self, const AddressSpace& local);  // where writes to this rank may land
  // Bytes that land below this offset, of any rank, lie in a GPU's memory: nobody sees them when their immediate is seen,
  // but after up to lag_ns, or at the next flush_device().
  void set_device(u64 bytes);
  void flush_device(u32 rank);  // what has landed there so far is visible to everybody
  std::size_t post(u32 self, std::span<const WriteRequest> requests);
  std::size_t poll_completions(u32 self, std::span<u64> wr_ids);
  std::size_t poll_arrivals(u32 self, std::span<Arrival> out);
  std::size_t poll_events(u32 self, std::span<PeerEvent> out);
  void close_peer(u32 self, u32 peer);
  void leave(u32 self);  // the lane ends: its peers are told, its memory is not touched again
  const LaneCounters& counters(u32 self) const { return ends_[self].counters; }

  // ---- a driver's calls --------------------------------------------------------------------------------------------
  static constexpr u64 kNever = ~0ull;
  u64 now_ns() const { return now_ns_; }
  const u64* clock() const { return &now_ns_; }
  u64 next_ns() const { return events_.empty() ? kNever : events_.front().at_ns; }  // of the next event
  void run_until(u64 at_ns);  // delivers everything that is due, and sets the clock
  bool has_news(u32 self) const;  // a poll of this lane would return something
  // Lanes that were given news since the last call, each once.
  const std::vector<u32>& news() const { return news_; }
  void clear_news();
  void end_all();  // the run is over: nothing is delivered or told any more
  bool dead(u32 rank) const { return dead_[rank]; }
  u64 undelivered(u32 rank) const {
    return undelivered_[rank];
  }  // of this rank: writes with bytes that have not arrived
  const NetworkTotals& totals() const { return totals_; }
  // Perturbed writes, in the order of posting, when `record` was called before.
  struct Recorded {
    u64 posted_ns, position;
    u32 source, target, lane, immediate, bucket;
    Perturbation what;
  };
  void record() { recording_ = true; }
  const std::vector<Recorded>& recorded() const { return recorded_; }

 private:
  enum class Stage : u8 { kData, kArrive, kComplete, kNotice, kFault, kVisible };
  struct Event {
    u64 at_ns, order;  // order breaks ties, so that a run does not depend on the heap
    u32 subject;  // a write, a fault, a notice, or hidden bytes
    Stage stage;
    bool after(const Event& o) const { return at_ns != o.at_ns ? at_ns > o.at_ns : order > o.order; }
  };
  struct Write {
    const u8* source;
    u64 remote_offset, bytes, wr_id, position, early_bytes, complete_ns;
    u32 from, to;  // ends
    u32 immediate;
    u32 events;  // still to come; the slot is free after the last
    bool dropped, arrived, early;
    std::vector<u8> kept;  // bytes read early
  };
  struct Notice {
    u32 end, peer;
    PeerFault fault;
    int code;
  };
  struct Hidden {  // bytes that have landed in a GPU's memory and that nobody sees yet
    u8* target;
    std::vector<u8> bytes;
    u32 rank;
    bool shown;
  };
  struct End {  // one lane of one rank
    AddressSpace local;
    PeerBook book;
    LaneCounters counters;
    std::vector<u32> open;  // by peer: writes posted and not yet handed back
    std::vector<Arrival> arrivals;  // ready
    std::vector<u64> wr_ids;  // ready, with the peer in token_peers
    std::vector<u32> token_peers;
    std::vector<u32> waiting_from;  // by peer: ready arrivals
    std::vector<Notice> notices;  // ends of peers, told once their arrivals have been polled
    bool gone = false, in_news = false, events_wait = false;
    explicit End(u32 num_ranks) : book(num_ranks), open(num_ranks), waiting_from(num_ranks) {}
  };
  struct Link {  // (source, target, lane)
    u64 latency_ns = 0, free_ns = 0;
    u64 last_arrival_ns = 0, last_completion_ns = 0;  // ordered profiles
    u64 posted = 0, in_order = 0;  // positions: the next one, and all below have arrived
    std::vector<u64> ahead;  // positions above that have arrived
  };

  u32 rank_of(u32 end) const { return end / settings_.num_lanes; }
  u32 end_of(u32 rank, u32 lane) const { return rank * settings_.num_lanes + lane; }
  Link& link(u32 from, u32 to) { return links_[static_cast<std::size_t>(from) * settings_.num_ranks + rank_of(to)]; }
  u8& cut(u32 source, u32 target) { return cut_[static_cast<std::size_t>(source) * settings_.num_ranks + target]; }
  u64 random();
  u64 below(u64 n) { return n == 0 ? 0 : random() % n; }
  Perturbation perturb(u64 key, u64 bytes) const;
  void launch(u32 self, const WriteRequest& request);
  u64 past_stalls(u32 source, u32 target, u64 at_ns) const;
  void push(u64 at_ns, Stage stage, u32 subject);
  void step();
  void land(Write& write, u64 begin, u64 end);
  void hide(const Write& write, u8* target, const u8* source, u64 bytes);
  void show(Hidden& hidden);
  void arrive(Write& write);
  void complete(Write& write);
  void count_order(const Write& write);
  void begin_fault(const FaultPlan& plan);
  void cut_off(u32 source, u32 target);
  void drop(u32 from, u32 to);
  void notify(u64 at_ns, const Notice& notice);
  void tell(u32 end);
  void fail(u32 self, u32 peer, PeerFault fault, int code, int farewell);
  void farewell(u32 self, u32 peer, int code);
  void drive();
  void trace(u64 a, u64 b);

  NetworkSettings settings_;
  u64 random_state_;
  u64 now_ns_ = 1'000'000;  // not 0, which words use for "never"
  u64 order_ = 0;
  std::vector<Event> events_;  // a heap
  std::vector<Write> writes_;
  std::vector<u32> free_;
  std::vector<Notice> notices_;
  u64 device_bytes_ = 0;
  std::vector<Hidden> hidden_;
  std::vector<u32> free_hidden_;
  std::vector<std::vector<u32>> hidden_of_;  // by rank, as they landed; some may have been shown since
  std::vector<End> ends_;
  std::vector<Link> links_;
  std::vector<u8> cut_, dead_;  // by (source, target), by rank
  std::vector<u64> undelivered_;
  std::vector<u32> news_;
  NetworkTotals totals_;
  std::vector<Recorded> recorded_;
  bool recording_ = false;
  std::mutex mutex_;
};

}  // namespace uccl

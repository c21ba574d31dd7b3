// Proves every queue pair both ways before connect() returns, and with it that the peer knows the group's secret.
//
//   lower rank                                 higher rank
//   writes its proof into the greeting area -> proof compared; a wrong one ends connect() with an error
//                                           <- writes its own proof: it has heard, and can be heard
//   done: heard, and its own write completed   done: its answer completed
//
// A proof (transport/proof.h) is of both ranks' nonces, which their addresses carry, and of who speaks to whom on which
// queue pair: one that was recorded proves nothing to another life of a rank, on another queue pair or the other way.
//
// Who speaks before the other side is there is not heard, and its NIC would repeat that seconds later only: its queue pair
// is made anew and speaks again, after 0.1 s, then 0.2 s and so on to 1.6 s. That loses nothing: the packet number begins
// where it began, so what had arrived already is recognised by the other NIC. It is done where neither side was heard:
// then the peer, which answers what it hears, has sent nothing. A NIC whose driver cannot use a queue pair again
// (can_be_reset) is left to repeat by itself.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "transport/verbs/lane.h"

namespace uccl {

// A NIC's greeting area: a slot a queue pair that peers write, and one that we write from.
class GreetingArea {
 public:
  // Throws std::runtime_error.
  GreetingArea(const VerbsNic& nic, u32 num_slots);
  ~GreetingArea();
  GreetingArea(const GreetingArea&) = delete;
  GreetingArea& operator=(const GreetingArea&) = delete;

  u64 base() const { return reinterpret_cast<u64>(bytes_); }
  u32 rkey() const { return mr_->rkey; }
  u32 lkey() const { return mr_->lkey; }
  bool has_heard(u32 slot, const Proof& expected) const {
    const u8* heard = bytes_ + static_cast<u64>(slot) * kGreetingBytes;
    return equal_in_constant_time({reinterpret_cast<const char*>(heard), kProofBytes}, bytes_of(expected));
  }
  u8* said(u32 slot) { return bytes_ + static_cast<u64>(num_slots_ + slot) * kGreetingBytes; }

 private:
  const VerbsNic& nic_;
  u32 num_slots_;
  std::vector<u8> storage_;
  u8* bytes_ = nullptr;
  ibv::Mr* mr_ = nullptr;
};

struct GreetingSetting {
  const TransportSettings& settings;
  std::chrono::nanoseconds first_patience;
  const Nonce& nonce;  // that this rank's address says
  const std::vector<std::unique_ptr<VerbsNic>>& nics;
  const std::vector<std::unique_ptr<GreetingArea>>& areas;
  const std::vector<std::unique_ptr<VerbsLane>>& lanes;
  const std::vector<std::unique_ptr<VerbsAddress>>& addresses;  // by rank; null: not reached by this transport
};

// Which NICs of two ranks belong together when their numbers differ: both ranks compute the same pairs.
struct NicPair {
  u32 mine, theirs;
};
std::vector<NicPair> pair_nics(u32 rank, u32 num_nics, u32 peer, u32 num_peer_nics);

class VerbsGreeting {
 public:
  explicit VerbsGreeting(const GreetingSetting& setting);
  // Opens every peer on every lane, or throws std::runtime_error naming the ranks and what happened.
  void run();
  u32 num_restarts() const { return num_restarts_; }  // queue pairs made anew because the peer was not there yet
  bool left_to_nics() const;  // whether some could not be made anew

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kMostPatience{1600};
  static constexpr u64 kTrialNs = 5'000'000'000;  // for a busy machine: a driver answers at once
  struct Link {
    u32 lane, queue;  // the lane's index
    u32 peer, number;  // which of the peer's queue pairs here: NIC pair and queue
    u32 slot, nic;
    VerbsPath path;
    u32 begin_receive_psn;
    Proof expected;
    bool spoken = false, arrived = false, heard = false, broken = false;
    bool interrupted = false;  // by us: whatever its greeting's completion says, the queue pair is of no use
    u32 after = 0;  // arrivals behind the greeting
    Clock::duration patience;
    Clock::time_point again{};  // when it is made anew if nothing was heard
    bool proven() const { return arrived && heard; }
    bool unheard() const { return spoken && !arrived && !heard && !broken && !interrupted; }
  };
  void make_links();
  Link make_link(u32 lane, u32 peer, const NicPair& nics, u32 q, u32 pair_idx);
  void speak(Link& link);
  void poll(u32 lane, u32 endpoint);
  int poll_receives(u32 lane, u32 endpoint);  // how many there were
  void sent(const Completion& c, u32 lane);
  void received(const Completion& c, u32 lane, u32 endpoint);
  bool can_restart(u32 nic);
  void interrupt_unheard();
  void restart_broken();
  void open_all();
  [[noreturn]] void give_up() const;
  Link* link_of(u32 lane, u32 queue) {
    return by_queue_[lane][queue] == ~0u ? nullptr : &links_[by_queue_[lane][queue]];
  }

  const GreetingSetting s_;
  std::vector<Link> links_;
  std::vector<std::vector<u32>> by_queue_;  // [lane][queue] -> link
  std::vector<std::string> reasons_;  // by rank
  enum class Reset { kUntried, kWorks, kFails };
  std::vector<Reset> resets_;  // by NIC
  u32 num_proven_ = 0, num_restarts_ = 0;
};

}  // namespace uccl

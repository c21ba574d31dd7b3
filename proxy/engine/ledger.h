// What one worker knows about each peer: how much is in flight, whether it is still talked to, and the counts that
// are not yet added to the shared PeerCounters. Private to the worker: the limits are per peer and lane, and per lane.
#pragma once
#include <vector>

#include "engine/settings.h"
#include "engine/verdict.h"

namespace uccl {

class PeerLedger {
 public:
  PeerLedger(const EngineSettings& settings, PeerCounters* shared);

  bool is_peer(u32 rank) const { return rank < peers_.size() && peers_[rank].is_peer; }
  bool has_peers() const;  // ever had
  bool gone(u32 peer) const { return peers_[peer].gone; }
  // Left out by kernels or Python, for the time being: they push nothing new for it.
  bool excluded(u32 peer) const { return peers_[peer].excluded; }
  void exclude(u32 peer, bool out) { peers_[peer].excluded = out; }
  u32 in_flight_to(u32 peer) const { return peers_[peer].in_flight; }

  // A write larger than a limit of bytes goes out alone; an immediate without bytes needs no bytes of room.
  bool has_room(u32 peer, u64 bytes) const {
    const Peer& p = peers_[peer];
    if (p.in_flight >= max_in_flight_) return false;
    return bytes == 0 || (fits(p.in_flight_bytes, bytes, max_in_flight_bytes_) &&
                          fits(in_flight_bytes_, bytes, max_in_flight_bytes_all_));
  }
  void opened(u32 peer, u64 bytes);
  void completed(u32 peer, u64 bytes);
  void stalled(u32 peer) { ++touch(peer).stalls; }
  void arrived(u32 peer) { ++touch(peer).arrivals; }
  // What an arrival that was applied says of its sender.
  void took(u32 peer, const Verdict& verdict) {
    Peer& p = touch(peer);
    p.arriving_ns += verdict.arriving_ns;
    p.parked += static_cast<u64>(verdict.parked);
  }

  // The peer is lost or dismissed: nothing of it is in flight any more.
  void forget(u32 peer);

  u64 in_flight() const { return in_flight_; }  // of all peers

  // Adds what has changed since the last call to the shared counters. `now_ns` stamps peers that were heard, and ends
  // or begins the time that writes are open.
  void publish(u64 now_ns);
  bool changed() const { return !dirty_.empty(); }

 private:
  struct Peer {
    bool is_peer = false, gone = false, excluded = false, dirty = false;
    u32 in_flight = 0;
    u64 in_flight_bytes = 0;
    u64 writes = 0, write_bytes = 0, arrivals = 0, stalls = 0, arriving_ns = 0;  // since the last publish
    u64 parked = 0;
    u32 published_in_flight = 0;
    u64 published_bytes = 0, published_parked = 0;
    u64 published_ns = 0;  // when
  };
  Peer& touch(u32 peer);
  static bool fits(u64 open, u64 bytes, u64 most) { return open == 0 || open + bytes <= most; }

  std::vector<Peer> peers_;
  std::vector<u32> dirty_;  // never more than one entry a peer: reserved once
  PeerCounters* shared_;
  u32 max_in_flight_;
  u64 max_in_flight_bytes_, max_in_flight_bytes_all_;
  u64 in_flight_ = 0, in_flight_bytes_ = 0;
};

}  // namespace uccl

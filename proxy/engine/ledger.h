// What one worker knows about each peer: how much is in flight, whether it is still talked to, and the counts that
// are not yet added to the shared PeerCounters. Private to the worker: the limits are per peer and lane.
#pragma once
#include <vector>

#include "engine/engine.h"

namespace uccl {

class PeerLedger {
 public:
  PeerLedger(const EngineSettings& settings, PeerCounters* shared);

  bool is_peer(u32 rank) const { return rank < peers_.size() && peers_[rank].is_peer; }
  bool gone(u32 peer) const { return peers_[peer].gone; }

  // A write larger than the byte limit goes out alone; an immediate without bytes needs no bytes of room.
  bool has_room(u32 peer, u64 bytes) const {
    const Peer& p = peers_[peer];
    if (p.in_flight >= max_in_flight_) return false;
    return bytes == 0 || p.in_flight_bytes == 0 || p.in_flight_bytes + bytes <= max_in_flight_bytes_;
  }
  void opened(u32 peer, u64 bytes);
  void completed(u32 peer, u64 bytes);
  void stalled(u32 peer) { ++touch(peer).stalls; }
  void arrived(u32 peer) {
    ++touch(peer).arrivals;
    heard_ = true;
  }

  // The peer is lost or dismissed: nothing of it is in flight any more.
  void forget(u32 peer);

  u64 in_flight() const { return in_flight_; }  // of all peers

  // Adds what has changed since the last call to the shared counters. `now_ns` stamps peers that were heard.
  void publish(u64 now_ns);
  bool changed() const { return !dirty_.empty(); }
  bool heard() const { return heard_; }  // an arrival waits for its stamp

 private:
  struct Peer {
    bool is_peer = false, gone = false, dirty = false;
    u32 in_flight = 0;
    u64 in_flight_bytes = 0;
    u64 writes = 0, write_bytes = 0, arrivals = 0, stalls = 0;  // since the last publish
    u32 published_in_flight = 0;
    u64 published_bytes = 0;
  };
  Peer& touch(u32 peer);

  std::vector<Peer> peers_;
  std::vector<u32> dirty_;  // never more than one entry a peer: reserved once
  PeerCounters* shared_;
  u32 max_in_flight_;
  u64 max_in_flight_bytes_;
  u64 in_flight_ = 0;
  bool heard_ = false;
};

}  // namespace uccl

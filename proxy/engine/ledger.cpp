// Counting what is in flight per peer, and adding it up for readers once a batch instead of once a write.
#include "engine/ledger.h"

#include <algorithm>

#include "engine/words.h"

namespace uccl {

PeerLedger::PeerLedger(const EngineSettings& settings, PeerCounters* shared)
    : peers_(settings.num_ranks),
      shared_(shared),
      max_in_flight_(settings.max_in_flight),
      max_in_flight_bytes_(settings.max_in_flight_bytes),
      max_in_flight_bytes_all_(settings.max_in_flight_bytes_all == 0 ? ~0ull : settings.max_in_flight_bytes_all) {
  dirty_.reserve(settings.num_ranks);
  for (u32 r = 0; r < settings.num_ranks; ++r) peers_[r].is_peer = r != settings.rank && settings.peer_bytes[r] != 0;
}

bool PeerLedger::has_peers() const {
  return std::any_of(peers_.begin(), peers_.end(), [](const Peer& p) { return p.is_peer; });
}

PeerLedger::Peer& PeerLedger::touch(u32 peer) {
  Peer& p = peers_[peer];
  if (!p.dirty) {
    p.dirty = true;
    dirty_.push_back(peer);
  }
  return p;
}

void PeerLedger::opened(u32 peer, u64 bytes) {
  ++in_flight_;
  in_flight_bytes_ += bytes;
  Peer& p = touch(peer);
  ++p.in_flight;
  p.in_flight_bytes += bytes;
  ++p.writes;
  p.write_bytes += bytes;
}

void PeerLedger::completed(u32 peer, u64 bytes) {
  --in_flight_;
  in_flight_bytes_ -= bytes;
  Peer& p = touch(peer);
  --p.in_flight;
  p.in_flight_bytes -= bytes;
}

void PeerLedger::forget(u32 peer) {
  Peer& p = touch(peer);
  in_flight_ -= p.in_flight;
  in_flight_bytes_ -= p.in_flight_bytes;
  p.in_flight = 0;
  p.in_flight_bytes = 0;
  p.parked = 0;
  p.gone = true;
}

void PeerLedger::publish(u64 now_ns) {
  for (const u32 peer : dirty_) {
    Peer& p = peers_[peer];
    PeerCounters& out = shared_[peer];
    if (p.writes) add_shared(out.writes, p.writes);
    if (p.write_bytes) add_shared(out.write_bytes, p.write_bytes);
    if (p.stalls) add_shared(out.stalls, p.stalls);
    if (p.arrivals) {
      add_shared(out.arrivals, p.arrivals);
      write_word(out.last_arrival_ns, now_ns);
    }
    if (p.arriving_ns) add_shared(out.arriving_ns, p.arriving_ns);
    if (p.published_in_flight) add_shared(out.sending_ns, now_ns - p.published_ns);  // open then, and until now
    // Differences wrap: adding 2^64 - 1 is taking one away.
    if (p.in_flight != p.published_in_flight) add_shared(out.in_flight, u64{p.in_flight} - p.published_in_flight);
    if (p.in_flight_bytes != p.published_bytes) add_shared(out.in_flight_bytes, p.in_flight_bytes - p.published_bytes);
    if (p.parked != p.published_parked) add_shared(out.parked, p.parked - p.published_parked);
    p.published_in_flight = p.in_flight;
    p.published_bytes = p.in_flight_bytes;
    p.published_parked = p.parked;
    p.published_ns = now_ns;
    p.writes = p.write_bytes = p.arrivals = p.stalls = p.arriving_ns = 0;
    p.dirty = false;
  }
  dirty_.clear();
}

}  // namespace uccl

// The private members of the engine's classes, for complete states: read, copied out and copied back by tests that
// explore, without a line about it in the product. (Access checks do not apply to explicit instantiations, so a
// pointer to a private member may leave through one.)
#pragma once
#include "engine/arrivals.h"
#include "engine/poster.h"
#include "engine/sequences.h"
#include "exhaustive/explore.h"

namespace uccl::testing {

template <class Name, auto Member>
struct Reveal {
  friend constexpr auto reveal(Name) { return Member; }
};
#define UCCL_REVEAL(Name, Class, member) \
  struct Name {                          \
    friend constexpr auto reveal(Name);  \
  };                                     \
  template struct Reveal<Name, &Class::member>

UCCL_REVEAL(ArrivalsCounters, Arrivals, counters_);
UCCL_REVEAL(SequenceStreams, Sequences, streams_);
UCCL_REVEAL(GateStreams, CreditGate, streams_);
UCCL_REVEAL(LedgerPeers, PeerLedger, peers_);
UCCL_REVEAL(BarrierHeard, Barrier, heard_);
UCCL_REVEAL(BarrierPublished, Barrier, published_);
UCCL_REVEAL(BarrierRound, Barrier, round_);
UCCL_REVEAL(BarrierNextSend, Barrier, next_send_);
UCCL_REVEAL(BarrierNextWait, Barrier, next_wait_);
UCCL_REVEAL(PosterRings, Poster, rings_);
UCCL_REVEAL(PosterGate, Poster, credit_gate_);
UCCL_REVEAL(PosterFirst, Poster, first_);
#undef UCCL_REVEAL

template <class Name, class T>
auto& private_of(T& object) {
  return object.*reveal(Name{});
}

// A vector of structs without padding, as bytes.
template <class V>
void put_vector(Bytes& out, const V& v) {
  put_bytes(out, v.data(), v.size() * sizeof(v[0]));
}

inline void put_gate(Bytes& out, CreditGate& gate) {
  for (const auto& s : private_of<GateStreams>(gate)) {
    put(out, s.open);
    put(out, s.settled);
    put(out, s.newest);
  }
}

// What of a ledger decides (in flight, gone); sums for readers are left out.
inline void put_ledger(Bytes& out, PeerLedger& ledger) {
  for (const auto& p : private_of<LedgerPeers>(ledger)) {
    put(out, static_cast<u32>(p.gone));
    put(out, p.in_flight);
    put(out, p.in_flight_bytes);
  }
}

inline void put_barrier(Bytes& out, Barrier& barrier) {
  put_vector(out, private_of<BarrierHeard>(barrier));
  put(out, private_of<BarrierPublished>(barrier));
  put(out, private_of<BarrierRound>(barrier));
  put(out, private_of<BarrierNextSend>(barrier));
  put(out, private_of<BarrierNextWait>(barrier));
  put(out, static_cast<u32>(barrier.active()));
}

inline void put_poster(Bytes& out, Poster& poster) {
  for (const auto& ring : private_of<PosterRings>(poster)) {
    put(out, ring.consumer.next_ticket());
    put(out, ring.done);
    put(out, ring.published_done);
    for (const auto& slot : ring.slots) put(out, slot.ticket * 4 + static_cast<u32>(slot.state));
    put(out, ring.staged_end - ring.staged_begin);
    for (u32 i = ring.staged_begin; i < ring.staged_end; ++i) put(out, ring.staged[i].wr_id);
  }
  put_gate(out, private_of<PosterGate>(poster));
  put(out, private_of<PosterFirst>(poster));
}

}  // namespace uccl::testing

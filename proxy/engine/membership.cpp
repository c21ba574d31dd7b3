// Lost and dismissed peers: who is told, and whether it is a fault.
#include "engine/membership.h"

#include "engine/words.h"
#include "transport/transport.h"

namespace uccl {
namespace {

FaultKind kind_of_fault(PeerFault fault) {
  switch (fault) {
    case PeerFault::kProtocol: return FaultKind::kBadArrival;
    case PeerFault::kNetwork: return FaultKind::kTransport;
    default: return FaultKind::kPeerLost;
  }
}

}  // namespace

Membership::Membership(u32 num_ranks, PeerCounters* peers, Faults& faults)
    : num_ranks_(num_ranks), peers_(peers), faults_(faults), states_(new std::atomic<u8>[num_ranks]) {
  for (u32 r = 0; r < num_ranks; ++r) states_[r].store(0, std::memory_order_relaxed);
}

void Membership::lose(u32 peer, PeerFault fault, int code) noexcept {
  if (peer >= num_ranks_) return;
  const u8 before = states_[peer].fetch_or(kLost, std::memory_order_acq_rel);
  if (before & kLost) return;
  if (!(before & kDismissed)) {
    write_word(peers_[peer].lost, 1);  // before the fault, so whoever sees the fault sees the mask
    faults_.raise({.kind = kind_of_fault(fault), .peer = peer, .seen = static_cast<u64>(code)});
  }
  changed();
}

void Membership::dismiss(u32 peer) noexcept {
  if (peer >= num_ranks_) return;
  states_[peer].fetch_or(kDismissed, std::memory_order_acq_rel);
  changed();
}

}  // namespace uccl

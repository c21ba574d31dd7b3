// Telling a goodbye from a loss.
#include "engine/departures.h"

#include "engine/words.h"
#include "transport/transport.h"

namespace uccl {

// Acquire: pairs with the release of the peer that wrote the word, or of the worker that heard its goodbye.
bool Departures::said(u32 peer) const {
  return std::atomic_ref<u64>(control_word(control_, layout_.departed(peer))).load(std::memory_order_acquire) != 0;
}

bool Departures::connection_ended(u32 peer, PeerFault fault, int code) noexcept {
  if (peer >= layout_.num_ranks || fault != PeerFault::kLost) return false;
  if (code != 0 && !said(peer)) return false;
  lost(peer);
  return true;
}

void Departures::lost(u32 peer) noexcept {
  if (peer >= layout_.num_ranks) return;
  raise_word(control_, layout_.departed(peer), Departed::kLeft);
  raise_word(control_, ControlLayout::kSomeDeparted, 1);
}

void Departures::silent(u32 peer) noexcept {
  std::atomic_ref<u64> word(control_word(control_, layout_.departed(peer)));
  // Release: pairs with the acquire of the waits that look at it.
  if (word.load(std::memory_order_relaxed) >= Departed::kLeft)
    word.fetch_or(Departed::kSilent, std::memory_order_release);
}

// Its connections are left to the lanes: they may hold arrivals that have not been applied.
bool Departures::process_ended(u32 peer) noexcept {
  if (peer >= layout_.num_ranks || !said(peer)) return false;
  lost(peer);
  return true;
}

}  // namespace uccl

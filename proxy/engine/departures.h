// Goodbyes: a peer that has said it leaves is no fault when it ends. A peer on this host writes its `departed` word
// here itself; for any other the transport tells (an end with code 0), and the word is written by the worker.
#pragma once
#include "wire/control.h"

namespace uccl {

enum class PeerFault : u32;  // transport/transport.h

// Values of ControlLayout::departed.
inline constexpr u64 kLeaving = 1;  // it is about to end; what it sent may still be on its way
inline constexpr u64 kLeft = 2;     // what it sent has been delivered: nothing more will come
// 3 (uccl_ep/membership/neighbours.py): a rank of this host has voted to go on without this one, for which that is a kLeft

class Departures {
 public:
  Departures(u8* control, const ControlLayout& layout) : control_(control), layout_(layout) {}

  // A lane lost its peer; `fault` and `code` are the transport's. True when the peer had said goodbye.
  bool connection_ended(u32 peer, PeerFault fault, int code) noexcept;
  // The peer is lost and that is no fault (EngineSettings::losses_are_absences): nothing more will come from it.
  void lost(u32 peer) noexcept;
  // The peer's process has ended, as a kernel says. True when it had said goodbye.
  bool process_ended(u32 peer) noexcept;

 private:
  bool said(u32 peer) const;

  u8* control_;
  ControlLayout layout_;
};

}  // namespace uccl

// Goodbyes: a peer that has said it leaves is no fault when it ends. A peer on this host writes its `departed` word
// here itself; for any other the transport tells (an end with code 0), and the word is written by the worker.
#pragma once
#include "wire/control.h"

namespace uccl {

enum class PeerFault : u32;  // transport/transport.h

class Departures {
 public:
  Departures(u8* control, const ControlLayout& layout) : control_(control), layout_(layout) {}

  // A lane lost its peer; `fault` and `code` are the transport's. True when the peer had said goodbye.
  bool connection_ended(u32 peer, PeerFault fault, int code) noexcept;
  // The peer is lost and that is no fault (EngineSettings::losses_are_absences): nothing more will come from it.
  void lost(u32 peer) noexcept;
  // A rank of this node is gone. What it wrote is in memory, so if it has left, waits for it need no grace. (What one of
  // another node sent may have come to another rank of this node, whose proxy has yet to apply it.)
  void silent(u32 peer) noexcept;
  // The peer's process has ended, as a kernel says. True when it had said goodbye.
  bool process_ended(u32 peer) noexcept;

 private:
  bool said(u32 peer) const;

  u8* control_;
  ControlLayout layout_;
};

}  // namespace uccl

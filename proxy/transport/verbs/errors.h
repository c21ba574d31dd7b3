// Verbs' ways to fail, as codes of a PeerEvent and in words that say what they usually mean.
#pragma once
#include <string>

#include "transport/transport.h"
#include "transport/verbs/abi.h"

namespace uccl {

// A PeerEvent's code: 0, an errno, or one of these.
inline constexpr int kVerbsStatus = 0x10000;  // | ibv_wc_status
inline constexpr int kVerbsEvent = 0x10100;   // | ibv_event_type, of the NIC itself
inline constexpr int kVerbsFlush = 0x10200;   // | ibv_wc_status of a read of our own GPU's memory (flush.h)

// What a failed completion says about the peer.
PeerFault verbs_fault(u32 status);
// "transport retry counter exceeded (...)"; the errno's text below kVerbsStatus; "" for 0.
std::string verbs_explain(int code);
// The errno's text and number: "Cannot allocate memory (errno 12)".
std::string verbs_errno(int error);

}  // namespace uccl

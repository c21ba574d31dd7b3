// Every completion status and the asynchronous events that end something, in words.
#include "transport/verbs/errors.h"

#include <cstring>

namespace uccl {
namespace {

struct Words {
  const char* what;
  const char* usually;
  PeerFault fault;
};

constexpr PeerFault kLost = PeerFault::kLost;
constexpr PeerFault kProtocol = PeerFault::kProtocol;
constexpr PeerFault kNetwork = PeerFault::kNetwork;

// By ibv_wc_status.
constexpr Words kStatus[] = {
    {"success", "nothing failed", kNetwork},
    {"local length error", "a write larger than the port's largest message, or a receive too small", kProtocol},
    {"local queue pair operation error", "a malformed work request, or a queue pair in the wrong state", kProtocol},
    {"local EE context operation error", "only reliable datagrams have it: the driver is confused", kNetwork},
    {"local protection error", "the source lies outside registered memory, or its registration has ended", kProtocol},
    {"work request flushed", "the queue pair failed before; the other side's first error says why", kLost},
    {"memory window bind error", "not used here: the driver is confused", kNetwork},
    {"bad response", "the peer answered what its state does not allow; one side was restarted?", kNetwork},
    {"local access error", "the peer wrote to memory of ours that is not registered for it", kProtocol},
    {"remote invalid request", "the peer's NIC refused the request: message too long, or remote writes not allowed",
     kProtocol},
    {"remote access error",
     "a stale or foreign rkey, or an address outside the peer's registration: the peer was "
     "restarted, or its memory was freed",
     kProtocol},
    {"remote operation error", "the peer's NIC could not carry the request out; see its host's kernel log", kNetwork},
    {"transport retry counter exceeded",
     "the peer's process or host is gone, its link or a switch is down, or the "
     "path's GID, VLAN or MTU is wrong",
     kLost},
    {"receiver-not-ready retries exceeded", "the peer's process is stopped and no longer posts receives", kLost},
    {"local RDD violation", "only reliable datagrams have it: the driver is confused", kNetwork},
    {"remote invalid read request", "not used here: the driver is confused", kNetwork},
    {"remote aborted", "the peer's queue pair was moved to the error state", kLost},
    {"invalid EE context number", "only reliable datagrams have it: the driver is confused", kNetwork},
    {"invalid EE context state", "only reliable datagrams have it: the driver is confused", kNetwork},
    {"fatal error", "the NIC or its driver failed; see this host's kernel log", kNetwork},
    {"response timeout", "the peer's NIC did not answer in time: its host is stuck or gone", kLost},
    {"general error", "the NIC gives no detail; see this host's kernel log", kNetwork},
    {"tag matching error", "not used here: the driver is confused", kNetwork},
    {"tag matching rendezvous incomplete", "not used here: the driver is confused", kNetwork},
};
static_assert(sizeof(kStatus) / sizeof(kStatus[0]) == ibv::kWcTmRndvIncomplete + 1, "every status has its words");

std::string event_words(u32 event) {
  switch (event) {
    case ibv::kEventDeviceFatal: return "this rank's NIC failed or was removed; see this host's kernel log";
    case ibv::kEventPortErr: return "this rank's NIC has lost its link; look at the cable, the switch port, `ip link`";
    case ibv::kEventCqErr: return "a completion queue overflowed or its memory failed; a bug here or in the driver";
    case ibv::kEventSrqErr: return "a shared receive queue failed; see this host's kernel log";
    case ibv::kEventQpFatal: return "a queue pair failed in the NIC; see this host's kernel log";
    default: return "asynchronous event " + std::to_string(event) + " of this rank's NIC";
  }
}

}  // namespace

PeerFault verbs_fault(u32 status) { return status <= ibv::kWcTmRndvIncomplete ? kStatus[status].fault : kNetwork; }

std::string verbs_errno(int error) {
  return std::string(std::strerror(error)) + " (errno " + std::to_string(error) + ")";
}

std::string verbs_explain(int code) {
  if (code == 0) return "";
  if (code < kVerbsStatus) return verbs_errno(code);
  if (code >= kVerbsFlush)
    return "this rank's NIC could not read its GPU's memory, which makes visible what was written there: " +
           verbs_explain(code - kVerbsFlush + kVerbsStatus);
  if (code >= kVerbsEvent) return event_words(static_cast<u32>(code - kVerbsEvent));
  const u32 status = static_cast<u32>(code - kVerbsStatus);
  if (status > ibv::kWcTmRndvIncomplete) return "completion status " + std::to_string(status) + ", unknown here";
  return std::string(kStatus[status].what) + " (ibv_wc_status " + std::to_string(status) +
         "); usually: " + kStatus[status].usually;
}

}  // namespace uccl

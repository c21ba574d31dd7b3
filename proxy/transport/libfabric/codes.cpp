// The table of libfabric's error numbers (FI_EOTHER = 256 and up) and of those errno that mean something special here.
#include "transport/libfabric/codes.h"

#include <array>
#include <cerrno>
#include <cstring>

namespace uccl {
namespace {

struct Meaning {
  int code;
  const char* text;
};

constexpr std::array kMeanings = {
    Meaning{256, "unspecified error of the provider (its log says more: FI_LOG_LEVEL=warn)"},
    Meaning{257, "a buffer was too small for the provider"},
    Meaning{258, "not permitted in the endpoint's state"},
    Meaning{259, "an error entry was expected and not there"},
    Meaning{260, "the provider does not know a flag that it said it does"},
    Meaning{261, "no event queue"},
    Meaning{262, "memory or endpoint of another domain"},
    Meaning{263, "no completion queue"},
    Meaning{264, "checksum error on the way"},
    Meaning{265, "more data than room"},
    Meaning{266, "the peer's memory key is not valid: its buffer was freed, or it is another life of that process"},
    Meaning{267, "no address vector"},
    Meaning{268, "a completion queue ran over"},
    Meaning{269, "the receiver was not ready"},
    Meaning{EACCES, "the peer's memory does not allow this write"},
    Meaning{EKEYREJECTED, "the peer's memory key was rejected"},
    Meaning{ECONNREFUSED, "the peer's process has ended, or it listens on another interface"},
    Meaning{ECONNRESET, "the peer's process has ended"},
    Meaning{ECONNABORTED, "the peer's process has ended"},
    Meaning{ECANCELED, "the connection to the peer ended before the write did"},
    Meaning{ENOTCONN, "the connection to the peer is gone"},
    Meaning{EIO, "the network gave up on a write"},
    Meaning{ETIMEDOUT, "the peer or the network between did not answer"},
    Meaning{EHOSTUNREACH, "no route to the peer"},
    Meaning{EFAULT, "a write's source is in no registered memory"},
    Meaning{EMSGSIZE, "the write is longer than allowed"},
    Meaning{ERANGE, "the write does not lie in the peer's memory"},
    Meaning{EPROTO, "the peer refused something that was sent to it, or saw an impossible request"},
};

}  // namespace

std::string libfabric_code_text(int code) {
  if (code == 0) return "";
  std::string text = code < 256 ? std::strerror(code) : "libfabric error " + std::to_string(code);
  for (const Meaning& m : kMeanings) {
    if (m.code == code) return text + ": " + m.text;
  }
  return text;
}

PeerFault libfabric_fault_of(int code) {
  switch (code) {
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case ECANCELED:
    case ENOTCONN:
    case EPIPE:
    case ESHUTDOWN:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ETIMEDOUT: return PeerFault::kLost;
    default: return PeerFault::kNetwork;
  }
}

}  // namespace uccl

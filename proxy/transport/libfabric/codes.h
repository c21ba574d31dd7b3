// libfabric's error numbers in words: errno below 256, its own above.
#pragma once
#include <string>

#include "transport/transport.h"

namespace uccl {

// What happened and what it usually means; "" for 0. Never asks the library, which may be absent where this is shown.
std::string libfabric_code_text(int code);
// What an error of a write says about its peer.
PeerFault libfabric_fault_of(int code);

}  // namespace uccl

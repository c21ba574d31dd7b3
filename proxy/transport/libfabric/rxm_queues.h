// ofi_rxm over a NIC with short completion queues.
//
// The provider "verbs;ofi_rxm" puts all connections of an endpoint on one completion queue, which it makes for
// FI_UNIVERSE_SIZE (256) peers with FI_OFI_RXM_MSG_TX_SIZE + FI_OFI_RXM_MSG_RX_SIZE work requests each, whatever the
// device allows and however few ranks there are. Where that is more than the device's limit (soft-RoCE: 32,767) no
// endpoint can be enabled. libfabric reads the three from the environment when it is first asked for a provider, and
// can be told in no other way.
#pragma once
#include <string>
#include <vector>

#include "transport/transport.h"
#include "transport/verbs/library.h"

namespace uccl {

struct RxmQueues {
  u32 universe = 0;  // peers of an endpoint; 0: libfabric's own sizes fit the device
  u32 entries = 0;   // work requests of a connection, each way
};

// For a device whose completion queues hold `max_cqe` entries; 0: not known, so libfabric's own are left.
RxmQueues rxm_queues(u32 num_ranks, u64 max_cqe);

// The least of what the named devices allow in a completion queue, of all devices when none is named; 0: none said.
u64 shortest_completion_queue(const ibv::Functions& functions, const std::vector<NicSettings>& nics);

// Whether a provider of this name runs on ofi_rxm over verbs.
bool is_rxm_over_verbs(const std::string& provider);

// Sets what fits into this process's environment, except what is set there already; what was set, as notes. Control
// path, before libfabric is asked for its first provider: later it has no effect.
std::vector<Note> fit_rxm_queues(const ibv::Functions& functions, const TransportSettings& settings);

}  // namespace uccl

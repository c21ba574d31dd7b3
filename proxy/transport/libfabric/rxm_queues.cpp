// Sizes of ofi_rxm's queues from the device's limit and the number of ranks, and how libfabric is told of them.
#include "transport/libfabric/rxm_queues.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

namespace uccl {
namespace {

// The most that libfabric's own sizes come to: 256 peers, and the 384 work requests each way that its verbs provider has
// by default (ofi_rxm alone: 128).
constexpr u64 kOwnEntries = 256ull * 2 * 384;
constexpr u32 kMostEntries = 128;  // of a connection, each way: ofi_rxm's own
constexpr u32 kLeastEntries = 16;  // fewer, and senders wait for receives most of the time
// A peer that comes back is connected anew before its old connection is gone.
constexpr u32 kLeastUniverse = 16;

std::string text(u64 value) { return std::to_string(value); }

}  // namespace

RxmQueues rxm_queues(u32 num_ranks, u64 max_cqe) {
  if (max_cqe == 0 || max_cqe >= kOwnEntries) return {};
  RxmQueues q;
  q.universe = std::max(num_ranks, kLeastUniverse);
  const u64 fit = std::bit_floor(max_cqe / (2ull * q.universe));
  q.entries = static_cast<u32>(std::clamp<u64>(fit, kLeastEntries, kMostEntries));
  return q;
}

u64 shortest_completion_queue(const ibv::Functions& functions, const std::vector<NicSettings>& nics) {
  const auto wanted = [&](const std::string& name) {
    return nics.empty() ||
           std::any_of(nics.begin(), nics.end(), [&](const NicSettings& n) { return n.device == name; });
  };
  int count = 0;
  ibv::Device** list = functions.get_device_list(&count);
  u64 least = 0;
  for (int i = 0; list != nullptr && i < count; ++i) {
    if (!wanted(functions.get_device_name(list[i]))) continue;
    ibv::Context* context = functions.open_device(list[i]);
    if (context == nullptr) continue;  // libfabric will say so
    ibv::DeviceAttr limits{};
    if (functions.query_device(context, &limits) == 0 && limits.max_cqe > 0) {
      const u64 allowed = static_cast<u64>(limits.max_cqe);
      least = least == 0 ? allowed : std::min(least, allowed);
    }
    functions.close_device(context);
  }
  if (list != nullptr) functions.free_device_list(list);
  return least;
}

bool is_rxm_over_verbs(const std::string& provider) { return provider == "verbs" || provider == "verbs;ofi_rxm"; }

std::vector<Note> fit_rxm_queues(const ibv::Functions& functions, const TransportSettings& settings) {
  const u64 allowed = shortest_completion_queue(functions, settings.fabric.nics);
  const RxmQueues q = rxm_queues(settings.num_ranks, allowed);
  if (q.universe == 0) return {};
  std::string set;
  const auto put = [&](const char* name, u32 value) {
    if (std::getenv(name) != nullptr) return;  // whoever set it knows better
    setenv(name, text(value).c_str(), 0);
    set += (set.empty() ? "" : ", ") + std::string(name) + "=" + text(value);
  };
  put("FI_UNIVERSE_SIZE", q.universe);
  put("FI_OFI_RXM_MSG_TX_SIZE", q.entries);
  put("FI_OFI_RXM_MSG_RX_SIZE", q.entries);
  if (set.empty()) return {};
  return {{set, "completion queues of the device hold " + text(allowed) +
                    " entries, and ofi_rxm makes one of (TX + RX) * UNIVERSE for each lane"}};
}

}  // namespace uccl

// The families, by name.
#include <cstring>
#include <stdexcept>

#include "transport/efa/transport.h"
#include "transport/libfabric/codes.h"
#include "transport/libfabric/transport.h"
#include "transport/loopback/transport.h"
#include "transport/shared_memory/transport.h"
#include "transport/simulated/transport.h"
#include "transport/tcp/transport.h"
#include "transport/transport.h"
#include "transport/verbs/errors.h"
#include "transport/verbs/transport.h"
#include "wire/limits.h"

namespace uccl {
namespace {

constexpr u32 kMaxLanes = 256;
constexpr u32 kMaxInFlight = 1u << 16;  // keeps every queue's size and every 32-bit acknowledgement unambiguous

void demand(bool ok, const std::string& what) {
  if (!ok) throw std::invalid_argument("transport settings: " + what);
}

void validate(const TransportSettings& s) {
  demand(s.num_ranks >= 1 && s.num_ranks <= kMaxRanks,
         "num_ranks is " + std::to_string(s.num_ranks) + ", allowed are 1 to " + std::to_string(kMaxRanks));
  demand(s.rank < s.num_ranks, "rank " + std::to_string(s.rank) + " of " + std::to_string(s.num_ranks));
  demand(s.num_lanes >= 1 && s.num_lanes <= kMaxLanes,
         "num_lanes is " + std::to_string(s.num_lanes) + ", allowed are 1 to " + std::to_string(kMaxLanes));
  demand(s.max_in_flight >= 1 && s.max_in_flight <= kMaxInFlight,
         "max_in_flight is " + std::to_string(s.max_in_flight) + ", allowed are 1 to " + std::to_string(kMaxInFlight));
}

}  // namespace

std::unique_ptr<Transport> make_transport(const std::string& family, const TransportSettings& settings) {
  validate(settings);
  if (family == "loopback") return std::make_unique<LoopbackTransport>(settings);
  if (family == "shared_memory") return std::make_unique<SharedMemoryTransport>(settings);
  if (family == "simulated") return std::make_unique<SimulatedTransport>(settings);
  if (family == "tcp") return std::make_unique<TcpTransport>(settings);
  if (family == "libfabric") return std::make_unique<LibfabricTransport>(settings);
  if (family == "efa") return std::make_unique<EfaTransport>(settings);
  if (family == "verbs") return std::make_unique<VerbsTransport>(settings);
  throw std::invalid_argument("no transport family '" + family +
                              "'; there are: efa, libfabric, loopback, shared_memory, simulated, tcp, verbs");
}

std::string explain_code(const std::string& family, int code_of_nic, const std::vector<std::string>& nics) {
  const int code = without_nic(code_of_nic);
  const u32 nic = code == code_of_nic ? 0 : static_cast<u32>(code_of_nic >> kNicShift);
  if (nic != 0) return (nic <= nics.size() ? nics[nic - 1] + ": " : "") + explain_code(family, code);
  if (code >= kFlushFailed) {
    return "the GPU's driver could not make visible what NICs have written: its error " +
           std::to_string(code - kFlushFailed) + "; has the GPU failed, or its context ended?";
  }
  if (family == "libfabric") return libfabric_code_text(code);
  if (family == "verbs" || family == "efa") return verbs_explain(code);
  return code == 0 ? "" : std::strerror(code);
}

}  // namespace uccl

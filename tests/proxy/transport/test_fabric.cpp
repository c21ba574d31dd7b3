// The defaults that hold when nothing is said: one queue pair, retries that end, relaxed ordering.
#include "native/check.h"
#include "transport/fabric.h"

using namespace uccl;

TEST(transport_fabric_defaults) {
  const FabricSettings f;
  CHECK(f.nics.empty());
  CHECK_EQ(f.queue_pairs, 1u);
  CHECK(f.retries < 7);  // which means for ever on some devices
  // 4.096 us * 2^14, for the first try and every retry: a dead peer is noticed within a second.
  CHECK((1ull << f.timeout) * 4096 * (f.retries + 1) < 1'000'000'000ull);
  CHECK(f.relaxed_ordering);
  CHECK_EQ(f.mtu + f.udp_source_port + f.service_level + f.traffic_class, 0u);
  const NicSettings n;
  CHECK_EQ(n.port, 1u);
  CHECK_EQ(n.gid_index, -1);
}

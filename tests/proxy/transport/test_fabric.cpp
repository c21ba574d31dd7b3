// The defaults that hold when nothing is said: one queue pair, the field's patience, relaxed ordering.
#include "native/check.h"
#include "transport/fabric.h"

using namespace uccl;

TEST(transport_fabric_defaults) {
  const FabricSettings f;
  CHECK(f.nics.empty());
  CHECK_EQ(f.queue_pairs, 1u);
  // NCCL's. A link that is gone for 20 s is survived, on soft-RoCE with 6 retries too; a dead peer is lost within a minute.
  CHECK_EQ(f.timeout, 20u);
  CHECK_EQ(f.retries, 7u);
  const u64 period_ns = 4096ull << f.timeout;
  CHECK(6 * period_ns > 20'000'000'000ull && 8 * period_ns < 60'000'000'000ull);
  CHECK(f.relaxed_ordering);
  CHECK_EQ(f.mtu + f.udp_source_port + f.service_level + f.traffic_class, 0u);
  const NicSettings n;
  CHECK_EQ(n.port, 1u);
  CHECK_EQ(n.gid_index, -1);
}

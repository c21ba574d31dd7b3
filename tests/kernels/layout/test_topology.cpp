// Hosts and hosted slots of every topology: one place for each remote source, no two sources in one place.
#include <set>

#include "bindings/rank_tables.h"
#include "kernels/layout/topology.h"
#include "kernels/values.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

std::unique_ptr<RankTables> tables_of(const std::vector<u32>& node_of, u32 rank) {
  RankTablesSettings s;
  s.node_of = node_of;
  s.rank = rank;
  s.num_rings = 0;
  for (const u32 n : node_of)
    if (n == node_of[rank]) {
      s.data.push_back(0);
      s.control.push_back(0);
    }
  return std::make_unique<RankTables>(s);
}

void check_hosts(const std::vector<u32>& node_of, u32 me) {
  const auto tables = tables_of(node_of, me);
  const TopologyView& t = tables->context().topology;
  CHECK_EQ(t.rank, me);
  CHECK_EQ(t.node, node_of[me]);
  CHECK_EQ(t.member(t.node, t.local), me);
  u32 seen = 0;
  for (u32 n = 0; n < t.num_nodes; ++n) {
    std::set<std::pair<u32, u32>> places;
    u32 last = 0;
    for (u32 i = 0; i < t.size_of(n); ++i, ++seen) {
      const u32 rank = t.member(n, i);
      CHECK(node_of[rank] == n && t.local_of[rank] == i && (i == 0 || rank > last));
      last = rank;
    }
    for (u32 source = 0; source < t.num_ranks; ++source) {
      const u32 host = t.host_of(source, n);
      CHECK_EQ(node_of[host], n);
      CHECK_EQ(t.is_local(source), node_of[source] == node_of[me]);
      if (node_of[source] == n) {
        CHECK_EQ(host, source);
        continue;
      }
      const u32 slot = t.hosted_slot(source, n);
      CHECK(slot < t.num_hosted());
      CHECK(places.insert({host, slot}).second);
    }
  }
  CHECK_EQ(seen, t.num_ranks);
}

}  // namespace

TEST(layout_topology_every_source_has_its_own_place) {
  for (const auto& node_of : std::vector<std::vector<u32>>{
           {0}, {0, 0}, {0, 1}, {0, 0, 1}, {0, 1, 1, 1}, {0, 1, 0, 1, 2}, {0, 0, 0, 0, 0, 1, 1, 2}})
    for (u32 me = 0; me < node_of.size(); ++me) check_hosts(node_of, me);
}

TEST(layout_topology_random_nodes) {
  for (u64 seed = 0; seed < 30; ++seed) {
    const u32 nodes = 1 + static_cast<u32>(mix(seed) % 6);
    std::vector<u32> node_of;
    for (u32 n = 0; n < nodes; ++n) node_of.push_back(n);  // numbered by their lowest rank
    for (u32 i = 0; i < 20; ++i) node_of.push_back(static_cast<u32>(mix(seed << 20 ^ i) % nodes));
    check_hosts(node_of, static_cast<u32>(mix(seed + 99) % node_of.size()));
  }
}

TEST(layout_topology_of_4096_ranks) {
  std::vector<u32> node_of(kMaxRanks);
  for (u32 r = 0; r < kMaxRanks; ++r) node_of[r] = r / kMaxRanksPerNode;
  const auto tables = tables_of(node_of, kMaxRanks - 1);
  const TopologyView& t = tables->context().topology;
  CHECK_EQ(t.num_hosted(), 64u);
  CHECK_EQ(t.host_of(kMaxRanks - 1, 0), 63u);
  CHECK_EQ(t.hosted_slot(kMaxRanks - 1, 0), 63u);
}

// Hosts and hosted slots of every topology: one place for each remote source, no two sources in one place.
#include <set>

#include "kernels/launch/rank_tables.h"
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
      const u32 host = t.landing_rank(source, n);
      CHECK_EQ(node_of[host], n);
      CHECK_EQ(t.is_local(source), node_of[source] == node_of[me]);
      if (node_of[source] == n) {
        CHECK_EQ(host, source);
        continue;
      }
      const u32 slot = t.landing_slot(source, n);
      CHECK(slot < t.num_landing_slots());
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

namespace {

// Every rank a cell, some absent: remote sources have places of their own at the rank itself, and its audiences are its
// node and every other present rank.
void check_cells(const std::vector<u32>& node_of, u32 me) {
  RankTablesSettings s;
  s.rank = me;
  s.num_rings = 0;
  s.node_of = node_of;
  u32 cells = 0;
  for (const u32 n : node_of) {
    s.cell_of.push_back(n == kNoNode ? kNoNode : cells++);
    if (n == node_of[me]) s.data.push_back(0), s.control.push_back(0);
  }
  const RankTables tables(s);
  const TopologyView& t = tables.context().topology;
  CHECK_EQ(t.num_cells, cells);
  std::set<u32> slots;
  std::set<u32> reached;
  for (u32 r = 0; r < node_of.size(); ++r) {
    CHECK_EQ(t.is_absent(r), node_of[r] == kNoNode);
    if (t.is_absent(r)) continue;
    CHECK_EQ(t.is_audience(t.cell_of[r]), r == me || !t.is_local(r));
    CHECK_EQ(t.audience_member(t.audience_of(r), t.place_in_audience(r)), r);
    CHECK_EQ(t.crowd_member(r, t.place_in_crowd(r)), me);
    CHECK_EQ(t.crowd_size(r), t.is_local(r) ? t.local_size : 1u);
    CHECK_EQ(t.landing_rank(r, t.cell), t.is_local(r) ? r : me);
    if (t.is_local(r)) continue;
    CHECK_EQ(t.landing_rank(me, t.cell_of[r]), r);
    CHECK(t.landing_slot(r, t.cell) < t.num_landing_slots() && slots.insert(t.landing_slot(r, t.cell)).second);
  }
  for (u32 n = 0; n < t.num_cells; ++n)
    for (u32 i = 0; t.is_audience(n) && i < t.audience_size(n); ++i)
      CHECK(reached.insert(t.audience_member(n, i)).second);
  CHECK_EQ(reached.size(), u64{cells});
}

}  // namespace

TEST(layout_topology_cells_and_absent_ranks) {
  constexpr u32 kGone = kNoNode;
  for (const auto& node_of : std::vector<std::vector<u32>>{
           {0}, {0, 1}, {0, 0, 1}, {0, 1, 0, 1, 2}, {0, kGone, 1, 1}, {kGone, 0, 0, kGone, 1, 0}, {0, 0, kGone}})
    for (u32 me = 0; me < node_of.size(); ++me)
      if (node_of[me] != kGone) check_cells(node_of, me);
}

TEST(layout_topology_refuses_what_is_no_world) {
  const auto refused = [](std::vector<u32> node_of, std::vector<u32> cell_of, u32 rank) {
    RankTablesSettings s;
    s.node_of = std::move(node_of);
    s.cell_of = std::move(cell_of);
    s.rank = rank;
    s.num_rings = 0;
    s.data = s.control = {0};
    try {
      RankTables tables(s);
    } catch (const std::invalid_argument&) { return true; }
    return false;
  };
  CHECK(!refused({0, 1}, {0, 1}, 0));
  CHECK(refused({kNoNode, 0}, {}, 0));         // absent itself
  CHECK(refused({0, 2}, {}, 0));               // a node without ranks
  CHECK(refused({0, 1}, {0}, 0));              // a cell missing
  CHECK(refused({0, 1}, {0, 0}, 0));           // a cell on two nodes
  CHECK(refused({0, 1}, {0, kNoNode}, 0));     // absent from cells only
  CHECK(refused({0, 9}, {}, 0));               // more nodes than ranks
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
  CHECK_EQ(t.num_landing_slots(), 64u);
  CHECK_EQ(t.landing_rank(kMaxRanks - 1, 0), 63u);
  CHECK_EQ(t.landing_slot(kMaxRanks - 1, 0), 63u);
}

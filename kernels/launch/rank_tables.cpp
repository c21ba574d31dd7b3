// Node and cell numbering, member lists and views of a rank's rings, checked and laid out for kernels.
#include "kernels/launch/rank_tables.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/launch/region_plan.h"
#include "ring/consumer.h"

namespace uccl {
namespace {

void refuse(const std::string& what) { throw std::invalid_argument("RankTables: " + what); }

// Appends a table to the image, 8-byte aligned, and returns where it will lie.
template <class T>
T* place(std::string* image, u64 address, const std::vector<T>& table) {
  image->resize(align_up(image->size(), 8));
  T* const there = reinterpret_cast<T*>(address + image->size());
  image->append(reinterpret_cast<const char*>(table.data()), table.size() * sizeof(T));
  return there;
}

}  // namespace

Grouping Grouping::make(const std::vector<u32>& of, const char* what) {
  Grouping g;
  g.of = of;
  u32 count = 0;
  for (const u32 one : of) {
    if (one != kNoNode && one >= of.size()) refuse(std::string("a ") + what + " without ranks");
    if (one != kNoNode) count = std::max(count, one + 1);
  }
  g.index.resize(of.size());
  g.begin.assign(count + 1, 0);
  for (u32 r = 0; r < of.size(); ++r)
    if (of[r] != kNoNode) g.index[r] = g.begin[of[r] + 1]++;
  if (std::count(g.begin.begin() + 1, g.begin.end(), 0u) != 0) refuse(std::string("a ") + what + " without ranks");
  for (u32 n = 0; n < count; ++n) g.begin[n + 1] += g.begin[n];
  g.members.resize(g.begin[count]);
  for (u32 r = 0; r < of.size(); ++r)
    if (of[r] != kNoNode) g.members[g.begin[of[r]] + g.index[r]] = r;
  return g;
}

LandingRanks::LandingRanks(const std::vector<u32>& node_of, const std::vector<u32>& cell_of)
    : nodes_(Grouping::make(node_of, "node")), cells_(Grouping::make(cell_of.empty() ? node_of : cell_of, "cell")) {
  if (cells_.of.size() != nodes_.of.size()) refuse("cell_of needs no entry or one a rank");
}

TopologyView LandingRanks::view() const {
  TopologyView t{};
  t.node_of = nodes_.of.data();
  t.local_of = nodes_.index.data();
  t.cell_begin = cells_.begin.data();
  t.members = cells_.members.data();
  return t;
}

std::vector<u32> LandingRanks::of(u32 source) const {
  if (nodes_.of.at(source) == kNoNode) refuse("the source is absent");
  std::vector<u32> ranks(cells_.count());
  for (u32 cell = 0; cell < cells_.count(); ++cell) ranks[cell] = view().landing_rank(source, cell);
  return ranks;
}

std::vector<u32> LandingRanks::in(u32 cell) const {
  if (cell >= cells_.count()) throw std::out_of_range("LandingRanks: no such cell");
  std::vector<u32> ranks(nodes_.of.size());
  for (u32 source = 0; source < ranks.size(); ++source)
    ranks[source] = view().is_absent(source) ? kNoNode : view().landing_rank(source, cell);
  return ranks;
}

RankTables::RankTables(const RankTablesSettings& s) {
  const u32 ranks = static_cast<u32>(s.node_of.size());
  if (ranks == 0 || ranks > kMaxRanks) refuse("node_of needs 1 to 4096 entries");
  if (s.rank >= ranks) refuse("rank is beyond node_of");
  if (s.node_of[s.rank] == kNoNode) refuse("this rank is absent");
  if (!s.cell_of.empty() && s.cell_of.size() != ranks) refuse("cell_of needs no entry or one a rank");
  nodes_ = Grouping::make(s.node_of, "node");
  cells_ = Grouping::make(s.cell_of.empty() ? s.node_of : s.cell_of, "cell");
  const GroupShape shape = GroupShape::of(s.node_of, s.cell_of);
  if (shape.max_readers > kMaxRanksPerNode) refuse("more than 64 ranks on one node");
  for (u32 r = 0; r < ranks; ++r) {
    const u32 cell = cells_.of[r];
    if ((cell == kNoNode) != (nodes_.of[r] == kNoNode)) refuse("a rank is absent from nodes or from cells only");
    if (cell != kNoNode && nodes_.of[r] != nodes_.of[cells_.members[cells_.begin[cell]]]) refuse("a cell on two nodes");
    if (nodes_.of[r] == nodes_.of[s.rank]) mates_.push_back(r);
  }
  for (u64 a : s.data) data_.push_back(reinterpret_cast<u8*>(a));
  for (u64 a : s.control) control_.push_back(reinterpret_cast<u8*>(a));
  for (u32 i = 0; i < s.num_rings; ++i)
    rings_.push_back(ring_view(reinterpret_cast<void*>(s.rings + i * ring_bytes(s.ring_capacity)), s.ring_capacity));
  for (u32 i = 0; s.ring_words != 0 && i < s.num_rings; ++i) {
    rings_[i].head = reinterpret_cast<u64*>(s.ring_words) + 3 * i;
    rings_[i].cached_tail = rings_[i].head + 1;
    rings_[i].cached_done = rings_[i].head + 2;
  }

  TopologyView& t = context_.topology;
  t.node_of = nodes_.of.data();
  t.local_of = nodes_.index.data();
  t.cell_of = cells_.of.data();
  t.place_of = cells_.index.data();
  t.cell_begin = cells_.begin.data();
  t.members = cells_.members.data();
  t.mates = mates_.data();
  t.num_ranks = ranks;
  t.num_nodes = nodes_.count();
  t.num_cells = cells_.count();
  t.rank = s.rank;
  t.node = nodes_.of[s.rank];
  t.local = nodes_.index[s.rank];
  t.local_size = static_cast<u32>(mates_.size());
  t.cell = cells_.of[s.rank];
  t.place = cells_.index[s.rank];
  t.fan = shape.fan;
  if (data_.size() != t.local_size || control_.size() != t.local_size)
    refuse("data and control need one address a node rank");
  context_.data = data_.data();
  context_.control = control_.data();
  context_.rings = rings_.data();
  context_.num_rings = s.num_rings;
  context_.shrink = s.shrink;
  context_.mask = reinterpret_cast<u32*>(s.mask);
  context_.peer_stats = reinterpret_cast<u64*>(s.peer_stats);
  context_.timeout_ns = s.timeout_ns;
  context_.control_offset = s.control_offset;
  context_.signals.num_ranks = ranks;
  context_.signals.num_channels = s.num_channels;
  context_.signals.max_readers = shape.max_readers;
  context_.control_layout = ControlLayout{ranks, s.num_channels};
}

std::pair<std::string, RankContext> RankTables::placed_at(u64 address) const {
  std::string image;
  RankContext context = context_;
  context.topology.node_of = place(&image, address, nodes_.of);
  context.topology.local_of = place(&image, address, nodes_.index);
  context.topology.cell_of = place(&image, address, cells_.of);
  context.topology.place_of = place(&image, address, cells_.index);
  context.topology.cell_begin = place(&image, address, cells_.begin);
  context.topology.members = place(&image, address, cells_.members);
  context.topology.mates = place(&image, address, mates_);
  context.data = place(&image, address, data_);
  context.control = place(&image, address, control_);
  context.rings = place(&image, address, rings_);
  return {std::move(image), context};
}

}  // namespace uccl

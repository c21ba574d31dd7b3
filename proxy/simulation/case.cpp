// How cases are drawn: mostly small ones, where every order is likely to be met, and a few large ones.
#include "simulation/case.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/layout/throughput.h"
#include "simulation/values.h"
#include "wire/immediate.h"

namespace uccl::simulation {
namespace {

constexpr u32 kNever = ~0u;

u32 draw_ranks(Random& r) {
  const u64 kind = r.below(200);
  if (kind < 110) return static_cast<u32>(r.between(2, 4));
  if (kind < 168) return static_cast<u32>(r.between(5, 8));
  if (kind < 192) return static_cast<u32>(r.between(9, 16));
  if (kind < 198) return static_cast<u32>(r.between(17, 32));
  return static_cast<u32>(r.between(33, 64));
}

// Contiguous, and as equal as there can be.
std::vector<u32> equal_nodes(u32 ranks, u32 nodes) {
  std::vector<u32> node(ranks);
  for (u32 i = 0; i < ranks; ++i) node[i] = static_cast<u32>(u64{i} * nodes / ranks);
  return node;
}

void check(const Wish& wish) {
  if (wish.profile != "any") link_profile(wish.profile);  // refuses an unknown one
  if (wish.num_ranks == 0 && wish.num_nodes == 0) return;
  const bool sound = wish.num_ranks >= 2 && wish.num_ranks <= kMaxRanks && wish.num_nodes >= 1 &&
                     wish.num_nodes <= wish.num_ranks && wish.num_ranks <= u64{wish.num_nodes} * kMaxRanksPerNode;
  if (!sound)
    throw std::invalid_argument("a run has 2 to " + std::to_string(kMaxRanks) + " ranks on nodes of 1 to " +
                                std::to_string(kMaxRanksPerNode) + ": " + std::to_string(wish.num_ranks) +
                                " ranks on " + std::to_string(wish.num_nodes) + " nodes cannot be");
}

// One rank a node, even nodes, uneven ones, one node; contiguous or dealt round.
std::vector<u32> draw_nodes(Random& r, u32 ranks) {
  const u64 kind = r.below(20);
  std::vector<u32> node(ranks, 0);
  if (kind == 0) return node;
  const u32 nodes = kind < 7 ? ranks : static_cast<u32>(r.between(2, std::min(ranks, 12u)));
  const bool dealt = r.one_in(4);
  if (kind < 14) {
    if (!dealt) return equal_nodes(ranks, nodes);
    for (u32 i = 0; i < ranks; ++i) node[i] = i % nodes;
    return node;
  }
  for (u32 i = 0; i < ranks; ++i) node[i] = i < nodes ? i : static_cast<u32>(r.below(nodes));
  if (!dealt) std::sort(node.begin(), node.end());
  return node;
}

void draw_limits(Random& r, Case* c) {
  WorldShape& w = c->world;
  w.num_rings = static_cast<u32>(r.between(1, 3));
  w.num_workers = r.one_in(3) ? std::min(2u, w.num_rings) : 1;
  w.ring_capacity = 2u << r.below(r.one_in(4) ? 7 : 4);
  // Rings lie back to back, and a header is on a cache line of its own: two slots would misplace the next one.
  if (w.num_rings > 1) w.ring_capacity = std::max(w.ring_capacity, 4u);
  w.max_in_flight = r.one_in(3) ? static_cast<u32>(r.between(1, 3)) : static_cast<u32>(r.between(4, 64));
  if (r.one_in(4)) w.max_in_flight_bytes = r.between(1, 4096);
  w.num_channels = static_cast<u32>(r.between(1, 4));
  // Half of the runs begin just before some counter's low bits begin again.
  const u64 limits[] = {1ull << kSequenceBits, 1ull << kEpochBits, 1ull << kKeyBits, 1ull << 32};
  if (r.one_in(2)) w.age = limits[r.below(4)] - r.between(1, 6);
  c->warps = r.one_in(3) ? 2 : 1;
  c->grid = r.one_in(4) ? 2 : 1;
  c->step_ns = r.one_in(3) ? r.between(500, 5000) : r.between(1, 300);
}

void draw_low_latency(Random& r, Case* c) {
  WorldShape& w = c->world;
  const u32 ranks = w.num_ranks();
  w.max_tokens = static_cast<u32>(r.between(1, ranks <= 4 ? 12 : ranks <= 16 ? 6 : 3));
  w.max_topk = static_cast<u32>(r.between(1, ranks <= 16 ? 8 : 4));
  c->num_experts = ranks * static_cast<u32>(r.between(1, ranks <= 16 ? 3 : 1));
  const u64 format = r.below(5);
  c->format = format == 3 ? RowFormat::kFp8 : format == 4 ? RowFormat::kFp8Ue8m0 : RowFormat::kBf16;
  c->round_scale = r.one_in(2);
  w.hidden =
      c->format == RowFormat::kBf16 ? 8 * static_cast<u32>(r.between(1, 8)) : 128 * static_cast<u32>(r.between(1, 2));
  c->batch = static_cast<u32>(r.between(1, 6));
  w.staging_rows = static_cast<u32>(r.between(1, 12));
  c->zero_copy = r.one_in(5);
  if (c->zero_copy) {
    const u64 stride = align_up(w.hidden + w.hidden / 64, 8);
    w.zero_copy_bytes = kZeroCopySets * align_up(u64{c->num_experts} * w.max_tokens * stride * 2, 128);
  }
  c->rounds = static_cast<u32>(ranks <= 8 ? r.between(2, 6) : ranks <= 16 ? r.between(2, 4) : r.between(2, 3));
}

void draw_throughput(Random& r, Case* c) {
  WorldShape& w = c->world;
  const u32 ranks = w.num_ranks();
  c->max_tokens = static_cast<u32>(r.between(1, ranks <= 4 ? 32 : ranks <= 16 ? 12 : 6));
  c->max_topk = static_cast<u32>(r.between(1, ranks <= 16 ? 8 : 4));
  const u32 local = static_cast<u32>(r.between(1, ranks <= 16 ? 3 : 1));
  c->num_experts = ranks * local;
  w.max_local_experts = local;
  c->max_hidden = 8 * static_cast<u32>(r.between(1, 8));
  c->max_channels = std::min(w.num_channels, ranks <= 16 ? 3u : 1u);
  c->same_geometry = r.one_in(2);
  RowShape largest;
  largest.payload_bytes = c->max_hidden * 2;
  largest.scale_bytes = 20;
  largest.topk = c->max_topk;
  largest.has_ids = largest.has_weights = 1;
  // A ring of two rows is the smallest; larger ones wrap later.
  w.unit_bytes = align_up(c->max_channels * align_up(largest.bytes() * r.between(2, r.one_in(3) ? 24 : 5), 128), 128);
  c->rounds = static_cast<u32>(ranks <= 8 ? r.between(1, 4) : ranks <= 16 ? r.between(1, 3) : r.between(1, 2));
}

u64 draw_time(Random& r) {  // evenly over orders of magnitude: runs take from 50 us to some ms
  return 1'000'000 + r.below(1000ull << r.below(13));
}

FaultPlan draw_fault(Random& r, u32 ranks, FaultPlanKind kind) {
  FaultPlan p;
  p.kind = kind;
  p.source = static_cast<u32>(r.below(ranks));
  p.target = static_cast<u32>((p.source + r.between(1, ranks - 1)) % ranks);
  p.begin_ns = draw_time(r);
  p.end_ns = p.begin_ns + r.between(1000, 20'000'000);
  p.notice_ns = r.between(1000, 50'000'000);
  p.period_ns = r.between(1000, 200'000);
  return p;
}

void draw_faults(Random& r, Case* c) {
  const u64 kind = r.below(20);
  const u32 ranks = c->world.num_ranks();
  if (kind < 9) return;
  for (u64 n = r.below(kind < 16 ? 3 : 2) + (kind < 16); n != 0; --n)
    c->faults.push_back(draw_fault(r, ranks, r.one_in(2) ? FaultPlanKind::kStall : FaultPlanKind::kSlow));
  if (kind < 16) return;
  const FaultPlanKind lethal[] = {FaultPlanKind::kLinkLoss, FaultPlanKind::kHalfOpen, FaultPlanKind::kDeath};
  FaultPlan p = draw_fault(r, ranks, lethal[r.below(3)]);
  if (c->world.node_of[p.source] == c->world.node_of[p.target]) p.kind = FaultPlanKind::kDeath;  // there is no link
  c->faults.push_back(p);
}

void draw_profile(Random& r, const std::string& name, Case* c) {
  c->profile = link_profile(name != "any" ? name : r.one_in(4) ? "rc" : "srd");
  LinkProfile& p = c->profile;
  const u64 scale = r.below(4);  // from hardly any disorder to nothing but disorder
  p.jitter_ns = p.jitter_ns * (scale * scale + 1) / 2;
  p.latency_ns = r.between(300, 8000);
  if (p.stragglers != 0) p.stragglers = static_cast<u32>(r.between(3, 40));
  p.bytes_per_us = r.one_in(3) ? r.between(20, 500) : 20'000;
}

// Cells within nodes: one a rank, or cut anywhere.
std::vector<u32> draw_cells(Random& r, const std::vector<u32>& node_of, bool apart) {
  std::vector<u32> cell_of(node_of.size());
  std::vector<std::pair<u32, u32>> seen;  // (node, part) by cell
  for (u32 rank = 0; rank < node_of.size(); ++rank) {
    const std::pair<u32, u32> wish{node_of[rank], apart ? rank : static_cast<u32>(r.below(2))};
    const auto found = std::find(seen.begin(), seen.end(), wish);
    cell_of[rank] = static_cast<u32>(found - seen.begin());
    if (found == seen.end()) seen.push_back(wish);
  }
  return cell_of;
}

void draw_leavings(Random& r, Case* c) {
  const u32 ranks = c->world.num_ranks();
  const u64 wanted = r.between(1, std::min(ranks - 1, 3u));
  for (u64 n = 0; n < wanted; ++n) {
    Leaving l;
    l.rank = static_cast<u32>(r.below(ranks));
    // Who has lost the silent one in another way is not held up as others are, and would not wait for them long enough.
    l.kind = static_cast<LeavingKind>(r.below(c->lethal() ? 2 : 3));
    l.round = static_cast<u32>(r.below(c->rounds));
    if (l.kind == LeavingKind::kSilent && c->mode == Mode::kLowLatency)
      l.launches = static_cast<u32>(r.below(5 * c->rounds));
    // One silent rank at most: where ranks wait for several in different calls, they may leave out each other too
    // (ARCHITECTURE.md has this limit).
    const auto beside = [&l](const Leaving& other) {
      return other.rank == l.rank || (other.kind == LeavingKind::kSilent && l.kind == LeavingKind::kSilent);
    };
    if (std::none_of(c->leavings.begin(), c->leavings.end(), beside)) c->leavings.push_back(l);
  }
}

// From a source of their own, so that a seed's other choices are what they were before there were cells and absences.
void draw_absences(Random r, Case* c) {
  WorldShape& w = c->world;
  const u64 kind = r.below(8);
  if (kind < 3) return;
  w.shrink = kind >= 5;
  // As by default: with less, the graces that waits for the same lost rank give one after the other could add up to it.
  if (w.shrink) w.timeout_ns = 100'000'000'000;
  if (w.num_nodes() > 1) w.cell_of = draw_cells(r, w.node_of, kind != 3);
  if (!w.shrink) return;
  if (kind >= 6) draw_leavings(r, c);
  for (FaultPlan& p : c->faults)
    if (p.kind == FaultPlanKind::kHalfOpen) p.kind = FaultPlanKind::kLinkLoss;
}

// A quarter of the runs have GPUs; where only a GPU's own kernels read what NICs wrote, half of those need no flush.
void draw_rows(Random r, Case* c) {
  WorldShape& w = c->world;
  if (!r.one_in(4)) return;
  const bool owners_read = w.num_cells() == w.num_ranks();
  w.rows = owners_read && r.one_in(2) ? Rows::kOwned : Rows::kFlushed;
  w.lag_ns = 1ull << r.below(22);
}

std::string describe_leaving(const Leaving& l) {
  const std::string round = std::to_string(l.round);
  switch (l.kind) {
    case LeavingKind::kAgreed: return "is left out by all before round " + round;
    case LeavingKind::kMiddle: return "is left out by all in round " + round;
    default:
      return l.launches != kNever ? "stops after " + std::to_string(l.launches) + " launches"
                                  : "stops before round " + round;
  }
}

}  // namespace

u32 WorldShape::num_cells() const { return *std::max_element(cells().begin(), cells().end()) + 1; }

u32 WorldShape::num_nodes() const { return *std::max_element(node_of.begin(), node_of.end()) + 1; }

bool Case::lethal() const {
  return std::any_of(faults.begin(), faults.end(), [](const FaultPlan& p) { return p.lethal(); });
}

Case draw_case(u64 seed, const Wish& wish) {
  check(wish);
  Random r(key_of(seed, 0xca5e));
  Case c;
  c.seed = seed;
  c.mode = r.one_in(2) ? Mode::kLowLatency : Mode::kThroughput;
  const u32 drawn = draw_ranks(r), ranks = wish.num_ranks != 0 ? wish.num_ranks : drawn;
  c.world.node_of = wish.num_ranks != 0 ? equal_nodes(ranks, wish.num_nodes) : draw_nodes(r, ranks);
  draw_limits(r, &c);
  if (c.mode == Mode::kLowLatency)
    draw_low_latency(r, &c);
  else
    draw_throughput(r, &c);
  draw_profile(r, wish.profile, &c);
  draw_faults(r, &c);
  draw_absences(Random(key_of(seed, 0xab5e)), &c);
  draw_rows(Random(key_of(seed, 0x6f0)), &c);
  c.rows_stay = Random(key_of(seed, 0x57a7)).one_in(2) && (c.mode == Mode::kThroughput || c.zero_copy);
  return c;
}

std::string describe(const Case& c) {
  const WorldShape& w = c.world;
  std::string s = c.mode == Mode::kLowLatency ? "low latency" : "throughput";
  s += ", " + std::to_string(w.num_ranks()) + " ranks on " + std::to_string(w.num_nodes()) + " node(s) [";
  for (u32 r = 0; r < w.num_ranks(); ++r) s += (r ? " " : "") + std::to_string(w.node_of[r]);
  if (!w.cell_of.empty()) s += "] in cells [";
  for (u32 r = 0; r < w.cell_of.size(); ++r) s += (r ? " " : "") + std::to_string(w.cell_of[r]);
  s += "], " + std::to_string(c.rounds) + " round(s), " + std::to_string(c.num_experts) + " experts, " +
       std::to_string(w.num_rings) + " ring(s) of " + std::to_string(w.ring_capacity) + ", " +
       std::to_string(w.num_workers) + " worker(s), " + std::to_string(w.max_in_flight) + " in flight (" +
       std::to_string(w.max_in_flight_bytes) + " bytes), ";
  if (c.mode == Mode::kLowLatency)
    s += std::to_string(w.max_tokens) + " tokens x " + std::to_string(w.hidden) + ", top-" +
         std::to_string(w.max_topk) + ", format " + std::to_string(static_cast<u32>(c.format)) +
         (c.zero_copy ? ", zero copy" : "");
  else
    s += std::to_string(c.max_tokens) + " tokens x " + std::to_string(c.max_hidden) + ", top-" +
         std::to_string(c.max_topk) + ", " + std::to_string(c.max_channels) + " channel(s), units of " +
         std::to_string(w.unit_bytes) + " bytes";
  if (w.age != 0) s += ", counters from " + std::to_string(w.age);
  s += ", profile " + c.profile.name;
  if (c.rows_stay) s += ", rows stay";
  if (w.rows != Rows::kHost) s += w.rows == Rows::kFlushed ? ", rows in GPUs, flushed" : ", rows in GPUs";
  if (w.shrink) s += ", missing ranks are left out";
  for (const FaultPlan& p : c.faults) s += "; " + uccl::describe(p);
  for (const Leaving& l : c.leavings) s += "; rank " + std::to_string(l.rank) + " " + describe_leaving(l);
  return s;
}

}  // namespace uccl::simulation

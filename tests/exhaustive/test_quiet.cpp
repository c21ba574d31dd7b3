// QUIET and `done`, every interleaving: commands are pushed, taken, delivered and completed in any order, the lane is
// full now and then, a peer may be lost at any moment. Oracle: what was delivered, and the leading run of it.
#include "exhaustive/proxy.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

constexpr u32 kQuiet = 0;  // in a plan: a QUIET; any other number: a write to that rank
struct QuietPlan {
  std::vector<std::vector<u32>> rings;
  u32 capacity, max_in_flight;
  u32 lane_room;     // writes that the lane holds
  u64 ring_start;
  u32 lost_peer = 0;  // may be lost at any moment; 0: nobody
};

struct QuietAction {
  enum Kind : u8 { kPush, kTurn, kDeliver, kComplete, kLose } kind;
  u8 index;  // ring, or number in the lane
};

class QuietWorld : public Replayed<QuietWorld, QuietAction> {
 public:
  explicit QuietWorld(const QuietPlan& plan) : plan_(plan) { reset(); }

  void reset() {
    proxy_ = std::make_unique<Proxy>(ProxyShape{.num_ranks = 3,
                                                .num_rings = static_cast<u32>(plan_.rings.size()),
                                                .capacity = plan_.capacity,
                                                .max_in_flight = plan_.max_in_flight,
                                                .ring_start = plan_.ring_start});
    pushed_.assign(plan_.rings.size(), 0);
    delivered_.assign(plan_.rings.size(), 0);
    completed_.assign(plan_.rings.size(), 0);
    lost_ = turned_ = false;
  }

  void actions(std::vector<QuietAction>& out) const {
    for (u8 r = 0; r < plan_.rings.size(); ++r)
      if (pushed_[r] < plan_.rings[r].size() && pushed_[r] - tail(r) < plan_.capacity)
        out.push_back({QuietAction::kPush, r});
    if (!over()) out.push_back({QuietAction::kTurn, 0});
    for (u8 i = 0; i < proxy_->fates.size(); ++i) {
      if (proxy_->fates[i] == Proxy::kPosted) out.push_back({QuietAction::kDeliver, i});
      if (proxy_->fates[i] == Proxy::kDelivered) out.push_back({QuietAction::kComplete, i});
    }
    if (plan_.lost_peer != 0 && !lost_) out.push_back({QuietAction::kLose, 0});
  }

  void step(const QuietAction& a) {
    turned_ = a.kind == QuietAction::kTurn;
    switch (a.kind) {
      case QuietAction::kPush: {
        const u32 peer = plan_.rings[a.index][pushed_[a.index]++];
        proxy_->push(a.index, peer == kQuiet ? Command{Op::kQuiet} : Command{Op::kWrite, peer, 1, 0, 0, 16});
        return;
      }
      case QuietAction::kTurn: {
        std::size_t open = 0;
        for (const u8 fate : proxy_->fates) open += fate != Proxy::kCompleted;
        proxy_->lane.room = proxy_->fates.size() - open + plan_.lane_room;
        proxy_->poster.turn();
        proxy_->note_posted();
        return;
      }
      case QuietAction::kDeliver:
        proxy_->fates[a.index] = Proxy::kDelivered;
        delivered_[ring_of(a.index)] |= 1ull << number_of(a.index);
        return;
      case QuietAction::kComplete:
        completed_[ring_of(a.index)] |= 1ull << number_of(a.index);
        proxy_->complete(a.index);
        return;
      case QuietAction::kLose:
        lost_ = true;
        proxy_->poster.drop_peer(plan_.lost_peer);
        return;
    }
  }

  void check() const {
    u64 in_flight = 0;
    for (u32 r = 0; r < plan_.rings.size(); ++r) {
      const std::vector<u32>& ring = plan_.rings[r];
      u64 run = 0;
      while (run < tail(r) && complete(r, run)) ++run;
      // A turn publishes the leading run of what is complete; between turns `done` may be behind, never ahead.
      CHECK(done(r) <= run);
      if (turned_) CHECK_EQ(done(r), run);
      // What `done` has passed is at its receiver: so is everything before a QUIET that has returned.
      for (u64 n = 0; n < done(r); ++n) CHECK(ring[n] == kQuiet || dropped(ring[n]) || delivered_[r] >> n & 1);
      for (u64 n = 0; n < tail(r); ++n)
        in_flight += ring[n] != kQuiet && !dropped(ring[n]) && !(completed_[r] >> n & 1);
    }
    CHECK_EQ(proxy_->ledger.in_flight(), in_flight);
    check_order_and_limits();
    CHECK(!proxy_->aborted());
  }
  void check_end() const {
    for (u32 r = 0; r < plan_.rings.size(); ++r) {
      CHECK_EQ(std::size_t{pushed_[r]}, plan_.rings[r].size());
      CHECK_EQ(done(r), plan_.rings[r].size());
    }
    CHECK(proxy_->poster.drained());
  }
  void state(Bytes& out) const {
    proxy_->state(out);
    put_vector(out, delivered_);
    put_vector(out, completed_);
    put(out, static_cast<u32>(lost_));
  }
  std::string describe(const QuietAction& a) const {
    static const char* names[] = {"push to ring ", "turn ", "deliver posted write ", "complete posted write ",
                                  "lose the peer "};
    return names[a.kind] + std::to_string(a.index);
  }

 private:
  u64 tail(u32 r) const { return proxy_->header(r).tail - plan_.ring_start; }
  u64 done(u32 r) const { return proxy_->header(r).done - plan_.ring_start; }
  // wr_id: [62:48] ring, [47:0] low bits of the ticket (engine/poster.cpp)
  u32 ring_of(std::size_t i) const { return static_cast<u32>(proxy_->lane.held[i].wr_id >> 48); }
  u64 number_of(std::size_t i) const { return (proxy_->lane.held[i].wr_id - plan_.ring_start) & low_bits(48); }
  // Turns go on for ever (and rotate which ring is first); here they end with the work.
  bool over() const {
    bool all = true;
    for (u32 r = 0; r < plan_.rings.size(); ++r) all &= done(r) == plan_.rings[r].size();
    return all;
  }
  bool dropped(u32 peer) const { return lost_ && peer == plan_.lost_peer; }
  bool complete(u32 r, u64 n) const {
    return plan_.rings[r][n] == kQuiet || dropped(plan_.rings[r][n]) || completed_[r] >> n & 1;
  }

  void check_order_and_limits() const {
    std::vector<u64> next(plan_.rings.size(), 0);
    u64 open[3] = {};
    for (std::size_t i = 0; i < proxy_->fates.size(); ++i) {
      const u32 peer = proxy_->lane.held[i].peer;
      CHECK(number_of(i) + 1 > next[ring_of(i)]);  // ring order is posting order
      next[ring_of(i)] = number_of(i) + 1;
      open[peer] += proxy_->fates[i] != Proxy::kCompleted;
    }
    for (u32 peer = 1; peer < 3; ++peer) CHECK(open[peer] <= plan_.max_in_flight);
  }

  QuietPlan plan_;
  std::unique_ptr<Proxy> proxy_;
  std::vector<u64> pushed_, delivered_, completed_;
  bool lost_ = false, turned_ = false;
};

}  // namespace

TEST(exhaustive_quiet_completions_in_any_order) {
  explore("quiet, W W Q W Q", QuietWorld({{{1, 2, kQuiet, 1, kQuiet}}, 8, 64, 64, 0}));
  explore("quiet, 4 slots that wrap", QuietWorld({{{1, 2, kQuiet, 1, kQuiet, 2}}, 4, 64, 64, (1ull << 32) - 3}));
  explore("quiet, W W Q W W Q W", QuietWorld({{{1, 2, kQuiet, 1, 1, kQuiet, 2}}, 4, 64, 64, 2}));
}

TEST(exhaustive_quiet_under_limits) {
  explore("quiet, 1 in flight per peer", QuietWorld({{{1, 1, 2, kQuiet, 1}}, 8, 1, 64, 0}));
  explore("quiet, a lane that holds 2", QuietWorld({{{1, 2, 1, kQuiet, 2}}, 8, 64, 2, 6}));
  explore("quiet, both", QuietWorld({{{1, 1, 2, kQuiet, 1, 2, kQuiet}}, 4, 2, 2, 6}));
}

TEST(exhaustive_quiet_two_rings_share_the_room_of_a_peer) {
  explore("quiet, 2 rings, 2 in flight", QuietWorld({{{1, kQuiet, 1}, {1, 2, kQuiet}}, 4, 2, 64, 0}));
  explore("quiet, 2 rings, 3 and 3", QuietWorld({{{1, kQuiet, 1, 2}, {1, 2, kQuiet}}, 2, 2, 2, 1}));
  if (depth() < 2) return;
  explore("quiet, 9 commands, 4 slots, 2 in flight",
          QuietWorld({{{1, 2, 1, kQuiet, 2, 1, 2, kQuiet, 1}}, 4, 2, 3, (1ull << 32) - 5}));
  explore("quiet, 2 rings, 4 and 4", QuietWorld({{{1, 2, kQuiet, 1}, {2, 1, kQuiet, 2}}, 4, 2, 3, 1}));
  explore("quiet, 2 rings, rank 2 may be lost", QuietWorld({{{1, 2, kQuiet, 2}, {2, 1, kQuiet}}, 4, 1, 3, 1, 2}));
}

TEST(exhaustive_quiet_a_peer_is_lost_at_any_moment) {
  explore("quiet, rank 1 may be lost", QuietWorld({{{1, 2, kQuiet, 1}}, 4, 1, 64, 0, 1}));
  explore("quiet, rank 1 may be lost, longer", QuietWorld({{{1, 2, kQuiet, 1, 2, kQuiet}}, 4, 1, 2, 3, 1}));
}

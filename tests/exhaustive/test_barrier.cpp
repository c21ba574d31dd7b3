// BARRIER, every interleaving: ranks write to each other and meet; immediates overtake each other, rounds too. Oracle:
// nobody leaves a round before all have entered it and all that was written before it is at its receiver.
#include "exhaustive/proxy.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

constexpr u32 kMeet = ~0u;  // in a plan: a BARRIER; any other number: a write to that rank
struct BarrierPlan {
  std::vector<std::vector<u32>> ranks;  // what each rank does, in order
  u64 round;                            // rounds that went before
  u32 max_in_flight = 64;
};

struct BarrierAction {
  enum Kind : u8 { kPush, kTurn, kDeliver, kComplete } kind;
  u8 rank, index;
};

class BarrierWorld : public Replayed<BarrierWorld, BarrierAction> {
 public:
  explicit BarrierWorld(const BarrierPlan& plan) : plan_(plan) { reset(); }

  void reset() {
    const u32 n = static_cast<u32>(plan_.ranks.size());
    ranks_.clear();
    for (u32 r = 0; r < n; ++r) {
      ranks_.emplace_back();
      ranks_[r].proxy = std::make_unique<Proxy>(ProxyShape{
          .rank = r, .num_ranks = n, .capacity = 8, .max_in_flight = plan_.max_in_flight, .round = plan_.round});
    }
  }

  void actions(std::vector<BarrierAction>& out) const {
    for (u8 r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].pushed < plan_.ranks[r].size()) out.push_back({BarrierAction::kPush, r, 0});
      out.push_back({BarrierAction::kTurn, r, 0});
      const std::vector<u8>& fates = ranks_[r].proxy->fates;
      for (u8 i = 0; i < fates.size(); ++i) {
        if (fates[i] == Proxy::kPosted) out.push_back({BarrierAction::kDeliver, r, i});
        if (fates[i] == Proxy::kDelivered) out.push_back({BarrierAction::kComplete, r, i});
      }
    }
  }

  void step(const BarrierAction& a) {
    Rank& rank = ranks_[a.rank];
    switch (a.kind) {
      case BarrierAction::kPush: {
        const u32 what = plan_.ranks[a.rank][rank.pushed++];
        const u32 key = static_cast<u32>((plan_.round + rank.entered + 1) & low_bits(kKeyBits));
        rank.entered += what == kMeet;
        rank.proxy->push(
            0, what == kMeet ? Command{Op::kBarrier, 0, key, 0, 0, 0} : Command{Op::kWrite, what, 1, 0, 0, 16});
        return;
      }
      case BarrierAction::kTurn:
        rank.proxy->poster.turn();
        rank.proxy->note_posted();
        return;
      case BarrierAction::kDeliver: deliver(a); return;
      case BarrierAction::kComplete: rank.proxy->complete(a.index); return;
    }
  }

  void check() const {
    for (u32 r = 0; r < ranks_.size(); ++r) {
      const u64 left = rounds(r);
      for (u32 q = 0; q < ranks_.size(); ++q) {
        CHECK(left <= ranks_[q].entered);
        CHECK(ranks_[q].delivered >= writes_before(q, left));
      }
      CHECK(!ranks_[r].proxy->aborted());
      CHECK(ranks_[r].most_open <= plan_.max_in_flight);
    }
  }
  void check_end() const {
    for (u32 r = 0; r < ranks_.size(); ++r) {
      const std::vector<u32>& plan = plan_.ranks[r];
      CHECK_EQ(rounds(r), static_cast<u64>(std::count(plan.begin(), plan.end(), kMeet)));
      CHECK_EQ(ranks_[r].proxy->header(0).done, plan.size());
      CHECK_EQ(ranks_[r].proxy->ledger.in_flight(), 0ull);
    }
  }
  void state(Bytes& out) const {
    for (const Rank& r : ranks_) {
      r.proxy->state(out);
      put(out, r.pushed);
      put(out, r.delivered);
    }
  }
  std::string describe(const BarrierAction& a) const {
    static const char* names[] = {"pushes", "turns", "'s posted write is delivered: ", "'s posted write is complete: "};
    return "rank " + std::to_string(a.rank) + " " + names[a.kind] + std::to_string(a.index);
  }

 private:
  struct Rank {
    std::unique_ptr<Proxy> proxy;
    u64 pushed = 0, entered = 0, delivered = 0, most_open = 0;  // delivered: data writes of this rank
  };
  u64 rounds(u32 r) const { return ranks_[r].proxy->control.word(ControlLayout::kBarrier) - plan_.round; }
  // Data that rank q writes before it enters its nth round.
  u64 writes_before(u32 q, u64 n) const {
    u64 writes = 0, met = 0;
    for (const u32 what : plan_.ranks[q]) {
      if (met == n) break;
      met += what == kMeet;
      writes += what != kMeet;
    }
    return n == 0 ? 0 : writes;
  }
  void deliver(const BarrierAction& a) {
    Proxy& from = *ranks_[a.rank].proxy;
    const WriteRequest& w = from.lane.held[a.index];
    u64 open = 0;
    for (std::size_t i = 0; i < from.fates.size(); ++i)
      open += from.fates[i] != Proxy::kCompleted && from.lane.held[i].peer == w.peer;
    ranks_[a.rank].most_open = open > ranks_[a.rank].most_open ? open : ranks_[a.rank].most_open;
    from.fates[a.index] = Proxy::kDelivered;
    const Immediate i = unpack_immediate(w.immediate);
    CHECK_EQ(i.source, u32{a.rank});
    if (i.kind == ImmediateKind::kBarrier)  // a later round may have overtaken it
      CHECK(ranks_[w.peer].proxy->barrier.arrived(i.source, i.key).outcome != Outcome::kRefused);
    else
      ++ranks_[a.rank].delivered;
  }

  BarrierPlan plan_;
  std::vector<Rank> ranks_;
};

constexpr u64 kWrap = (1ull << kKeyBits) - 1;

}  // namespace

TEST(exhaustive_barrier_two_ranks) {
  explore("barrier, 2 ranks, data, 1 round", BarrierWorld({{{1, kMeet, 1}, {0, kMeet}}, kWrap}));
  explore("barrier, 2 ranks, 2 rounds", BarrierWorld({{{kMeet, kMeet}, {0, kMeet, kMeet}}, kWrap - 1}));
  explore("barrier, 2 ranks, data, 2 rounds", BarrierWorld({{{1, kMeet, kMeet}, {0, kMeet, 0, kMeet}}, 0}));
}

TEST(exhaustive_barrier_two_ranks_with_one_write_in_flight) {
  explore("barrier, 2 ranks, 1 in flight", BarrierWorld({{{1, 1, kMeet}, {0, kMeet}}, 7, 1}));
}

TEST(exhaustive_barrier_three_ranks) {
  explore("barrier, 3 ranks, 1 round", BarrierWorld({{{kMeet}, {kMeet}, {kMeet}}, 0}));
  explore("barrier, 3 ranks, data, 1 round", BarrierWorld({{{1, kMeet}, {kMeet}, {kMeet}}, kWrap}));
  if (depth() < 2) return;
  explore("barrier, 3 ranks, data from each", BarrierWorld({{{1, kMeet}, {2, kMeet}, {0, kMeet}}, 3}));
  explore("barrier, 3 ranks, 1 in flight", BarrierWorld({{{1, kMeet, 2}, {kMeet}, {0, kMeet}}, kWrap, 1}));
  explore("barrier, 3 ranks, 2 rounds", BarrierWorld({{{kMeet, kMeet}, {kMeet, kMeet}, {kMeet, kMeet}}, kWrap}));
}

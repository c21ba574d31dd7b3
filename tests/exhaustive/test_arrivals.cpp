// Partial completion, every interleaving: writes, announcements, landings of headers and reads of several (source,
// phase) at once, across epochs that share a buffer set. Oracle: sets of what was delivered, in plain counts.
#include <algorithm>

#include "exhaustive/private_state.h"
#include "exhaustive/rank.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

struct Stream {
  u32 source;
  Phase phase;
  std::vector<u32> writes;  // of epochs base + 1, base + 2, ...
};

// What the network still holds of one epoch, and how far its announcement is. An announcement's bytes land at any time
// before its immediate.
enum Header : u8 { kUnsent, kLanded, kSeen };
struct Sent {
  u8 delivered = 0;
  u8 header = kUnsent;
  u8 said = 0;      // the epoch of the header that was in place when this one was looked at
  u8 in_place = 0;  // of the first two: the epoch whose header is in this set's place
};

class ArrivalsWorld {
 public:
  enum Kind : u8 { kWrite, kLand, kExpect, kRead, kStaleWrite, kStaleExpect };
  struct Action {
    Kind kind;
    u8 stream, epoch;  // index into `streams`, and from 0
  };
  using Snapshot = Bytes;

  ArrivalsWorld(std::vector<Stream> streams, u64 base) : base_(base), streams_(std::move(streams)), rank_(4, 1) {
    for (const Stream& s : streams_) {
      rank_.set_word(rank_.layout.flag(s.phase, s.source), base_);
      sent_.emplace_back(s.writes.size());
    }
    consumed_.assign(streams_.size(), 0);
    arrivals_ = std::make_unique<Arrivals>(rank_.base(), rank_.layout);
  }

  void actions(std::vector<Action>& out) const {
    for (u8 s = 0; s < streams_.size(); ++s) {
      const u64 flag = flag_of(s);
      // A buffer set is used again when its reader has finished it (kernels/low_latency/common.h wait_for_reuse).
      const std::size_t open = streams_[s].phase == Phase::kSpare ? streams_[s].writes.size() : consumed_[s] + 2u;
      for (u8 e = 0; e < streams_[s].writes.size() && e < open; ++e) {
        if (sent_[s][e].delivered < streams_[s].writes[e]) out.push_back({kWrite, s, e});
        if (sent_[s][e].header == kUnsent && may_land(s, e)) out.push_back({kLand, s, e});
        if (sent_[s][e].header == kLanded) out.push_back({kExpect, s, e});
      }
      if (flag > consumed_[s]) out.push_back({kRead, s, consumed_[s]});
      if (flag > 0) {
        out.push_back({kStaleWrite, s, static_cast<u8>(flag - 1)});
        out.push_back({kStaleExpect, s, static_cast<u8>(flag - 1)});
      }
    }
  }

  void act(const Action& a) {
    const Stream& s = streams_[a.stream];
    Sent& sent = sent_[a.stream][a.epoch];
    const u64 epoch = base_ + 1 + a.epoch;
    const u32 key = epoch_key(s.phase, epoch);
    switch (a.kind) {
      case kWrite:
        ++sent.delivered;
        CHECK(arrivals_->arrive(s.source, key, kNow).outcome == Outcome::kApplied);
        return;
      case kLand: {
        // The header before it in this place has been used, or it would be lost.
        CHECK(s.phase == Phase::kSpare || a.epoch < 2 || sent_[a.stream][a.epoch - 2].header == kSeen);
        const ExpectHeader header = ExpectHeader::make(epoch, s.writes[a.epoch], told(a, 0), told(a, 1));
        std::memcpy(rank_.base() + rank_.layout.expect(s.phase, epoch, s.source), &header, sizeof(header));
        sent.header = kLanded;
        sent_[a.stream][a.epoch & 1].in_place = a.epoch;
        return;
      }
      case kExpect:
        sent.header = kSeen;
        sent.said = sent_[a.stream][a.epoch & 1].in_place;
        CHECK(arrivals_->expect(s.source, key, kNow).outcome == Outcome::kApplied);
        return;
      case kRead:  // no early publish: whoever reads finds everything of the epoch
        CHECK_EQ(u32{sent.delivered}, s.writes[a.epoch]);
        CHECK(sent.header == kSeen);
        ++consumed_[a.stream];
        return;
      case kStaleWrite: CHECK(arrivals_->arrive(s.source, key, kNow).outcome == Outcome::kStale); return;
      case kStaleExpect: CHECK(arrivals_->expect(s.source, key, kNow).outcome == Outcome::kStale); return;
    }
  }

  void check() const {
    u64 consumed[2][4] = {};
    for (u8 s = 0; s < streams_.size(); ++s) {
      const std::vector<u32>& writes = streams_[s].writes;
      u64 complete = 0;
      while (complete < writes.size() && sent_[s][complete].delivered == writes[complete] &&
             sent_[s][complete].header == kSeen)
        ++complete;
      CHECK_EQ(flag_of(s), complete);  // never early, never late: the flag is the leading run of complete epochs
      u64 arrived = 0, due = 0;
      if (complete < writes.size()) {
        arrived = sent_[s][complete].delivered;
        due = sent_[s][complete].header == kSeen ? writes[complete] : 0;
      }
      const u64 progress = rank_.word(rank_.layout.progress(streams_[s].phase, streams_[s].source));
      CHECK_EQ(progress,
               streams_[s].phase == Phase::kSpare ? 0 : due << 32 | arrived);  // kSpare: barriers' (barrier.h)
      for (u8 e = 0; e < writes.size(); ++e)
        for (u32 word = 0; word < 2; ++word)
          if (sent_[s][e].header == kSeen) {
            u64& most = consumed[word][streams_[s].source];
            most = std::max(most, told({kExpect, s, sent_[s][e].said}, word));
          }
    }
    for (u32 source = 0; source < 4; ++source) {
      CHECK_EQ(rank_.word(rank_.layout.consumed(Phase::kDispatch, source)), consumed[0][source]);
      CHECK_EQ(rank_.word(rank_.layout.consumed(Phase::kCombine, source)), consumed[1][source]);
    }
  }
  void check_end() const {  // everything arrived and was read: nobody waits for ever
    for (u8 s = 0; s < streams_.size(); ++s) CHECK_EQ(u64{consumed_[s]}, u64{streams_[s].writes.size()});
  }

  void state(Bytes& out) const { copy_out(out); }
  Snapshot save() const {
    Bytes out;
    copy_out(out);
    return out;
  }
  void load(const Snapshot& in) {
    const char* from = in.data();
    const auto take = [&](void* to, std::size_t bytes) {
      std::memcpy(to, from, bytes);
      from += bytes;
    };
    auto& counters = private_of<ArrivalsCounters>(*arrivals_);
    take(counters.data(), counters.size() * sizeof(counters[0]));
    take(rank_.base() + ControlLayout::kTables, rank_.used() - ControlLayout::kTables);
    for (auto& stream : sent_) take(stream.data(), stream.size() * sizeof(Sent));
    take(consumed_.data(), consumed_.size());
  }
  std::string describe(const Action& a) const {
    static const char* names[] = {"write", "header lands", "expect", "read", "stale write", "stale expect"};
    const Stream& s = streams_[a.stream];
    return std::string(names[a.kind]) + " of epoch base+" + std::to_string(a.epoch + 1) + ", source " +
           std::to_string(s.source) + ", phase " + std::to_string(static_cast<u32>(s.phase));
  }

 private:
  static constexpr u64 kNow = 5;
  // Announcements of what was read (Phase::kSpare) wait for no reader: each is sent when the one before it has landed.
  bool may_land(u8 s, u8 e) const {
    return streams_[s].phase != Phase::kSpare || e == 0 || sent_[s][e - 1u].header != kUnsent;
  }
  u64 flag_of(u8 s) const { return rank_.flag(streams_[s].phase, streams_[s].source) - base_; }
  // What the announcement says its sender has consumed: differs by phase, grows with the epoch.
  u64 told(const Action& a, u32 word) const {
    return base_ + 3ull * a.epoch + (streams_[a.stream].phase == Phase::kCombine) + word;
  }
  void copy_out(Bytes& out) const {
    put_vector(out, private_of<ArrivalsCounters>(*arrivals_));
    put_bytes(out, rank_.base() + ControlLayout::kTables, rank_.used() - ControlLayout::kTables);
    for (const auto& stream : sent_) put_vector(out, stream);
    put_vector(out, consumed_);
  }

  u64 base_;
  std::vector<Stream> streams_;
  ControlSegment rank_;
  std::vector<std::vector<Sent>> sent_;
  std::vector<u8> consumed_;  // epochs that the reader of each stream has finished
  std::unique_ptr<Arrivals> arrivals_;
};

constexpr Phase kD = Phase::kDispatch, kC = Phase::kCombine;
constexpr u64 kWrap = (1ull << kEpochBits) - 2;  // epochs cross the field's end

}  // namespace

TEST(exhaustive_arrivals_one_source_three_epochs_of_up_to_four_writes) {
  const u32 most = 4;
  for (const u64 base : {0ull, kWrap}) {
    u64 states = 0;
    long double interleavings = 0;
    for (u32 a = 0; a <= most; ++a)
      for (u32 b = 0; b <= most; ++b)
        for (u32 c = 0; c <= most; ++c) {
          ArrivalsWorld world({{1, kD, {a, b, c}}}, base);
          const Explored e = Explorer<ArrivalsWorld>(world).run();
          states += e.states;
          interleavings += e.interleavings;
        }
    std::printf("explored arrivals, 1 source, 3 epochs of 0..%u writes, base %llu: %llu states, %.6Lg interleavings\n",
                most, base, states, interleavings);
  }
  explore("arrivals, 1 source, 3 epochs of 4 writes", ArrivalsWorld({{2, kC, {4, 4, 4}}}, 7));
}

TEST(exhaustive_arrivals_two_sources_share_a_phase) {
  explore("arrivals, 2 sources, 2 epochs", ArrivalsWorld({{1, kD, {1, 2}}, {3, kD, {2, 1}}}, kWrap));
  if (depth() > 1) explore("arrivals, 2 sources, 3 epochs", ArrivalsWorld({{1, kD, {2, 1, 1}}, {2, kD, {1, 2, 1}}}, 0));
}

TEST(exhaustive_arrivals_two_phases_of_a_source_share_its_consumed_words) {
  explore("arrivals, 2 phases, 2 epochs", ArrivalsWorld({{1, kD, {1, 2}}, {1, kC, {2, 0}}}, 0));
  explore("arrivals, 3 phases, 1 epoch", ArrivalsWorld({{1, kD, {2}}, {1, kC, {1}}, {1, Phase::kCounts, {1}}}, 0));
}

TEST(exhaustive_arrivals_two_sources_in_two_phases) {
  explore("arrivals, 2 sources x 2 phases, 1 epoch",
          ArrivalsWorld({{1, kD, {1}}, {1, kC, {1}}, {2, kD, {1}}, {2, kC, {0}}}, kWrap));
  if (depth() > 1)
    explore("arrivals, 2 sources x 2 phases, up to 2 epochs",
            ArrivalsWorld({{1, kD, {2, 1}}, {1, kC, {1}}, {2, kD, {1, 1}}, {2, kC, {2, 0}}}, kWrap));
}

// An engine that has not looked at an announcement when the one after next lands on top of it (found by
// tests/model/low_latency.pml): the newer one says all that the older one said.
TEST(exhaustive_arrivals_announcements_land_on_top_of_each_other) {
  for (const u64 base : {0ull, kWrap}) {
    explore("arrivals, 4 announcements in a row", ArrivalsWorld({{1, Phase::kSpare, {0, 0, 0, 0}}}, base));
    explore("arrivals, 4 announcements and a dispatch",
            ArrivalsWorld({{1, Phase::kSpare, {0, 0, 0, 0}}, {1, kD, {1, 1}}}, base));
  }
}

// The walk itself must be able to fail: a network that raises an epoch's count by one write too few.
TEST(exhaustive_arrivals_a_missing_write_is_seen) {
  ControlSegment rank(4, 1);
  Arrivals arrivals(rank.base(), rank.layout);
  const ExpectHeader header = ExpectHeader::make(1, 2, 0, 0);
  std::memcpy(rank.base() + rank.layout.expect(kD, 1, 1), &header, sizeof(header));
  arrivals.expect(1, epoch_key(kD, 1), 1);
  arrivals.arrive(1, epoch_key(kD, 1), 1);
  CHECK_EQ(rank.flag(kD, 1), 0ull);
}

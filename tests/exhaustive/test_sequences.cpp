// Sequence order, every interleaving: a sender with a bound on what is in flight, a network that delivers in any order
// and may deliver again, positions that wrap. Oracle: the set of chunks that have arrived.
#include "exhaustive/private_state.h"
#include "exhaustive/rank.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

struct Channel {
  Direction direction;
  u32 source, channel;
};
struct SequencePlan {
  std::vector<Channel> channels;
  u64 base;        // chunks that went before
  u32 num_chunks;  // of each channel
  u32 window;      // chunks from the oldest in flight to the newest, at most
  u32 duplicates;  // deliveries that the network may make again, of each channel
};

class SequencesWorld {
 public:
  enum Kind : u8 { kSend, kDeliver, kAgain };
  struct Action {
    Kind kind;
    u8 channel, chunk;
  };
  using Snapshot = Bytes;
  static constexpr u32 kNumChannels = 2;

  explicit SequencesWorld(const SequencePlan& plan) : plan_(plan), rank_(3, kNumChannels), nets_(plan.channels.size()) {
    for (const Channel& c : plan_.channels)
      rank_.set_word(rank_.layout.tail(c.direction, c.source, c.channel), plan.base);
    sequences_ = std::make_unique<Sequences>(rank_.base(), rank_.layout, counters_);
  }

  void actions(std::vector<Action>& out) const {
    for (u8 c = 0; c < nets_.size(); ++c) {
      const Net& n = nets_[c];
      u64 oldest = n.sent;
      for (u8 i = 0; i < n.sent; ++i)
        if (!(n.arrived >> i & 1)) {
          oldest = i;
          break;
        }
      if (n.sent < plan_.num_chunks && n.sent - oldest < plan_.window) out.push_back({kSend, c, n.sent});
      for (u8 i = 0; i < n.sent; ++i) {
        if (!(n.arrived >> i & 1)) out.push_back({kDeliver, c, i});
        if ((n.arrived >> i & 1) && n.again < plan_.duplicates) out.push_back({kAgain, c, i});
      }
    }
  }

  void act(const Action& a) {
    Net& n = nets_[a.channel];
    const Channel& c = plan_.channels[a.channel];
    const u32 key = stream_key(c.direction, c.channel, plan_.base + a.chunk);
    if (a.kind == kSend) {
      ++n.sent;
      return;
    }
    const Outcome expected = a.kind == kDeliver ? Outcome::kApplied : Outcome::kStale;
    CHECK(sequences_->chunk(c.source, key).outcome == expected);
    if (a.kind == kDeliver) n.arrived = static_cast<u16>(n.arrived | 1u << a.chunk);
    n.again = static_cast<u8>(n.again + (a.kind == kAgain));
  }

  void check() const {
    u64 waiting = 0;
    for (u8 c = 0; c < nets_.size(); ++c) {
      u64 run = 0, beyond = 0;
      while (nets_[c].arrived >> run & 1) ++run;
      for (u32 i = static_cast<u32>(run); i < plan_.num_chunks; ++i) beyond += nets_[c].arrived >> i & 1;
      const Channel& at = plan_.channels[c];
      // The tail is the leading run: no chunk is passed over, none counts twice, none waits once its turn has come.
      CHECK_EQ(rank_.word(rank_.layout.tail(at.direction, at.source, at.channel)), plan_.base + run);
      waiting = beyond > waiting ? beyond : waiting;
    }
    CHECK(counters_.deepest_reorder >= waiting);
  }
  void check_end() const {
    for (const Net& n : nets_) CHECK_EQ(u32{n.sent}, plan_.num_chunks);
    for (const Channel& c : plan_.channels)
      CHECK_EQ(rank_.word(rank_.layout.tail(c.direction, c.source, c.channel)), plan_.base + plan_.num_chunks);
  }

  void state(Bytes& out) const {  // the deepest reorder is a report: it decides nothing
    put_streams(out);
    put_vector(out, nets_);
  }
  Snapshot save() const {
    Bytes out;
    state(out);
    put(out, counters_.deepest_reorder);
    return out;
  }
  void load(const Snapshot& in) {
    const std::size_t streams = num_streams() * stream_bytes(), nets = nets_.size() * sizeof(Net);
    std::memcpy(private_of<SequenceStreams>(*sequences_).get(), in.data(), streams);
    std::memcpy(rank_.base(), in.data() + streams, rank_.used());
    std::memcpy(nets_.data(), in.data() + streams + rank_.used(), nets);
    std::memcpy(&counters_.deepest_reorder, in.data() + streams + rank_.used() + nets, 8);
  }
  std::string describe(const Action& a) const {
    static const char* names[] = {"send", "deliver", "deliver again"};
    return std::string(names[a.kind]) + " chunk base+" + std::to_string(a.chunk) + " of stream " +
           std::to_string(a.channel);
  }

 private:
  struct Net {
    u16 arrived = 0;  // bit per chunk
    u8 sent = 0, again = 0;
  };
  static constexpr std::size_t num_streams() { return kNumDirections * 3 * kNumChannels; }
  std::size_t stream_bytes() const { return sizeof(private_of<SequenceStreams>(*sequences_)[0]); }
  void put_streams(Bytes& out) const {
    put_bytes(out, private_of<SequenceStreams>(*sequences_).get(), num_streams() * stream_bytes());
    put_bytes(out, rank_.base(), rank_.used());
  }

  SequencePlan plan_;
  ControlSegment rank_;
  std::vector<Net> nets_;
  WorkerCounters counters_{};
  std::unique_ptr<Sequences> sequences_;
};

constexpr Channel kOne[] = {{Direction::kDispatch, 1, 1}};
constexpr Channel kTwo[] = {{Direction::kDispatch, 1, 1}, {Direction::kCombine, 1, 1}};
// Where the ten bits of a position wrap, and where the bitmap of waiting chunks does.
constexpr u64 kBases[] = {0, (1ull << kSequenceBits) - 3, kMaxSequenceInFlight - 3, (1ull << 32) - 3};

SequencePlan plan(std::span<const Channel> channels, u64 base, u32 chunks, u32 window, u32 duplicates) {
  return {{channels.begin(), channels.end()}, base, chunks, window, duplicates};
}

}  // namespace

TEST(exhaustive_sequences_windows_of_one_to_four) {
  for (const u64 base : kBases)
    for (u32 window = 1; window <= 4; ++window) {
      const std::string name = "sequences, window " + std::to_string(window) + ", from " + std::to_string(base);
      explore(name, SequencesWorld(plan(kOne, base, depth() > 1 ? 12 : 8, window, 2)));
    }
}

TEST(exhaustive_sequences_two_streams_at_once) {
  const u32 chunks = depth() > 1 ? 7 : 5;
  explore("sequences, 2 directions, window 3", SequencesWorld(plan(kTwo, kBases[1], chunks, 3, 1)));
  const Channel same[] = {{Direction::kCombine, 1, 0}, {Direction::kCombine, 2, 0}};
  explore("sequences, 2 sources, window 3", SequencesWorld(plan(same, kBases[1], chunks, 3, 1)));
}

// The whole order of up to eight chunks at once: 8! deliveries, and more with the sends between them.
TEST(exhaustive_sequences_every_order_of_a_whole_window) {
  const u32 chunks = depth() > 1 ? 12 : 8;
  const Explored e = explore("sequences, whole window", SequencesWorld(plan(kOne, kBases[1], chunks, chunks, 0)));
  CHECK(e.interleavings >= 40320.0L);
}

// A sender that breaks the bound is what the window cannot hold: the world must notice.
TEST(exhaustive_sequences_a_chunk_beyond_the_window_is_lost) {
  ControlSegment rank(2, 1);
  WorkerCounters counters{};
  Sequences sequences(rank.base(), rank.layout, counters);
  const auto chunk = [&](u64 n) { return sequences.chunk(1, stream_key(Direction::kDispatch, 0, n)).outcome; };
  CHECK(chunk(kMaxSequenceInFlight - 1) == Outcome::kApplied);
  CHECK(chunk(kMaxSequenceInFlight) == Outcome::kStale);
}

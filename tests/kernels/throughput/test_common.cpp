// Addresses of streams as both ends see them, shares of channels, destinations, and slot arithmetic.
#include <set>

#include "kernels/throughput/common.h"
#include "kernels/world.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

WorldShape shape_of(std::vector<u32> node_of) {
  WorldShape shape;
  shape.node_of = std::move(node_of);
  shape.unit_bytes = 1024;
  return shape;
}

}  // namespace

TEST(throughput_common_ranks_of_a_node_agree_on_every_stream) {
  World world(shape_of({0, 0, 1, 2, 2, 2, 1}));
  for (u32 source = 0; source < 7; ++source)
    for (u32 channel = 0; channel < 4; ++channel)
      for (u32 a = 0; a < 7; ++a) {
        const RankContext& ca = world.context(a);
        const u32 host = ca.topology.host_of(source, ca.topology.node);
        const StreamAddress mine = dispatch_stream(ca, world.throughput, source, channel);
        const StreamAddress hosts = dispatch_stream(world.context(host), world.throughput, source, channel);
        CHECK(mine.unit == hosts.unit && mine.tail == hosts.tail && mine.heads == hosts.heads);
        // A remote stream's tail is written by the host's proxy, so it lies in the control segment.
        const u8* tail = reinterpret_cast<const u8*>(mine.tail);
        const bool in_control = tail >= world.control(host) && tail < world.control(host) + ca.control_layout.bytes();
        CHECK_EQ(in_control, !ca.topology.is_local(source));
      }
}

TEST(throughput_common_streams_do_not_share_memory) {
  World world(shape_of({0, 0, 1, 2, 2}));
  for (u32 me = 0; me < 5; ++me) {
    std::set<const void*> units, words;
    const RankContext& c = world.context(me);
    for (u32 source = 0; source < 5; ++source) {
      if (c.topology.host_of(source, c.topology.node) == me)
        CHECK(units.insert(dispatch_stream(c, world.throughput, source, 0).unit).second);
      CHECK(units.insert(contribution_stream(c, world.throughput, me, source, 0).unit).second);
      for (u32 channel = 0; channel < 4; ++channel) {
        const StreamAddress s = contribution_stream(c, world.throughput, me, source, channel);
        CHECK(words.insert(s.tail).second && words.insert(s.heads).second);
      }
    }
    for (u32 n = 0; n < 3; ++n)
      if (n != c.topology.node) CHECK(units.insert(partial_stream(c, world.throughput, n, 0).unit).second);
  }
}

TEST(throughput_common_channels_share_tokens_out) {
  for (const u32 tokens : {0u, 1u, 7u, 8u, 9u, 63u, kMaxTokensPerRank})
    for (const u32 channels : {1u, 2u, 7u, kMaxChannels}) {
      CHECK_EQ(channel_begin(tokens, channels, 0), 0u);
      CHECK_EQ(channel_begin(tokens, channels, channels), tokens);
      for (u32 c = 0; c < channels; ++c) {
        const u32 begin = channel_begin(tokens, channels, c), end = channel_begin(tokens, channels, c + 1);
        CHECK(begin <= end && end - begin <= ceil_div(tokens, channels));
      }
    }
}

TEST(throughput_common_destinations_are_ranks_of_the_node) {
  World world(shape_of({0, 1, 0, 1, 1}));
  const u8 in_rank[10] = {1, 0, 0, 1, 1, 0, 1, 1, 0, 0};
  const RankContext& c = world.context(2);
  CHECK_EQ(destinations(c, in_rank, 0, 0), 1u);
  CHECK_EQ(destinations(c, in_rank, 0, 1), 6u);
  CHECK_EQ(destinations(c, in_rank, 1, 0), 2u);
  CHECK_EQ(destinations(c, in_rank, 1, 1), 1u);
}

TEST(throughput_common_slot_opens_when_the_slowest_reader_has_left) {
  World world(shape_of({0, 0}));
  StreamGeometry g;
  g.num_slots = 3;
  u64 heads[2] = {4, 6};
  const WaitContext wait = wait_context(world.context(0));
  CHECK_EQ(slowest_head(heads, 2), 4u);
  u32 who = 9;
  CHECK_EQ(slowest_head(heads, 2, &who), 4u);
  CHECK_EQ(who, 0u);
  const u64 others[3] = {7, 5, 5};
  CHECK_EQ(slowest_head(others, 3, &who), 5u);
  CHECK_EQ(who, 1u);
  const WaitSite site{WaitPhase::kDispatchSend, 0, 0, 6};
  CHECK(wait_for_slot(wait, site, g, 6, [&] { return slowest_head(heads, 2); }));
  WaitContext late = wait;
  late.deadline_ns = 0;  // chunk 7 is one beyond what the ring holds
  CHECK(!wait_for_slot(late, site, g, 7, [&] { return slowest_head(heads, 2); }));
  CHECK(world.fault(0).kind == FaultKind::kTimeout);
  heads[0] = 5;
  CHECK(wait_for_slot(wait, site, g, 7, [&] { return slowest_head(heads, 2); }));
}

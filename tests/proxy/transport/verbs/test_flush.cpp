// What NICs write into a GPU's memory: arrivals are told after a read by the same NIC, and never when that fails.
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "native/check.h"
#include "proxy/transport/verbs/family.h"
#include "transport/verbs/errors.h"
#include "transport/verbs/flush.h"

using namespace uccl;

namespace {

// The region that the contract's tests write to lies in a GPU, whose memory lags behind immediates.
contract::Family in_gpu(bool flushes, u64 seed, u32 nics = 1) {
  fake::Options o;
  o.seed = seed;
  o.num_devices = nics;
  o.device_lags = true;
  return verbs_test::on_fake(o, [flushes, nics](TransportSettings& s) {
    s.fabric.nics.clear();
    for (u32 i = 0; i < nics; ++i) s.fabric.nics.push_back({"fake" + std::to_string(i), 1, -1});
    s.fabric.span_dmabuf_fds = {{5}, {}, {}};
    s.fabric.flushed_span = flushes ? 0 : -1;
  });
}

struct Pair {
  explicit Pair(bool flushes, u64 seed = 1) : group(in_gpu(flushes, seed), contract::Shape{}) {}
  // A queue may still be full of writes that have arrived and whose completions nobody has polled.
  void write(u32 immediate, u64 bytes) {
    const WriteRequest r{1, immediate, contract::random_bytes(), contract::Group::kBase, bytes, immediate};
    CHECK(contract::poll_until([&] { return complete(), group.lane(0).post({&r, 1}) == 1; }));
    group.lane(0).flush();
    ++written;
  }
  void complete() {
    u64 wr_ids[64];
    completed += group.lane(0).poll_completions(wr_ids);
  }
  // Polls until rank 1 has been told of so many writes.
  void receive(std::size_t wanted) {
    std::size_t seen = 0;
    CHECK(contract::poll_until([&] {
      Arrival a[64];
      complete();
      return (seen += group.lane(1).poll_arrivals(a)) == wanted;
    }));
  }
  bool visible() { return std::memcmp(group.memory(1), contract::random_bytes(), 64) == 0; }

  contract::Group group;
  std::size_t written = 0, completed = 0;
};

}  // namespace

TEST(transport_verbs_flush_makes_bytes_visible_before_arrivals_are_told) {
  for (const u32 nics : {1u, 3u})
    for (u64 seed = 1; seed <= 3; ++seed)
      contract::random_writes(in_gpu(true, seed, nics), contract::Shape{.num_ranks = 3, .num_lanes = 2}, 100, 3000,
                              seed);
  contract::last_words(in_gpu(true, 7));
  contract::peer_destroyed(in_gpu(true, 8));
  contract::close_peer(in_gpu(true, 9));
  contract::full_queue(in_gpu(true, 10));
}

TEST(transport_verbs_flush_is_missed_when_it_is_left_out) {
  Pair without(false);
  without.write(1, 64);
  without.receive(1);
  CHECK(!without.visible());
  Pair with(true);
  with.write(1, 64);
  with.receive(1);
  CHECK(with.visible());
}

// One read for whatever has come; none for immediates alone, which are credits and rounds of barriers.
TEST(transport_verbs_flush_is_one_read_a_batch) {
  Pair p(true);
  fake::Fabric& f = fake::Fabric::the();
  CHECK_EQ(f.num_reads(), 2u);  // each end has tried one
  for (u32 i = 0; i < 40; ++i) p.write(i, 0);
  p.receive(40);
  CHECK_EQ(f.num_reads(), 2u);
  for (u32 i = 0; i < 40; ++i) p.write(i, 64);
  CHECK(contract::poll_until([&] { return p.complete(), p.completed == p.written; }));  // before the receiver looks
  p.receive(40);
  CHECK(p.visible());
  CHECK_EQ(f.num_reads(), 3u);
}

TEST(transport_verbs_flush_that_fails_ends_connections_and_tells_nothing) {
  Pair p(true);
  fake::Fabric::the().options.refuse_reads = true;
  p.write(1, 64);
  PeerEvent e{};
  CHECK(contract::poll_until([&] {
    Arrival a[8];
    p.complete();
    CHECK_EQ(p.group.lane(1).poll_arrivals(a), 0u);
    return p.group.lane(1).poll_events({&e, 1}) == 1;
  }));
  CHECK(e.fault == PeerFault::kNetwork);
  CHECK_EQ(e.code, on_nic(kVerbsFlush | static_cast<int>(ibv::kWcRemAccessErr), 0));
  CHECK(explain_code("verbs", e.code).find("could not read its GPU's memory") != std::string::npos);
}

TEST(transport_verbs_flush_is_tried_at_the_start) {
  fake::Options o;
  o.refuse_reads = true;
  const contract::Family f = verbs_test::on_fake(o, [](TransportSettings& s) { s.fabric.flushed_span = 0; });
  std::vector<std::shared_ptr<Segment>> segments;
  std::vector<std::unique_ptr<Transport>> ranks;
  for (u32 r = 0; r < 2; ++r) {
    segments.push_back(Segment::create("flush", 1 << 20));
    ranks.push_back(f.make(contract::settings_for(contract::Shape{}, r, *segments.back())));
  }
  for (const std::string& error : contract::connect_all(ranks))
    CHECK(error.find("cannot read the GPU's memory") != std::string::npos);
}

// Peers hold the key of the same memory: only the queue pair that is connected to itself allows reads.
TEST(transport_verbs_flush_lets_no_peer_read) {
  fake::Fabric& f = fake::Fabric::begin({});
  std::vector<Note> notes;
  static u8 memory[4096];
  TransportSettings s;
  s.local.add(Span{0, sizeof memory, memory});
  s.fabric.flushed_span = 0;
  const VerbsNic nic(f.functions(), {"fake0", 1, -1}, s.fabric, notes);
  const VerbsMemory registered(nic, s, {}, notes);
  VerbsFlush flush(nic, registered, memory, s.fabric);
  flush.run(1'000'000'000);
  CHECK_EQ(f.num_reads(), 1u);
  for (const auto& [number, qp] : f.qps_) CHECK_EQ(qp->access & ibv::kAccessRemoteWrite, 0u);
  CompletionQueue cq(nic, 4, false);
  QueuePair peers(nic, {cq.get(), cq.get(), nullptr, 4, 4, 0, false});
  CHECK_EQ(f.qps_.at(peers.number())->access & ibv::kAccessRemoteRead, 0u);
}

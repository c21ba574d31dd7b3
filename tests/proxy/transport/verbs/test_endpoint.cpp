// Queue pair numbers find their index; sizes follow the in-flight bound and the device's limits, which are said.
#include <map>
#include <stdexcept>

#include "native/check.h"
#include "proxy/transport/contract.h"
#include "proxy/transport/verbs/family.h"
#include "transport/verbs/endpoint.h"

using namespace uccl;

TEST(transport_verbs_endpoint_table_finds_what_was_added) {
  for (const u32 size : {1u, 2u, 100u, 5000u}) {
    QueuePairTable table(size);
    std::map<u32, u32> expected;
    for (u32 i = 0; expected.size() < size; ++i) {
      const u32 number = static_cast<u32>(contract::mix(size, i)) & 0xffffff;
      if (expected.count(number)) continue;
      expected[number] = i;
      table.add(number, i);
    }
    for (const auto& [number, index] : expected) CHECK_EQ(table.find(number), index);
    for (u32 i = 0; i < 1000; ++i) {
      const u32 number = static_cast<u32>(contract::mix(i, size)) & 0xffffff;
      if (!expected.count(number)) CHECK_EQ(table.find(number), QueuePairTable::kNone);
    }
  }
}

TEST(transport_verbs_endpoint_sizes_and_limits) {
  fake::Options o;
  o.max_srq_wr = 1000;
  o.max_qp_wr = 50;
  o.max_cqe = 300;
  fake::Fabric& f = fake::Fabric::begin(o);
  std::vector<Note> notes;
  const VerbsNic nic(f.functions(), {"fake0", 1, -1}, {}, notes);
  notes.clear();
  VerbsEndpoint small(nic, {2, 40, 80, 0, true}, notes);
  CHECK(notes.empty());
  CHECK_EQ(small.queue_depth(), 40u);
  CHECK(small.has_room(80));
  CHECK(!small.has_room(81));
  small.take_room(79);
  CHECK(small.has_room(1) && !small.has_room(2));
  small.give_room(79);
  VerbsEndpoint large(nic, {10, 60, 600, 0, true}, notes);
  CHECK_EQ(large.queue_depth(), 50u);
  CHECK(large.has_room(300) && !large.has_room(301));  // the completion queue's
  CHECK_EQ(notes.size(), 2u);
  CHECK(notes[0].choice.find("300 receives") != std::string::npos);
  CHECK(notes[1].choice.find("50 writes") != std::string::npos);
}

// The fake is as strict as the strictest: a receive without memory is none. Broadcom's queue pairs do not share theirs.
TEST(transport_verbs_endpoint_receives_name_memory) {
  struct Nic {
    int max_srq;
    u32 vendor;
    bool shares;
  };
  for (const Nic n : {Nic{1000, 0x02c9, true}, Nic{0, 0x02c9, false}, Nic{1000, fake::kBroadcom, false}}) {
    fake::Options o;
    o.max_srq = n.max_srq;
    o.vendor = n.vendor;
    fake::Fabric& f = fake::Fabric::begin(o);
    std::vector<Note> notes;
    const VerbsNic nic(f.functions(), {"fake0", 1, -1}, {}, notes);
    CHECK(f.covering(nic.dummy().lkey, nic.dummy().addr, nic.dummy().length) != nullptr);
    VerbsEndpoint endpoint(nic, {1, 40, 80, 0, true}, notes);
    QueuePair pair = endpoint.make_queue_pair();
    endpoint.post_first_receives();
    const fake::Qp& q = *f.qps_.at(pair.number());
    CHECK_EQ(q.base.srq != nullptr, n.shares);
    CHECK_EQ(n.shares ? static_cast<fake::Srq*>(q.base.srq)->posted : q.posted_receives, 80u);
  }
}

// A receiver that does not look: what peers may have on its way never passes what the completion queue holds.
TEST(transport_verbs_endpoint_arrivals_cannot_overrun_their_queue) {
  for (const int max_srq : {1000, 0}) {
    fake::Options o;
    o.max_srq = max_srq;
    o.max_cqe = 300;
    contract::Group g(verbs_test::on_fake(o, [](TransportSettings& s) { s.fabric.queue_pairs = 4; }),
                      contract::Shape{});
    u64 done = 0;
    for (int i = 0; i < 4000; ++i) {
      const WriteRequest w{1, 1, contract::random_bytes(), contract::Group::kBase, 64, 1};
      u64 t[8];
      g.lane(0).post(std::span(&w, 1));
      g.lane(0).flush();
      done += g.lane(0).poll_completions(t);
    }
    CHECK(done > 200 && done <= 300);
    CHECK(fake::Fabric::the().num_not_ready() != 0);
    CHECK_EQ(fake::Fabric::the().num_overruns(), 0u);
  }
}

TEST(transport_verbs_endpoint_too_many_queue_pairs_for_a_completion_queue_are_refused) {
  fake::Options o;
  o.max_srq = 0;
  o.max_cqe = 100;
  fake::Fabric& f = fake::Fabric::begin(o);
  std::vector<Note> notes;
  const VerbsNic nic(f.functions(), {"fake0", 1, -1}, {}, notes);
  VerbsEndpoint most(nic, {50, 4, 5000, 0, true}, notes);
  try {
    VerbsEndpoint more(nic, {51, 4, 5000, 0, true}, notes);
    CHECK(false);
  } catch (const std::runtime_error& e) { CHECK(std::string(e.what()).find("fewer queue_pairs") != std::string::npos); }
}

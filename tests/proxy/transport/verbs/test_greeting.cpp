// Which NICs of two ranks belong together, and what connect() refuses.
#include <map>
#include <set>
#include <stdexcept>
#include <thread>

#include "native/check.h"
#include "proxy/transport/contract.h"
#include "proxy/transport/efa/fake_efa.h"
#include "proxy/transport/verbs/family.h"
#include "transport/verbs/greeting.h"

using namespace uccl;

TEST(transport_verbs_greeting_both_sides_pair_nics_alike) {
  for (u32 mine = 1; mine <= 8; ++mine) {
    for (u32 theirs = 1; theirs <= 8; ++theirs) {
      for (u32 rank = 0; rank < 6; ++rank) {
        const u32 peer = rank + 1 + mine % 3;
        const auto here = pair_nics(rank, mine, peer, theirs), there = pair_nics(peer, theirs, rank, mine);
        CHECK_EQ(here.size(), std::min(mine, theirs));
        CHECK_EQ(here.size(), there.size());
        std::set<u32> used_here, used_there;
        for (std::size_t i = 0; i < here.size(); ++i) {
          CHECK_EQ(here[i].mine, there[i].theirs);
          CHECK_EQ(here[i].theirs, there[i].mine);
          used_here.insert(here[i].mine);
          used_there.insert(here[i].theirs);
        }
        CHECK_EQ(used_here.size(), here.size());
        CHECK_EQ(used_there.size(), here.size());
      }
    }
  }
}

TEST(transport_verbs_greeting_works_between_ranks_with_different_nics) {
  fake::Options o;
  o.num_devices = 3;
  const contract::Family f = verbs_test::on_fake(o, [](TransportSettings& s) {
    for (u32 i = 1; i <= s.rank; ++i) s.fabric.nics.push_back({"fake" + std::to_string(i), 1, -1});
  });
  contract::random_writes(f, contract::Shape{.num_ranks = 3, .num_lanes = 2}, 200, 2000, 8);
}

TEST(transport_verbs_greeting_gives_each_queue_pair_to_a_peer_a_port_of_its_own) {
  fake::Options o;
  o.num_devices = 2;
  std::map<u32, u32> ports;
  const contract::Family f = verbs_test::on_fake(o, [](TransportSettings& s) {
    s.fabric.nics.push_back({"fake1", 1, s.fabric.nics[0].gid_index});
    s.fabric.queue_pairs = 2;
    s.fabric.udp_source_port = 0xc001;
  });
  const contract::Group group(f, contract::Shape{.num_ranks = 2, .num_lanes = 3});
  for (const auto& [number, qp] : fake::Fabric::the().qps_) ++ports[qp->flow_label];
  CHECK_EQ(ports.size(), 3u * 2 * 2);
  for (const auto& [port, queue_pairs] : ports) CHECK_EQ(queue_pairs, 2u);  // both ranks count from the same base
}

namespace {

// Two ranks whose connect() a test calls by itself.
struct Pair {
  explicit Pair(const contract::Family& f, const contract::Shape& shape) {
    for (u32 r = 0; r < 2; ++r) {
      segments.push_back(Segment::create("pair", shape.region_bytes));
      transports.push_back(f.make(contract::settings_for(shape, r, *segments.back())));
      addresses.push_back(transports.back()->local_address());
    }
  }
  // In a thread of its own; what connect() throws is in `errors`.
  std::thread connect(u32 rank) {
    return std::thread([this, rank] {
      try {
        transports[rank]->connect(addresses);
      } catch (const std::exception& e) { errors[rank] = e.what(); }
    });
  }
  std::vector<std::shared_ptr<Segment>> segments;
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<std::string> addresses;
  std::string errors[2];
};

// Rank 1 comes when `moved` queue pairs have been moved to the error state; a note of rank 0's then says `note`.
void comes_late(const fake::Options& o, u32 moved, const std::string& note) {
  const auto shorter = [](TransportSettings& s) { s.fabric.timeout = 17; };  // 0.5 s, eight times
  Pair two(verbs_test::on_fake(o, shorter), contract::Shape{.num_ranks = 2, .num_lanes = 2});
  std::thread early = two.connect(0);
  const bool again = contract::poll_until([&] { return fake::Fabric::the().num_moved_to_error() >= moved; });
  two.connect(1).join();
  early.join();
  CHECK(again);
  CHECK_EQ(two.errors[0] + two.errors[1], std::string());
  bool told = false;
  for (const Note& n : two.transports[0]->notes()) told |= n.choice.find(note) != std::string::npos;
  CHECK(told);
}

}  // namespace

// A NIC repeats what was not answered late: who comes late is greeted again sooner than that.
TEST(transport_verbs_greeting_a_late_rank_is_greeted_again) {
  fake::Options o;
  o.retry_ns = 0;
  for (const int max_srq : {1000, 0}) {
    o.max_srq = max_srq;
    comes_late(o, 2, "greeted again");
  }
}

// Of Broadcom's drivers one of no use is tried first. An old one would flush each greeting that is sent again.
TEST(transport_verbs_greeting_an_old_broadcom_is_left_to_its_nic) {
  fake::Options o;
  o.retry_ns = 0;
  o.vendor = fake::kBroadcom;
  comes_late(o, 3, "greeted again");
  o.old_broadcom = true;
  comes_late(o, 1, "own retries");
}

// Its peer works already and has sent packets that nobody has counted, in as many completions as are not looked at at once.
TEST(transport_verbs_greeting_arrivals_are_counted_before_a_queue_pair_begins_anew) {
  fake::Options o;
  o.num_devices = 2;
  o.retry_ns = 60'000'000'000;
  VerbsTuning patient;
  patient.greeting_ns = 60'000'000'000;
  const auto many = [](TransportSettings& s) {
    s.fabric.nics[0].device = "fake" + std::to_string(s.rank);
    s.fabric.queue_pairs = 64;  // greetings, as many as are polled at once
  };
  Pair two(verbs_test::on_fake(o, many, patient), contract::Shape{});
  fake::Fabric& fabric = fake::Fabric::the();
  fabric.hold_completions(0, true);
  std::thread held = two.connect(0);
  two.connect(1).join();
  Lane& lane = two.transports[1]->lane(0);
  const WriteRequest w{0, 7, contract::random_bytes(), contract::Group::kBase, 64, 1};
  u64 id = 0;
  CHECK_EQ(lane.post(std::span(&w, 1)), 1u);
  lane.flush();
  const bool arrived = contract::poll_until([&] { return lane.poll_completions(std::span(&id, 1)) == 1; });
  fabric.break_queue_pair(fabric.first_queue_pair(0));  // the one that has least before it, and took the write
  fabric.hold_completions(0, false);
  held.join();
  CHECK(arrived);
  CHECK_EQ(two.errors[1], std::string());
  CHECK(two.errors[0].find("broke while it was being proven") != std::string::npos);
}

// The address says the right secret's fingerprint, but who uses it does not know the secret: the proof tells. Or each
// knows it, and is heard by who looks for a proof of another life.
void refuses_a_wrong_proof(const contract::Family& f, bool of_another_life) {
  contract::Shape shape;
  shape.connect_timeout_ns = 300'000'000;
  std::vector<std::shared_ptr<Segment>> segments;
  std::vector<std::unique_ptr<Transport>> t;
  std::vector<std::string> addresses;
  for (u32 r = 0; r < 2; ++r) {
    segments.push_back(Segment::create("greeting", shape.region_bytes));
    TransportSettings s = contract::settings_for(shape, r, *segments.back());
    if (r == 1 && !of_another_life) s.secret.back() = 't';
    t.push_back(f.make(s));
    addresses.push_back(t.back()->local_address());
  }
  std::vector<std::vector<std::string>> seen(2);
  for (u32 r = 0; r < 2; ++r) {  // each is shown an address that claims its own fingerprint
    VerbsAddress other = decode_address(addresses[1 - r]);
    other.fingerprint = decode_address(addresses[r]).fingerprint;
    if (of_another_life) other.nonce[0] ^= 1;
    seen[r] = {"", ""};
    seen[r][1 - r] = encode_address(other);
  }
  std::string errors[2];
  std::thread second([&] {
    try {
      t[1]->connect(seen[1]);
    } catch (const std::runtime_error& e) { errors[1] = e.what(); }
  });
  try {
    t[0]->connect(seen[0]);
  } catch (const std::runtime_error& e) { errors[0] = e.what(); }
  second.join();
  for (const std::string& e : errors) CHECK(!e.empty());
}

TEST(transport_verbs_greeting_a_wrong_proof_is_refused) {
  refuses_a_wrong_proof(verbs_test::on_fake({}), false);
  refuses_a_wrong_proof(efa_test::on_fake({}), false);
}
TEST(transport_verbs_greeting_a_proof_of_another_life_is_refused) {
  refuses_a_wrong_proof(verbs_test::on_fake({}), true);
  refuses_a_wrong_proof(efa_test::on_fake({}), true);
}

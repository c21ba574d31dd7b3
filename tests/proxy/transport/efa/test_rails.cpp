// What an EFA queue pair is granted by new and old libraries, and said in notes.
#include <stdexcept>

#include "native/check.h"
#include "proxy/transport/contract.h"
#include "proxy/transport/efa/fake_efa.h"

using namespace uccl;

namespace {

std::string notes_of(const efa_test::Device& d) {
  const contract::Family f = efa_test::on_fake({}, d);
  auto segment = Segment::create("efa", 1 << 20);
  std::string all;
  for (const Note& n : f.make(contract::settings_for(contract::Shape{}, 0, *segment))->notes())
    all += n.choice + ": " + n.reason + "\n";
  return all;
}

}  // namespace

TEST(transport_efa_rails_say_what_the_library_granted) {
  const std::string fresh = notes_of({});
  CHECK(fresh.find("service level 8: a write takes a posted receive\n") != std::string::npos);
  efa_test::Device d = efa_test::unsolicited();
  CHECK(notes_of(d).find("service level 8: writes need no receive here") != std::string::npos);
  d.old_library = true;
  const std::string old = notes_of(d);
  CHECK(old.find("service level 0: a write takes a posted receive; after Invalid argument") != std::string::npos);
  d = {};
  d.caps = efadv::kCapsRdmaWrite;
  CHECK(notes_of(d).find("service level 8: a write takes a posted receive\n") != std::string::npos);
}

// Who falls back to receives has as many as who had them from the start.
TEST(transport_efa_rails_have_receives_for_what_they_take) {
  for (const bool refused : {false, true}) {
    efa_test::Device d = refused ? efa_test::unsolicited() : efa_test::Device();
    d.old_library = refused;
    const contract::Family f = efa_test::on_fake({}, d);
    auto segment = Segment::create("efa", 1 << 20);
    contract::Shape shape;
    shape.num_ranks = 3;
    const auto t = f.make(contract::settings_for(shape, 0, *segment));
    CHECK_EQ(fake::Fabric::the().qps_.begin()->second->posted_receives, 2u * 2 + 64 + 4 * 2 * shape.max_in_flight);
  }
}

// Devices refuse RDMA between queue pairs of both kinds: the ranks are told before they try.
TEST(transport_efa_rails_of_two_kinds_are_refused) {
  const contract::Family f = efa_test::on_fake({}, efa_test::unsolicited());
  auto segment = Segment::create("efa", 1 << 20);
  const auto without = f.make(contract::settings_for({}, 0, *segment));
  efa_test::device() = {};
  const auto with = f.make(contract::settings_for({}, 1, *segment));
  try {
    with->connect({without->local_address(), with->local_address()});
    CHECK(false);
  } catch (const std::runtime_error& e) {
    CHECK(std::string(e.what()).find("rank 0 takes writes without receives, this rank with them") != std::string::npos);
  }
}

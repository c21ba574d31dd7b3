// What an EFA queue pair is granted by new and old libraries, and said in notes.
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
  CHECK(fresh.find("service level 8: writes need no receive here") != std::string::npos);
  efa_test::Device d;
  d.old_library = true;
  const std::string old = notes_of(d);
  CHECK(old.find("service level 0: a write takes a posted receive; after Invalid argument") != std::string::npos);
  d = {};
  d.caps = efadv::kCapsRdmaWrite;
  CHECK(notes_of(d).find("service level 8: a write takes a posted receive\n") != std::string::npos);
}

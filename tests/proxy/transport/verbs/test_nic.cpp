// Devices by name, the rule for GIDs, MTUs, and what a device says of itself while it runs.
#include <memory>
#include <stdexcept>

#include "native/check.h"
#include "proxy/transport/verbs/fake_verbs.h"
#include "transport/verbs/errors.h"
#include "transport/verbs/nic.h"

using namespace uccl;

namespace {

struct Opened {
  std::unique_ptr<VerbsNic> nic;
  std::string notes, error;
};

Opened open(const fake::Options& o, const NicSettings& n, const FabricSettings& f = {}) {
  Opened result;
  std::vector<Note> notes;
  fake::Fabric::begin(o);
  try {
    result.nic = std::make_unique<VerbsNic>(fake::Fabric::the().functions(), n, f, notes);
  } catch (const std::runtime_error& e) { result.error = e.what(); }
  for (const Note& note : notes) result.notes += note.choice + ": " + note.reason + "\n";
  return result;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST(transport_verbs_nic_chooses_the_gid_by_rule) {
  for (const bool extended : {true, false}) {
    fake::Options o;
    o.extended = extended;
    const Opened roce = open(o, {"fake0", 1, -1});
    CHECK_EQ(roce.nic->settings().gid_index, 2);
    CHECK_EQ(roce.nic->gid_type(), static_cast<u32>(ibv::kGidRoceV2));
    CHECK(has(roce.notes, "GID 2 of fake0:1: the first RoCE v2 entry with an IPv4 address"));
    CHECK(has(roce.notes, extended ? "could page on demand" : "has no on-demand paging"));
    o.link_layers = {ibv::kLinkInfiniband};
    const Opened ib = open(o, {"fake0", 1, -1});
    CHECK(!ib.nic->uses_gid());
    CHECK(has(ib.notes, "LID 1"));
    const Opened routed = open(o, {"fake0", 1, 1});
    CHECK(routed.nic->uses_gid());
  }
}

TEST(transport_verbs_nic_refusals_say_what_there_is) {
  fake::Options o;
  o.num_devices = 2;
  CHECK(has(open(o, {"mlx5_0", 1, -1}).error, "there are: fake0, fake1"));
  CHECK(has(open(o, {"fake0", 2, -1}).error, "no port 2"));
  CHECK(has(open(o, {"fake0", 1, 9}).error, "GID index 9"));
  FabricSettings f;
  f.mtu = 1500;
  CHECK(has(open(o, {"fake0", 1, -1}, f).error, "1500"));
  o.mtus = {ibv::kMtu1024};
  f.mtu = 2048;
  CHECK(has(open(o, {"fake0", 1, -1}, f).error, "its 1024"));
  f.mtu = 512;
  CHECK_EQ(open(o, {"fake0", 1, -1}, f).nic->mtu(), 512u);
}

TEST(transport_verbs_nic_mtus) {
  CHECK_EQ(mtu_bytes(ibv::kMtu256), 256u);
  CHECK_EQ(mtu_bytes(ibv::kMtu4096), 4096u);
  CHECK_EQ(mtu_bytes(0), 0u);
  CHECK_EQ(mtu_bytes(6), 0u);
  CHECK_EQ(mtu_of_bytes(4096), static_cast<u32>(ibv::kMtu4096));
  CHECK_EQ(mtu_of_bytes(9000), static_cast<u32>(ibv::kMtu4096));
  CHECK_EQ(mtu_of_bytes(1023), static_cast<u32>(ibv::kMtu512));
  CHECK_EQ(mtu_of_bytes(255), 0u);
}

TEST(transport_verbs_nic_hears_events) {
  const Opened o = open({}, {"fake0", 1, -1});
  o.nic->poll_async();
  CHECK_EQ(o.nic->fault(), 0);
  fake::Fabric::the().push_event(0, ibv::kEventPortErr, 2);  // another port's
  o.nic->poll_async();
  CHECK(!o.nic->link_down());
  fake::Fabric::the().push_event(0, ibv::kEventPortErr, 1);
  o.nic->poll_async();
  CHECK(o.nic->link_down());
  CHECK_EQ(o.nic->fault(), 0);  // it may come back
  fake::Fabric::the().push_event(0, ibv::kEventPortActive, 1);
  fake::Fabric::the().push_event(0, ibv::kEventDeviceFatal, 0);
  o.nic->poll_async();
  CHECK(!o.nic->link_down());
  CHECK_EQ(o.nic->fault(), kVerbsEvent | static_cast<int>(ibv::kEventDeviceFatal));
}

// What ofi_rxm is told of a device's completion queues: it fits, and nothing is said where libfabric's own sizes fit.
#include <cstdlib>
#include <string>

#include "native/check.h"
#include "proxy/transport/verbs/fake_verbs.h"
#include "transport/libfabric/rxm_queues.h"

using namespace uccl;

namespace {

constexpr const char* kNames[] = {"FI_UNIVERSE_SIZE", "FI_OFI_RXM_MSG_TX_SIZE", "FI_OFI_RXM_MSG_RX_SIZE"};

struct CleanEnvironment {
  CleanEnvironment() { clear(); }
  ~CleanEnvironment() { clear(); }
  static void clear() {
    for (const char* name : kNames) unsetenv(name);
  }
};

std::string value(const char* name) {
  const char* found = std::getenv(name);
  return found == nullptr ? "" : found;
}

TransportSettings settings_of(u32 num_ranks) {
  TransportSettings s;
  s.num_ranks = num_ranks;
  return s;
}

const ibv::Functions& devices(int max_cqe, u32 num_devices = 1) {
  fake::Options o;
  o.max_cqe = max_cqe;
  o.num_devices = num_devices;
  fake::Fabric::begin(o);
  return fake::Fabric::the().functions();
}

}  // namespace

TEST(libfabric_rxm_queues_fit_the_device) {
  constexpr u64 kSoftRoce = 32767;
  for (u32 ranks = 1; ranks <= 1000; ++ranks) {
    const RxmQueues q = rxm_queues(ranks, kSoftRoce);
    CHECK(q.universe >= ranks && q.entries >= 16 && q.entries <= 128);
    CHECK(2ull * q.entries * q.universe <= kSoftRoce);
    CHECK(q.entries == 128 || 4ull * q.entries * q.universe > kSoftRoce);  // and no smaller than they must be
  }
  CHECK_EQ(rxm_queues(2, kSoftRoce).entries, 128u);
  CHECK_EQ(rxm_queues(4, kSoftRoce).universe, 16u);
  CHECK_EQ(rxm_queues(512, kSoftRoce).entries, 16u);
}

TEST(libfabric_rxm_queues_leave_large_devices_alone) {
  CHECK_EQ(rxm_queues(2, 4'194'303).universe, 0u);
  CHECK_EQ(rxm_queues(4096, 196'608).universe, 0u);
  CHECK_EQ(rxm_queues(2, 0).universe, 0u);  // nobody knows
  CHECK(rxm_queues(2, 65'536).universe != 0);
  const CleanEnvironment clean;
  CHECK(fit_rxm_queues(devices(1 << 20), settings_of(2)).empty());
  for (const char* name : kNames) CHECK_EQ(value(name), std::string());
}

TEST(libfabric_rxm_queues_are_set_and_said) {
  const CleanEnvironment clean;
  const std::vector<Note> notes = fit_rxm_queues(devices(32767), settings_of(300));
  CHECK_EQ(notes.size(), 1u);
  CHECK(notes[0].choice.find("FI_UNIVERSE_SIZE=300") != std::string::npos);
  CHECK(notes[0].reason.find("32767") != std::string::npos);
  CHECK_EQ(value("FI_UNIVERSE_SIZE"), std::string("300"));
  CHECK_EQ(value("FI_OFI_RXM_MSG_TX_SIZE"), std::string("32"));
  CHECK_EQ(value("FI_OFI_RXM_MSG_RX_SIZE"), std::string("32"));
}

TEST(libfabric_rxm_queues_keep_what_the_user_set) {
  const CleanEnvironment clean;
  setenv("FI_UNIVERSE_SIZE", "7", 1);
  const std::vector<Note> notes = fit_rxm_queues(devices(32767), settings_of(2));
  CHECK_EQ(value("FI_UNIVERSE_SIZE"), std::string("7"));
  CHECK_EQ(value("FI_OFI_RXM_MSG_TX_SIZE"), std::string("128"));
  CHECK(notes.size() == 1 && notes[0].choice.find("UNIVERSE") == std::string::npos);
}

TEST(libfabric_rxm_queues_ask_the_named_devices) {
  const ibv::Functions& f = devices(32767, 2);
  CHECK_EQ(shortest_completion_queue(f, {}), 32767u);
  CHECK_EQ(shortest_completion_queue(f, {{"fake1", 1, -1}}), 32767u);
  CHECK_EQ(shortest_completion_queue(f, {{"elsewhere", 1, -1}}), 0u);
}

TEST(libfabric_rxm_queues_are_of_one_provider) {
  CHECK(is_rxm_over_verbs("verbs") && is_rxm_over_verbs("verbs;ofi_rxm"));
  CHECK(!is_rxm_over_verbs("tcp") && !is_rxm_over_verbs("verbs;ofi_rxd") && !is_rxm_over_verbs(""));
}

// Settings that no engine can run with are refused by name.
#include <stdexcept>
#include <string>

#include "engine/settings.h"
#include "native/check.h"
#include "proxy/engine/rank_memory.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

// The message of the refusal after `change`, "" when accepted.
template <class Change>
std::string refusal(Change&& change) {
  RankMemory rank(Shape{});
  change(rank.settings);
  try {
    check_settings(rank.settings, rank.worker_counters.data(), rank.peer_counters.data());
  } catch (const std::invalid_argument& e) { return e.what(); }
  return "";
}
bool names(const std::string& message, const char* field) { return message.find(field) != std::string::npos; }

}  // namespace

TEST(engine_settings_good_ones_pass) {
  CHECK_EQ(refusal([](EngineSettings&) {}), "");
  CHECK_EQ(refusal([](EngineSettings& s) { s.rings.clear(); }), "");
  CHECK_EQ(refusal([](EngineSettings& s) { s.max_in_flight = kMaxSequenceInFlight; }), "");
}

TEST(engine_settings_each_bad_one_is_named) {
  CHECK(names(refusal([](EngineSettings& s) { s.num_ranks = 0; }), "num_ranks is 0"));
  CHECK(names(refusal([](EngineSettings& s) { s.num_ranks = kMaxRanks + 1; }), "1 to 4096"));
  CHECK(names(refusal([](EngineSettings& s) { s.rank = 4; }), "rank is 4"));
  CHECK(names(refusal([](EngineSettings& s) { s.num_workers = 0; }), "num_workers"));
  CHECK(names(refusal([](EngineSettings& s) { s.ring_capacity = 100; }), "ring_capacity is 100"));
  CHECK(names(refusal([](EngineSettings& s) { s.rings[0] = nullptr; }), "rings[0]"));
  CHECK(names(refusal([](EngineSettings& s) { s.peer_bytes.pop_back(); }), "peer_bytes.size() is 3"));
  CHECK(names(refusal([](EngineSettings& s) { s.peer_bytes[1] = kMaxRegionBytes + 1; }), "peer_bytes"));
  CHECK(names(refusal([](EngineSettings& s) { s.peer_pids = {1}; }), "peer_pids"));
  CHECK(names(refusal([](EngineSettings& s) { s.control = nullptr; }), "control"));
  CHECK(names(refusal([](EngineSettings& s) { s.control_layout.num_ranks = 5; }), "control_layout.num_ranks is 5"));
  CHECK(names(refusal([](EngineSettings& s) { s.control_layout.num_channels = 65; }), "num_channels is 65"));
  CHECK(names(refusal([](EngineSettings& s) { s.max_in_flight = 0; }), "max_in_flight is 0"));
  CHECK(names(refusal([](EngineSettings& s) { s.max_in_flight = kMaxSequenceInFlight + 1; }), "max_in_flight is 513"));
  CHECK(names(refusal([](EngineSettings& s) { s.max_in_flight_bytes = 0; }), "max_in_flight_bytes"));
  CHECK(names(refusal([](EngineSettings& s) { s.cpus = {-1}; }), "cpus is -1"));
}

TEST(engine_settings_counters_must_exist) {
  RankMemory rank(Shape{});
  CHECK_THROWS(std::invalid_argument, (check_settings(rank.settings, nullptr, rank.peer_counters.data()), 0));
  CHECK_THROWS(std::invalid_argument, (check_settings(rank.settings, rank.worker_counters.data(), nullptr), 0));
}

// Where the ranks of a session meet: one mutex, one condition variable, both on the control path.
#include "transport/simulated/transport.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <stdexcept>

namespace uccl {

struct SimulatedTransport::Meeting {
  explicit Meeting(const NetworkSettings& settings) : network(std::make_shared<SimulatedNetwork>(settings)) {}

  std::shared_ptr<SimulatedNetwork> network;
  u32 num_lanes = 0;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> secrets;        // by rank, "" = not here
  std::vector<std::vector<bool>> waits_for;  // by rank: whom it connects to
};

std::shared_ptr<SimulatedTransport::Meeting> SimulatedTransport::meeting_of(const TransportSettings& s) {
  static std::mutex mutex;
  static std::map<u64, std::weak_ptr<Meeting>> meetings;
  const std::lock_guard<std::mutex> lock(mutex);
  auto meeting = meetings[s.session].lock();
  if (meeting) return meeting;
  NetworkSettings n;
  n.num_ranks = s.num_ranks;
  n.num_lanes = s.num_lanes;
  n.seed = s.in_process.shuffle_seed;
  n.max_in_flight = s.max_in_flight;
  n.profile = link_profile(s.in_process.shuffle_seed == 0 ? "rc" : "srd");
  n.self_driven = true;
  meeting = std::make_shared<Meeting>(n);
  meeting->num_lanes = s.num_lanes;
  meeting->secrets.resize(s.num_ranks);
  meeting->waits_for.resize(s.num_ranks);
  meetings[s.session] = meeting;
  return meeting;
}

SimulatedTransport::SimulatedTransport(const TransportSettings& settings)
    : settings_(settings), meeting_(meeting_of(settings)) {
  const std::lock_guard<std::mutex> lock(meeting_->mutex);
  const std::string me = "simulated: rank " + std::to_string(settings.rank);
  if (meeting_->secrets.size() != settings.num_ranks || meeting_->num_lanes != settings.num_lanes)
    throw std::runtime_error(me + ": the session is of " + std::to_string(meeting_->secrets.size()) + " ranks and " +
                             std::to_string(meeting_->num_lanes) + " lanes");
  if (!meeting_->secrets[settings.rank].empty()) throw std::runtime_error(me + " exists already in this session");
  meeting_->secrets[settings.rank] = "s" + settings.secret;
  for (u32 i = 0; i < settings.num_lanes; ++i) {
    const u32 end = settings.rank * settings.num_lanes + i;
    meeting_->network->set_local(end, settings.local);
    lanes_.push_back(std::make_unique<SimulatedLane>(meeting_->network, end));
  }
}

SimulatedTransport::~SimulatedTransport() = default;  // the lanes say goodbye

std::string SimulatedTransport::local_address() {
  return "simulated:" + std::to_string(getpid()) + ":" + std::to_string(settings_.rank);
}

void SimulatedTransport::connect(const std::vector<std::string>& addresses) {
  const std::string me = "simulated: rank " + std::to_string(settings_.rank);
  if (connected_) throw std::runtime_error(me + ": connect was called before");
  if (addresses.size() != settings_.num_ranks)
    throw std::runtime_error(me + ": " + std::to_string(addresses.size()) + " addresses for " +
                             std::to_string(settings_.num_ranks) + " ranks");
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(settings_.connect_timeout_ns);
  std::vector<bool> wanted(settings_.num_ranks);
  for (u32 p = 0; p < settings_.num_ranks; ++p) wanted[p] = p != settings_.rank && !addresses[p].empty();
  std::unique_lock<std::mutex> lock(meeting_->mutex);
  meeting_->waits_for[settings_.rank] = wanted;
  meeting_->changed.notify_all();
  for (;;) {
    std::string missing;
    for (u32 p = 0; p < settings_.num_ranks; ++p) {
      if (!wanted[p]) continue;
      const std::string& secret = meeting_->secrets[p];
      if (!secret.empty() && secret != "s" + settings_.secret)
        throw std::runtime_error(me + ": rank " + std::to_string(p) + " has another secret");
      const auto& theirs = meeting_->waits_for[p];
      if (theirs.empty() || !theirs[settings_.rank]) missing += " " + std::to_string(p);
    }
    if (missing.empty()) break;
    if (std::chrono::steady_clock::now() >= deadline)
      throw std::runtime_error(me + " waited in vain for rank(s)" + missing);
    meeting_->changed.wait_until(lock, deadline);
  }
  for (u32 p = 0; p < settings_.num_ranks; ++p)
    for (u32 i = 0; wanted[p] && i < settings_.num_lanes; ++i)
      meeting_->network->open(settings_.rank * settings_.num_lanes + i, p);
  connected_ = true;
}

}  // namespace uccl

// InfiniBand and RoCE: reliable connected queue pairs through libibverbs. Set-up here, the data path in lane.h.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "transport/transport.h"
#include "transport/verbs/greeting.h"
#include "transport/verbs/lane.h"

namespace uccl {

// What verbs and efa check alike. Throws std::invalid_argument that names the field and what is allowed.
void check_fabric(const TransportSettings& settings, const std::string& family);
// A peer's address, checked against this rank's. Throws std::runtime_error that names the rank and both sides' values.
std::unique_ptr<VerbsAddress> parse_peer(const std::string& bytes, u32 peer, const VerbsAddress& own,
                                         std::vector<Note>& notes);
// The parts of an address that both families fill alike.
VerbsAddress describe_rank(const TransportSettings& settings, const VerbsTuning& tuning);
VerbsNicAddress describe_nic(const VerbsNic& nic, const VerbsMemory& memory);

class VerbsTransport final : public Transport {
 public:
  // Throws std::invalid_argument for settings, std::runtime_error for what the machine lacks.
  explicit VerbsTransport(const TransportSettings& settings, const ibv::Functions& functions = ibv::Library::shared(),
                          const VerbsTuning& tuning = {});
  ~VerbsTransport() override;

  const char* family() const override { return "verbs"; }
  std::string local_address() override;
  void connect(const std::vector<std::string>& addresses) override;
  Lane& lane(u32 index) override { return *lanes_.at(index); }
  void admit(const Admission& wanted) override { admit_to_all(memories_, wanted); }
  std::vector<Note> notes() const override { return notes_; }
  std::vector<QueueCounters> queue_counters() const override;

 private:
  void check_budget() const;
  u32 num_reached() const;

  TransportSettings settings_;
  VerbsTuning tuning_;
  std::vector<Note> notes_;
  VerbsAddress own_;
  bool connected_ = false;
  // In the order of dependence: lanes go first.
  std::vector<std::unique_ptr<VerbsNic>> nics_;
  std::vector<std::unique_ptr<VerbsMemory>> memories_;
  std::vector<std::unique_ptr<GreetingArea>> areas_;
  std::vector<std::unique_ptr<VerbsAddress>> peers_;
  std::vector<std::unique_ptr<VerbsLane>> lanes_;
};

}  // namespace uccl

// Amazon's Elastic Fabric Adapter: scalable reliable datagrams through libibverbs and libefa. The thinnest layer over
// verbs/: devices, registrations, addresses and errors are its.
#pragma once
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "transport/efa/lane.h"
#include "transport/transport.h"
#include "transport/verbs/greeting.h"

namespace uccl {

class EfaTransport final : public Transport {
 public:
  // Throws std::invalid_argument for settings, std::runtime_error for what the machine lacks.
  explicit EfaTransport(const TransportSettings& settings, const ibv::Functions& functions = ibv::Library::shared(),
                        const efadv::Functions& extra = efadv::Library::shared(), const VerbsTuning& tuning = {});
  ~EfaTransport() override;

  const char* family() const override { return "efa"; }
  std::string local_address() override;
  // Every rank writes its proof to every peer, on every pair of NICs, and has everyone's when it returns.
  void connect(const std::vector<std::string>& addresses) override;
  Lane& lane(u32 index) override { return *lanes_.at(index); }
  void admit(const Admission& wanted) override { admit_to_all(memories_, wanted); }
  std::vector<Note> notes() const override { return notes_; }

 private:
  struct Greeting {
    u32 peer, lane, path;
    u32 nic, slot;
    bool sent = false;
    std::chrono::steady_clock::time_point not_before{};
  };
  struct Handle {
    ibv::Ah* ah;
    u32 number;
  };
  void make_nic(const NicSettings& nic);
  std::vector<EfaPath> make_paths(u32 peer, u32 lane);
  Handle handle_of(u32 nic, const ibv::Gid& gid, u32 peer);
  void greet_all();
  bool check_peer(u32 peer) const;
  [[noreturn]] void give_up(const std::vector<bool>& proven) const;

  TransportSettings settings_;
  VerbsTuning tuning_;
  const ibv::Functions& functions_;
  const efadv::Functions& extra_;
  std::vector<Note> notes_;
  VerbsAddress own_;
  bool connected_ = false;
  // In the order of dependence: lanes go first.
  std::vector<std::unique_ptr<VerbsNic>> nics_;
  std::vector<std::unique_ptr<VerbsMemory>> memories_;
  std::vector<std::unique_ptr<GreetingArea>> areas_;
  std::vector<EfaDevice> devices_;
  std::map<std::tuple<u32, u64, u64>, Handle> handles_;  // by our NIC and a peer's GID
  std::vector<std::unique_ptr<VerbsAddress>> peers_;
  std::vector<Greeting> greetings_;
  std::vector<std::unique_ptr<EfaLane>> lanes_;
};

}  // namespace uccl

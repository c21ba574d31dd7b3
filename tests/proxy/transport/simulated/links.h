// Ranks on a simulated network that a test drives: memory, writes, and what each end has polled.
#pragma once
#include <memory>
#include <vector>

#include "transport/simulated/lane.h"

namespace uccl::testing {

struct Links {
  explicit Links(NetworkSettings settings) {
    if (settings.profile.name.empty()) settings.profile = link_profile("srd");
    network = std::make_shared<SimulatedNetwork>(settings);
    memory.resize(settings.num_ranks, std::vector<u8>(4096));
    for (u32 r = 0; r < settings.num_ranks; ++r) {
      AddressSpace space;
      space.add(Span{0, 4096, memory[r].data()});
      network->set_local(r, space);
      for (u32 p = 0; p < settings.num_ranks; ++p)
        if (p != r) network->open(r, p);
      lanes.push_back(std::make_unique<SimulatedLane>(network, r));
    }
  }
  bool post(u32 from, u32 to, u32 immediate, u64 offset = 0, u64 bytes = 0, const u8* source = nullptr) {
    const WriteRequest r{to, immediate, source, offset, bytes, immediate};
    return lanes[from]->post({&r, 1}) == 1;
  }
  std::vector<Arrival> arrivals(u32 rank) {
    std::vector<Arrival> out(256);
    out.resize(lanes[rank]->poll_arrivals(out));
    return out;
  }
  std::vector<u64> wr_ids(u32 rank) {
    std::vector<u64> out(256);
    out.resize(lanes[rank]->poll_completions(out));
    return out;
  }
  std::vector<PeerEvent> events(u32 rank) {
    std::vector<PeerEvent> out(16);
    out.resize(lanes[rank]->poll_events(out));
    return out;
  }

  std::shared_ptr<SimulatedNetwork> network;
  std::vector<std::vector<u8>> memory;
  std::vector<std::unique_ptr<SimulatedLane>> lanes;
};

inline NetworkSettings ranks(u32 n, u64 seed, const char* profile) {
  NetworkSettings s;
  s.num_ranks = n;
  s.seed = seed;
  s.profile = link_profile(profile);
  return s;
}

}  // namespace uccl::testing

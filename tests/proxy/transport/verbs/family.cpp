// Verbs for the contract's tests.
#include "proxy/transport/verbs/family.h"

namespace verbs_test {

using namespace uccl;

void add_sources(TransportSettings& s) {
  const u64 far = 1ull << 38;
  s.local.add(Span{far, contract::kRandomBytes, const_cast<u8*>(contract::random_bytes())});
  s.local.add(Span{far * 2, contract::kSourceBytes, contract::source_bytes()});
}

contract::Family on_fake(const fake::Options& options, const Change& change, const VerbsTuning& tuning) {
  fake::Fabric::begin(options);
  return {"verbs",
          [change, tuning](TransportSettings s) -> std::unique_ptr<Transport> {
            add_sources(s);
            s.fabric.nics = {{"fake0", 1, -1}};
            if (change) change(s);
            return std::make_unique<VerbsTransport>(s, fake::Fabric::the().functions(), tuning);
          },
          true};
}

contract::Family on_device(const std::string& device, const Change& change, const VerbsTuning& tuning) {
  return {"verbs",
          [device, change, tuning](TransportSettings s) -> std::unique_ptr<Transport> {
            add_sources(s);
            s.fabric.nics = {{device, 1, -1}};
            s.fabric.timeout = 16;  // 1.9 s in all: tests wait for the end of a peer, and a peer may wait for a CPU
            s.fabric.retries = 6;
            if (change) change(s);
            return std::make_unique<VerbsTransport>(s, ibv::Library::shared(), tuning);
          },
          true};
}

}  // namespace verbs_test

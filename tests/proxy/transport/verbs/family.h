// Verbs as a family of the contract's tests: on the fake fabric, or on a device of this machine.
#pragma once
#include <functional>
#include <string>

#include "proxy/transport/contract.h"
#include "proxy/transport/verbs/fake_verbs.h"
#include "transport/verbs/transport.h"

namespace verbs_test {

using Change = std::function<void(uccl::TransportSettings&)>;

// What the tests write from must be registered: two spans far behind the region, which no test writes to.
void add_sources(uccl::TransportSettings& settings);
// Starts a new fabric. `change` is applied to every rank's settings.
contract::Family on_fake(const fake::Options& options, const Change& change = {}, const uccl::VerbsTuning& tuning = {});
// libibverbs itself.
contract::Family on_device(const std::string& device, const Change& change = {}, const uccl::VerbsTuning& tuning = {});

}  // namespace verbs_test

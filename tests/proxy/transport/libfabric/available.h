// Whether the tests that need a provider can run here. Without libfabric.so.1 they say so and pass; with
// UCCL_EP_REQUIRE_TOOLS=1 that is a failure.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <string>

#include "native/check.h"
#include "transport/libfabric/provider.h"

namespace libfabric_tests {

inline uccl::TransportSettings settings_of(const std::string& provider) {
  uccl::TransportSettings s;
  s.num_ranks = 2;
  s.secret = std::string(32, 's');
  s.fabric.provider = provider;
  return s;
}

inline bool unavailable(const std::string& provider) {
  std::string why = uccl::fi::library_problem();
  if (why.empty()) {
    try {
      uccl::choose_provider(settings_of(provider), "");
    } catch (const std::runtime_error& e) { why = e.what(); }
  }
  if (why.empty()) return false;
  const char* required = std::getenv("UCCL_EP_REQUIRE_TOOLS");
  if (required != nullptr && std::string(required) == "1") throw check::Failure("required, but: " + why);
  std::printf("SKIPPED (provider %s): %s\n", provider.c_str(), why.c_str());
  std::fflush(stdout);
  return true;
}

}  // namespace libfabric_tests

// The sealing of greetings.
#include "transport/libfabric/greeting.h"

#include <cstddef>

namespace uccl {
namespace {

Proof proof_of(const Greeting& g, const std::string& secret) {
  return prove(secret, "libfabric greeting", {bytes_of(g).substr(0, offsetof(Greeting, seal))});
}

}  // namespace

void seal(Greeting& greeting, const std::string& secret) { greeting.seal = proof_of(greeting, secret); }

bool is_genuine(const Greeting& g, const std::string& secret, u64 session, GreetingKind kind) {
  return equal_in_constant_time(bytes_of(proof_of(g, secret)), bytes_of(g.seal)) && g.magic == kGreetingMagic &&
         g.version == kGreetingVersion && g.session == session && g.kind == static_cast<u16>(kind);
}

}  // namespace uccl

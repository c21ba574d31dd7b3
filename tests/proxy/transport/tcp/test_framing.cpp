// What a hello's proof is bound to: every bit of the hello, the challenge, and the side that speaks.
#include <string>

#include "native/check.h"
#include "transport/tcp/framing.h"

using namespace uccl;

TEST(transport_tcp_framing_every_bit_is_proven) {
  const std::string secret = "0123456789abcdef0123456789abcdef";
  const Nonce challenge{7};
  TcpHello hello{}, answer{};
  answer.nonce = challenge;
  const Proof asked = connector_proof(secret, challenge, hello), answered = acceptor_proof(secret, hello, answer);
  CHECK(asked != answered);
  CHECK(connector_proof(secret, challenge, answer) != answered);  // nobody's own words come back as the other's
  const std::size_t bits = 8 * unproven(hello).size();
  for (std::size_t bit = 0; bit < bits; ++bit) {
    TcpHello other = hello;
    reinterpret_cast<u8*>(&other)[bit / 8] ^= static_cast<u8>(1 << bit % 8);
    CHECK(connector_proof(secret, challenge, other) != asked);
    CHECK(acceptor_proof(secret, other, answer) != answered);
    other = answer;
    reinterpret_cast<u8*>(&other)[bit / 8] ^= static_cast<u8>(1 << bit % 8);
    CHECK(acceptor_proof(secret, hello, other) != answered);
  }
  CHECK(connector_proof(secret, Nonce{8}, hello) != asked);
  CHECK(connector_proof(secret.substr(1) + "g", challenge, hello) != asked);
}

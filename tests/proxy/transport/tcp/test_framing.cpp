// The secret's comparison looks at every bit.
#include <string>

#include "native/check.h"
#include "transport/tcp/framing.h"

using namespace uccl;

TEST(transport_tcp_framing_compares_every_bit) {
  const std::string secret = "0123456789abcdef0123456789abcdef";
  CHECK(equal_in_constant_time(secret, secret));
  CHECK(equal_in_constant_time("", ""));
  CHECK(!equal_in_constant_time(secret, secret.substr(1)));
  CHECK(!equal_in_constant_time(secret, ""));
  for (std::size_t i = 0; i < secret.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string other = secret;
      other[i] = static_cast<char>(other[i] ^ (1 << bit));
      CHECK(!equal_in_constant_time(secret, other));
    }
  }
}

// Seals: no single bit that could be changed unseen.
#include "native/check.h"
#include "transport/libfabric/greeting.h"

using namespace uccl;

namespace {

Greeting greeting() {
  Greeting g{};
  g.magic = kGreetingMagic;
  g.version = kGreetingVersion;
  g.kind = static_cast<u16>(GreetingKind::kHello);
  g.session = 99;
  g.source = 1;
  g.destination = 2;
  g.nonce = {1, 2, 3};
  return g;
}
const std::string kSecret = "0123456789abcdefghijklmnopqrstuv";

}  // namespace

TEST(libfabric_greeting_every_bit_is_sealed) {
  Greeting g = greeting();
  seal(g, kSecret);
  CHECK(is_genuine(g, kSecret, 99, GreetingKind::kHello));
  for (std::size_t bit = 0; bit < 8 * sizeof(Greeting); ++bit) {
    Greeting h = g;
    reinterpret_cast<u8*>(&h)[bit / 8] ^= static_cast<u8>(1 << bit % 8);
    CHECK(!is_genuine(h, kSecret, h.session, static_cast<GreetingKind>(h.kind)));
  }
}

TEST(libfabric_greeting_needs_secret_session_and_kind) {
  Greeting g = greeting();
  seal(g, kSecret);
  for (std::size_t i = 0; i < kSecret.size(); ++i) {
    std::string other = kSecret;
    other[i] ^= 1;
    CHECK(!is_genuine(g, other, 99, GreetingKind::kHello));
  }
  CHECK(!is_genuine(g, kSecret, 98, GreetingKind::kHello));
  CHECK(!is_genuine(g, kSecret, 99, GreetingKind::kAnswer));
  g.version = kGreetingVersion + 1;
  seal(g, kSecret);
  CHECK(!is_genuine(g, kSecret, 99, GreetingKind::kHello));
  CHECK(!is_genuine(Greeting{}, kSecret, 0, GreetingKind::kHello));
}

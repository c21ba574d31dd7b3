// Seals: the checksum against its published vectors, and no single bit that could be changed unseen.
#include <cstring>

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
  g.nonce = 12345;
  return g;
}
const std::string kSecret = "0123456789abcdefghijklmnopqrstuv";

}  // namespace

// From the reference implementation: key 00 01 .. 0f, message 00 01 .. of the given length.
TEST(libfabric_greeting_checksum_vectors) {
  u8 key[16];
  std::string message;
  for (u8 i = 0; i < 16; ++i) key[i] = i;
  for (char i = 0; i < 15; ++i) message += i;
  CHECK_EQ(siphash(key, ""), 0x726fdb47dd0e0e31ull);
  CHECK_EQ(siphash(key, std::string_view(message).substr(0, 1)), 0x74f839c593dc67fdull);
  CHECK_EQ(siphash(key, std::string_view(message).substr(0, 8)), 0x93f5f5799a932462ull);
  CHECK_EQ(siphash(key, message), 0xa129ca6149be45e5ull);
}

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
  g.version = 2;
  seal(g, kSecret);
  CHECK(!is_genuine(g, kSecret, 99, GreetingKind::kHello));
  CHECK(!is_genuine(Greeting{}, kSecret, 0, GreetingKind::kHello));
}

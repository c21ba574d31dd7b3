// SipHash-2-4 (Aumasson and Bernstein, 2012) and the sealing of greetings with it.
#include "transport/libfabric/greeting.h"

#include <bit>
#include <cstddef>
#include <cstring>

namespace uccl {
namespace {

struct SipState {
  u64 v0, v1, v2, v3;
  void round() {
    v0 += v1, v1 = std::rotl(v1, 13), v1 ^= v0, v0 = std::rotl(v0, 32);
    v2 += v3, v3 = std::rotl(v3, 16), v3 ^= v2;
    v0 += v3, v3 = std::rotl(v3, 21), v3 ^= v0;
    v2 += v1, v1 = std::rotl(v1, 17), v1 ^= v2, v2 = std::rotl(v2, 32);
  }
  void take(u64 word) {
    v3 ^= word;
    round();
    round();
    v0 ^= word;
  }
};

void checksum(const Greeting& g, const std::string& secret, u64 (&out)[2]) {
  const std::string_view body(reinterpret_cast<const char*>(&g), offsetof(Greeting, seal));
  for (int half = 0; half < 2; ++half) {
    u8 key[16];
    std::memcpy(key, secret.data() + 16 * half, 16);
    out[half] = siphash(key, body);
  }
}

}  // namespace

u64 siphash(const u8 (&key)[16], std::string_view data) {
  u64 k0, k1;
  std::memcpy(&k0, key, 8);
  std::memcpy(&k1, key + 8, 8);
  SipState s{k0 ^ 0x736f6d6570736575ull, k1 ^ 0x646f72616e646f6dull, k0 ^ 0x6c7967656e657261ull,
             k1 ^ 0x7465646279746573ull};
  std::size_t at = 0;
  for (; at + 8 <= data.size(); at += 8) {
    u64 word;
    std::memcpy(&word, data.data() + at, 8);
    s.take(word);
  }
  u64 last = static_cast<u64>(data.size()) << 56;
  std::memcpy(&last, data.data() + at, data.size() - at);
  s.take(last);
  s.v2 ^= 0xff;
  for (int i = 0; i < 4; ++i) s.round();
  return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

void seal(Greeting& greeting, const std::string& secret) { checksum(greeting, secret, greeting.seal); }

bool is_genuine(const Greeting& g, const std::string& secret, u64 session, GreetingKind kind) {
  u64 expected[2];
  checksum(g, secret, expected);
  return ((expected[0] ^ g.seal[0]) | (expected[1] ^ g.seal[1])) == 0 && g.magic == kGreetingMagic &&
         g.version == kGreetingVersion && g.session == session && g.kind == static_cast<u16>(kind);
}

}  // namespace uccl

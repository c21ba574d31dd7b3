// SHA-256 against the vectors of FIPS 180-4, and that every part of a path changes its token.
#include <set>

#include "native/check.h"
#include "transport/verbs/token.h"

using namespace uccl;

namespace {

std::string hex(const Token& t) {
  std::string s;
  for (const u8 b : t) {
    s += "0123456789abcdef"[b >> 4];
    s += "0123456789abcdef"[b & 15];
  }
  return s;
}

}  // namespace

TEST(transport_verbs_token_sha256_vectors) {
  CHECK_EQ(hex(sha256("")), std::string("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"));
  CHECK_EQ(hex(sha256("abc")), std::string("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
  CHECK_EQ(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
           std::string("248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"));
  CHECK_EQ(hex(sha256(std::string(1000000, 'a'))),
           std::string("cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"));
}

TEST(transport_verbs_token_depends_on_everything) {
  const std::string secret(32, 's');
  std::set<Token> all;
  for (u32 i = 0; i < 16; ++i) {
    all.insert(greeting_token(9 + (i & 1), secret, {1 + (i >> 1 & 1), 2, 3 + (i >> 2 & 1), 4 + (i >> 3)}));
  }
  all.insert(greeting_token(9, secret, {2, 1, 3, 4}));  // the other way round
  all.insert(greeting_token(9, std::string(31, 's') + 't', {1, 2, 3, 4}));
  CHECK_EQ(all.size(), 18u);
  const Token t = greeting_token(9, secret, {1, 2, 3, 4});
  Token other = t;
  CHECK(equal_tokens(t, other.data()));
  for (std::size_t i = 0; i < other.size(); ++i) {
    other[i] ^= 1;
    CHECK(!equal_tokens(t, other.data()));
    other[i] ^= 1;
  }
  CHECK(group_fingerprint(1, secret) != group_fingerprint(2, secret));
}

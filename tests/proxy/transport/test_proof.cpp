// SHA-256 against the vectors of FIPS 180-4, HMAC against those of RFC 4231, and that every part of a proof changes it.
#include <set>
#include <string>

#include "native/check.h"
#include "transport/proof.h"

using namespace uccl;

namespace {

std::string hex(const Proof& t) {
  std::string s;
  for (const u8 b : t) {
    s += "0123456789abcdef"[b >> 4];
    s += "0123456789abcdef"[b & 15];
  }
  return s;
}

}  // namespace

TEST(transport_proof_sha256_vectors) {
  CHECK_EQ(hex(sha256("")), std::string("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"));
  CHECK_EQ(hex(sha256("abc")), std::string("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
  CHECK_EQ(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
           std::string("248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"));
  CHECK_EQ(hex(sha256(std::string(1000000, 'a'))),
           std::string("cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"));
}

// Cases 1, 2, 3 and 6 of RFC 4231: a short key, text in two parts, a full block, a key longer than a block.
TEST(transport_proof_hmac_vectors) {
  CHECK_EQ(hex(hmac_sha256(std::string(20, '\x0b'), {"Hi There"})),
           std::string("b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"));
  CHECK_EQ(hex(hmac_sha256("Jefe", {"what do ya want ", "for nothing?"})),
           std::string("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"));
  CHECK_EQ(hex(hmac_sha256(std::string(20, '\xaa'), {std::string(50, '\xdd')})),
           std::string("773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"));
  CHECK_EQ(hex(hmac_sha256(std::string(131, '\xaa'), {"Test Using Larger Than Block-Size Key - Hash Key First"})),
           std::string("60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"));
}

// Lengths at which the padding takes another block, however the text is cut: the one against the other.
TEST(transport_proof_does_not_depend_on_how_the_text_is_cut) {
  for (std::size_t n : {0u, 1u, 55u, 56u, 63u, 64u, 65u, 119u, 120u, 127u, 128u, 200u}) {
    const std::string text(n, 'x');
    const Proof whole = hmac_sha256("key", {text});
    for (std::size_t cut = 0; cut <= n; cut += 7) {
      CHECK(hmac_sha256("key", {text.substr(0, cut), text.substr(cut)}) == whole);
    }
  }
}

TEST(transport_proof_depends_on_everything) {
  const std::string secret(32, 's');
  const Nonce a{1}, b{2};
  std::set<Proof> all;
  for (u32 i = 0; i < 32; ++i) {
    all.insert(
        prove_path(secret, {9 + (i & 1), 1 + (i >> 1 & 1), 3, 3 + (i >> 2 & 1), 4 + (i >> 3 & 1)}, a, i >> 4 ? a : b));
  }
  all.insert(prove_path(secret, {9, 1, 3, 3, 4}, b, a));
  all.insert(prove_path(secret, {9, 3, 1, 3, 4}, a, b));  // the other way round
  all.insert(prove_path(std::string(31, 's') + 't', {9, 1, 3, 3, 4}, a, b));
  CHECK_EQ(all.size(), 35u);
  CHECK(prove(secret, "one", {"x"}) != prove(secret, "two", {"x"}));
  CHECK(group_fingerprint(1, secret) != group_fingerprint(2, secret));
  CHECK(group_fingerprint(1, secret) != group_fingerprint(1, std::string(32, 't')));
}

TEST(transport_proof_nonces_are_new) {
  std::set<Nonce> all;
  for (int i = 0; i < 100; ++i) all.insert(new_nonce());
  CHECK_EQ(all.size(), 100u);
}

TEST(transport_proof_compares_every_bit) {
  const std::string proof = "0123456789abcdef0123456789abcdef";
  CHECK(equal_in_constant_time(proof, proof));
  CHECK(equal_in_constant_time("", ""));
  CHECK(!equal_in_constant_time(proof, proof.substr(1)));
  CHECK(!equal_in_constant_time(proof, ""));
  for (std::size_t i = 0; i < proof.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string other = proof;
      other[i] = static_cast<char>(other[i] ^ (1 << bit));
      CHECK(!equal_in_constant_time(proof, other));
    }
  }
}

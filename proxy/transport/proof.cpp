// SHA-256 (FIPS 180-4), HMAC (RFC 2104) and the proofs made with them. This is the only hash function of the native
// code: a wheel must neither need a library of cryptography to be built nor to run. Control path only, so plainness goes
// before speed; nothing is allocated.
#include "transport/proof.h"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace uccl {
namespace {

constexpr u32 kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

void compress(u32 (&h)[8], const u8* block) {
  u32 w[64];
  for (int i = 0; i < 16; ++i) {
    w[i] = static_cast<u32>(block[4 * i]) << 24 | static_cast<u32>(block[4 * i + 1]) << 16 |
           static_cast<u32>(block[4 * i + 2]) << 8 | block[4 * i + 3];
  }
  for (int i = 16; i < 64; ++i) {
    const u32 s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
    const u32 s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  u32 v[8];
  std::memcpy(v, h, sizeof(v));
  for (int i = 0; i < 64; ++i) {
    const u32 s1 = std::rotr(v[4], 6) ^ std::rotr(v[4], 11) ^ std::rotr(v[4], 25);
    const u32 t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + kRound[i] + w[i];
    const u32 s0 = std::rotr(v[0], 2) ^ std::rotr(v[0], 13) ^ std::rotr(v[0], 22);
    const u32 t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
    for (int j = 7; j > 0; --j) v[j] = v[j - 1];
    v[4] += t1;
    v[0] = t1 + t2;
  }
  for (int i = 0; i < 8; ++i) h[i] += v[i];
}

class Sha256 {
 public:
  void add(std::string_view bytes) {
    while (!bytes.empty()) {
      const std::size_t at = bytes_ % sizeof(block_), n = std::min(bytes.size(), sizeof(block_) - at);
      std::memcpy(block_ + at, bytes.data(), n);
      bytes_ += n;
      bytes.remove_prefix(n);
      if (bytes_ % sizeof(block_) == 0) compress(h_, block_);
    }
  }
  Proof finish() {
    u8 length[8];
    for (int i = 0; i < 8; ++i) length[i] = static_cast<u8>(bytes_ * 8 >> (56 - 8 * i));
    constexpr char kPadding[64] = {'\x80'};
    add({kPadding, 1 + (119 - bytes_ % 64) % 64});
    add(bytes_of(length));
    Proof out;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<u8>(h_[i / 4] >> (24 - 8 * (i % 4)));
    return out;
  }

 private:
  u32 h_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  u8 block_[64];
  u64 bytes_ = 0;
};

}  // namespace

Nonce new_nonce() {
  Nonce nonce;
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size()))
    throw std::system_error(errno, std::generic_category(), "the kernel gives no random number for the proof");
  return nonce;
}

Proof sha256(std::string_view bytes) {
  Sha256 hash;
  hash.add(bytes);
  return hash.finish();
}

Proof hmac_sha256(std::string_view key, std::initializer_list<std::string_view> parts) {
  u8 pad[64] = {};
  if (key.size() > sizeof(pad))
    std::memcpy(pad, sha256(key).data(), kProofBytes);
  else if (!key.empty())
    std::memcpy(pad, key.data(), key.size());
  Sha256 inner, outer;
  for (u8& b : pad) b ^= 0x36;
  inner.add(bytes_of(pad));
  for (const std::string_view part : parts) inner.add(part);
  for (u8& b : pad) b ^= 0x36 ^ 0x5c;
  outer.add(bytes_of(pad));
  outer.add(bytes_of(inner.finish()));
  return outer.finish();
}

Proof prove(std::string_view secret, std::string_view label, std::initializer_list<std::string_view> parts) {
  const Proof key = hmac_sha256(secret, {"uccl-ep proof ", label});
  return hmac_sha256(bytes_of(key), parts);
}

Proof prove_path(std::string_view secret, const ProofPath& path, const Nonce& from, const Nonce& to) {
  return prove(secret, "path", {bytes_of(path), bytes_of(from), bytes_of(to)});
}

u64 group_fingerprint(u64 session, std::string_view secret) {
  const Proof proof = prove(secret, "fingerprint", {bytes_of(session)});
  u64 value;
  std::memcpy(&value, proof.data(), sizeof(value));
  return value;
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  volatile u8 difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference = difference | static_cast<u8>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace uccl

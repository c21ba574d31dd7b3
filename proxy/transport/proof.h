// The proof of identity that every network uses: a challenge. Each side draws a nonce; each side shows the HMAC-SHA-256,
// keyed with the session's secret, of a label that says which network and which side speaks, of both nonces, and of all
// else that the two must agree on. The secret never crosses the network, and what does is of no use a second time.
#pragma once
#include <array>
#include <initializer_list>
#include <string_view>
#include <type_traits>

#include "wire/types.h"

namespace uccl {

inline constexpr std::size_t kSecretBytes = 32, kNonceBytes = 16, kProofBytes = 32;
using Nonce = std::array<u8, kNonceBytes>;
using Proof = std::array<u8, kProofBytes>;

Nonce new_nonce();  // of the kernel's; throws std::system_error
Proof sha256(std::string_view bytes);
Proof hmac_sha256(std::string_view key, std::initializer_list<std::string_view> parts);
// Each label has a key of its own, and its parts have a fixed size each: no two proofs are of the same text.
Proof prove(std::string_view secret, std::string_view label, std::initializer_list<std::string_view> parts);
// The same time whether or not the bytes agree, so that guessing learns nothing from it. Lengths are public.
bool equal_in_constant_time(std::string_view a, std::string_view b);

// Of structs without padding.
template <class T>
std::string_view bytes_of(const T& value) {
  static_assert(std::has_unique_object_representations_v<T>);
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// For networks whose ranks learn each other's nonce with the address: who speaks to whom on which connection.
struct ProofPath {
  u64 session;
  u32 from, to;  // ranks
  u32 lane, queue;
};
Proof prove_path(std::string_view secret, const ProofPath& path, const Nonce& from, const Nonce& to);
// Tells groups apart before anything is tried; says nothing about the secret.
u64 group_fingerprint(u64 session, std::string_view secret);

}  // namespace uccl

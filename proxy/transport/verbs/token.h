// What proves that a peer is of this group: SHA-256 over session, secret and who speaks to whom on which queue pair.
// The secret itself never crosses the network.
#pragma once
#include <array>
#include <string>
#include <string_view>

#include "wire/types.h"

namespace uccl {

inline constexpr std::size_t kTokenBytes = 32;
using Token = std::array<u8, kTokenBytes>;

Token sha256(std::string_view bytes);

struct TokenPath {
  u32 from, to;  // ranks
  u32 lane, queue;
};
Token greeting_token(u64 session, const std::string& secret, const TokenPath& path);
// Tells groups apart before anything is tried; says nothing about the secret.
u64 group_fingerprint(u64 session, const std::string& secret);
// The same time whether or not they agree.
bool equal_tokens(const Token& a, const u8* b);

}  // namespace uccl

// The records that ranks write into each other's mailboxes: who they are, that they were heard, that they leave. Each
// is sealed with a proof (transport/proof.h), so one that was written by a stranger, or is only half there, is no record
// at all.
//
//   lower rank                     higher rank
//   hello  (nonce a) ------------>
//          <---------------------- hello  (nonce b)
//   answer (echo b)  ------------>          each side is ready when it holds the other's hello and an answer with its
//          <---------------------- answer   own nonce: then the other knows the secret, and a write of each has arrived
//   goodbye --------------------->          any time later: `code` becomes the code of the peer's kLost
#pragma once
#include <string>

#include "transport/proof.h"

namespace uccl {

enum class GreetingKind : u16 { kHello = 1, kAnswer = 2, kGoodbye = 3 };
inline constexpr u32 kGreetingMagic = 0x49464555u;  // "UEFI"
inline constexpr u16 kGreetingVersion = 2;

struct Greeting {
  u32 magic;
  u16 version;
  u16 kind;
  u64 session;
  u32 source, destination, lane;
  u32 num_ranks, num_lanes;
  u32 tag;  // hello: what the destination puts into the upper half of its CQ data
  Nonce nonce;  // new in every life
  Nonce echo;  // answer: the destination's nonce
  u64 writes;  // goodbye: how many writes to the destination have completed, so have arrived or will
  u32 code;  // goodbye
  u32 reserved;
  Proof seal;  // of all above
};
static_assert(sizeof(Greeting) == 120);

// What a rank's mailbox holds for one peer, and the same again as the place that it writes from.
struct MailboxSlot {
  Greeting hello, answer, goodbye;
  u64 pad;  // where writes without bytes point
};
static_assert(sizeof(MailboxSlot) == 368);

void seal(Greeting& greeting, const std::string& secret);
// Sealed with this secret, and of this version, session and kind.
bool is_genuine(const Greeting& greeting, const std::string& secret, u64 session, GreetingKind kind);

}  // namespace uccl

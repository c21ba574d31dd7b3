// The mailbox of a rank: one ring of immediates per (sender, lane) in a segment that its peers map. Data does not pass
// through it: a sender copies straight into the receiver's memory, then pushes the immediate.
//
//   word      writer    pairs with
//   tail      sender    release / acquire by the owner: the write's data and the slot are visible
//   closed    sender    release / acquire by the owner: 1 + the code for kLost; no push follows
//   consumed  owner     release / acquire by the sender: the slot was read before it is used again
//   hello     sender    release / acquire by the owner, once: the sender has mapped and checked this mailbox
//
// Every word from the other side is untrusted: `tail` is checked against the capacity before a slot is read.
#pragma once

#include "transport/proof.h"

namespace uccl {

inline constexpr u64 kMailboxMagic = 0x786f626c6d504555ull;  // "UEPmlbox"
inline constexpr u32 kMailboxVersion = 2;

struct alignas(64) MailboxHeader {
  u64 magic;
  u64 session;
  Proof proof;  // that the owner knows the secret
  u32 version, rank, num_ranks, num_lanes, capacity;
};

struct alignas(64) MailboxRing {
  u64 tail;                 // the sender's line
  u32 closed;
  u32 hello;                // used on lane 0 only
  alignas(64) u64 consumed; // the owner's line
};
static_assert(sizeof(MailboxRing) == 128);

// Where the parts of a mailbox lie. `capacity` is a power of two.
struct MailboxLayout {
  u32 num_ranks = 0, num_lanes = 0, capacity = 0;

  constexpr u64 ring_bytes() const { return align_up(sizeof(MailboxRing) + capacity * sizeof(u32), 64); }
  constexpr u64 ring(u32 sender, u32 lane) const {
    return sizeof(MailboxHeader) + (static_cast<u64>(sender) * num_lanes + lane) * ring_bytes();
  }
  constexpr u64 bytes() const { return ring(num_ranks, 0); }
};

inline MailboxRing* mailbox_ring(void* base, const MailboxLayout& l, u32 sender, u32 lane) {
  return reinterpret_cast<MailboxRing*>(static_cast<u8*>(base) + l.ring(sender, lane));
}
inline u32* mailbox_slots(MailboxRing* ring) { return reinterpret_cast<u32*>(ring + 1); }

}  // namespace uccl

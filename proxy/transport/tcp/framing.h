// Every byte that crosses a tcp connection. Little-endian, fixed sizes; nothing is allocated on a peer's word.
//
//   connector                      acceptor
//   Hello  ----------------------> secret, session, version, shape checked; a stranger is dropped without an answer
//          <---------------------- Hello: now the connector has the acceptor's proof
//   Confirm ---------------------> now the acceptor knows that its answer arrived
//   frames <---------------------> FrameHeader, then `bytes` of payload for kWrite
//
// Every frame carries `acked`: how many writes of the other side have been applied here since the start, low 32 bits.
// A write is complete for its sender when it is acked.
#pragma once
#include <bit>
#include <cstddef>
#include <string_view>

#include "wire/types.h"

namespace uccl {

static_assert(std::endian::native == std::endian::little, "the structs below are the wire format");

inline constexpr u32 kTcpMagic = 0x50455455u;  // "UTEP"
inline constexpr u16 kTcpVersion = 1;
inline constexpr std::size_t kTcpSecretBytes = 32;

struct TcpHello {
  u32 magic;
  u16 version;
  u16 bytes;  // sizeof(TcpHello): a version that differs in size is told from noise
  u64 session;
  u8 secret[kTcpSecretBytes];
  u32 source, destination;  // ranks
  u32 lane;
  u32 num_ranks, num_lanes;
  u32 max_in_flight;  // of the sender of this hello: how often it needs acknowledgements
};
static_assert(sizeof(TcpHello) == 72);

struct TcpConfirm {
  u32 magic;
  u32 lane;
};
static_assert(sizeof(TcpConfirm) == 8);

enum class FrameKind : u32 { kWrite = 0x01575455u, kAck = 0x02415455u, kGoodbye = 0x03475455u };

struct FrameHeader {
  u32 kind;
  u32 immediate;      // kGoodbye: the code of the peer's kLost
  u64 remote_offset;
  u32 bytes;          // of payload; at most kMaxWriteBytes
  u32 acked;
};
static_assert(sizeof(FrameHeader) == 24);

// The same time whether or not the bytes agree, so that guessing learns nothing from it. Lengths are public.
inline bool equal_in_constant_time(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  volatile u8 difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference = difference | static_cast<u8>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace uccl

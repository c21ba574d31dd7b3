// Every byte that crosses a tcp connection. Little-endian, fixed sizes; nothing is allocated on a peer's word.
//
//   connector                      acceptor
//          <---------------------- Challenge: a nonce
//   Hello  ----------------------> proof, session, version, shape checked; a stranger is dropped without an answer
//          <---------------------- Hello: now the connector has the acceptor's proof
//   Confirm ---------------------> now the acceptor knows that its answer arrived
//   frames <---------------------> FrameHeader, then `bytes` of payload for kWrite
//
// Every frame carries `acked`: how many writes of the other side have been applied here since the start, low 32 bits.
// A write is complete for its sender when it is acked. Frames travel in clear and unsealed: who can change a tcp stream
// between the ranks can change rows.
#pragma once
#include <bit>
#include <cstddef>

#include "transport/proof.h"

namespace uccl {

static_assert(std::endian::native == std::endian::little, "the structs below are the wire format");

inline constexpr u32 kTcpMagic = 0x50455455u;  // "UTEP"
inline constexpr u16 kTcpVersion = 2;

struct TcpChallenge {
  u32 magic;
  u32 version;
  Nonce nonce;
};
static_assert(sizeof(TcpChallenge) == 24);

struct TcpHello {
  u32 magic;
  u16 version;
  u16 bytes;  // sizeof(TcpHello): a version that differs in size is told from noise
  u64 session;
  Nonce nonce;  // the acceptor's is that of its challenge
  u32 source, destination;  // ranks
  u32 lane;
  u32 num_ranks, num_lanes;
  u32 max_in_flight;  // of the sender of this hello: how often it needs acknowledgements
  Proof proof;  // of the challenge's nonce and all above; the acceptor's also of the hello that it answers
};
static_assert(sizeof(TcpHello) == 88);

inline std::string_view unproven(const TcpHello& h) { return bytes_of(h).substr(0, offsetof(TcpHello, proof)); }
inline Proof connector_proof(std::string_view secret, const Nonce& challenge, const TcpHello& hello) {
  return prove(secret, "tcp connector", {bytes_of(challenge), unproven(hello)});
}
inline Proof acceptor_proof(std::string_view secret, const TcpHello& hello, const TcpHello& answer) {
  return prove(secret, "tcp acceptor", {unproven(hello), unproven(answer)});
}

struct TcpConfirm {
  u32 magic;
  u32 lane;
};
static_assert(sizeof(TcpConfirm) == 8);

enum class FrameKind : u32 { kWrite = 0x01575455u, kAck = 0x02415455u, kGoodbye = 0x03475455u };

struct FrameHeader {
  u32 kind;
  u32 immediate;  // kGoodbye: the code of the peer's kLost
  u64 remote_offset;
  u32 bytes;  // of payload; at most kMaxWriteBytes
  u32 acked;
};
static_assert(sizeof(FrameHeader) == 24);

}  // namespace uccl

// What a rank tells its peers so that they can write to it: bytes that travel in the handshake blob, and what they mean.
// A pure function each way; whatever bytes come in, parsing throws rather than believe a count.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "transport/proof.h"
#include "transport/verbs/abi.h"

namespace uccl {

// EFA's devices refuse RDMA between queue pairs whose writes take a receive and those whose writes take none.
enum class VerbsKind : u32 { kReliableConnected = 1, kScalableDatagram = 2, kUnsolicitedDatagram = 3 };

struct VerbsNicAddress {
  std::string device;  // for messages: "mlx5_0"
  u32 port = 1;
  u32 link_layer = 0;  // ibv::LinkLayer
  u32 gid_type = 0;  // ibv::GidType
  u32 mtu = 0;  // bytes
  u32 lid = 0;
  ibv::Gid gid{};
  u64 greeting_base = 0;  // slots of kGreetingBytes, one a queue pair, in the order of queue_pairs
  u32 greeting_rkey = 0;
  std::vector<u32> rkeys;  // of every span's chunks, span after span
  std::vector<u32> queue_pairs;  // verbs: [peer rank][lane][queue]; efa: [lane]
};

struct VerbsSpanAddress {
  u64 offset = 0;  // in the rank's flat offset space
  u64 bytes = 0;
  u64 base = 0;  // what remote addresses count from
};

struct VerbsAddress {
  VerbsKind kind = VerbsKind::kReliableConnected;
  u64 fingerprint = 0;
  Nonce nonce{};  // of this life of the rank, for the proofs of its queue pairs
  u32 rank = 0, num_ranks = 0, num_lanes = 0;
  u32 queues = 0;  // per peer, lane and NIC
  u32 max_in_flight = 0;
  u32 qkey = 0;  // efa
  u64 chunk_bytes = 0;  // of every span; the last chunk of a span may be shorter
  std::vector<VerbsSpanAddress> spans;
  std::vector<VerbsNicAddress> nics;
};

inline constexpr u32 kGreetingBytes = 64;

u64 num_chunks(u64 span_bytes, u64 chunk_bytes);
std::string encode_address(const VerbsAddress& address);
// Throws std::invalid_argument that names the field, what it says and what is allowed.
VerbsAddress decode_address(std::string_view bytes);

}  // namespace uccl

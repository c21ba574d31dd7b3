// Addresses survive the journey; bytes that are none are refused by the name of the field, whatever they are.
#include <functional>
#include <stdexcept>

#include "native/check.h"
#include "proxy/transport/contract.h"
#include "transport/verbs/address.h"

using namespace uccl;

namespace {

VerbsAddress sample(u32 nics, VerbsKind kind = VerbsKind::kReliableConnected) {
  VerbsAddress a;
  a.kind = kind;
  a.fingerprint = 0x1122334455667788;
  a.nonce = {1, 2, 3};
  a.rank = 2;
  a.num_ranks = 5;
  a.num_lanes = 3;
  a.queues = 2;
  a.max_in_flight = 77;
  a.qkey = 5;
  a.chunk_bytes = 1 << 20;
  a.spans = {{0, 5 << 20, 1ull << 40}, {1ull << 30, 1, 77}, {1ull << 31, 0, 0}};
  for (u32 i = 0; i < nics; ++i) {
    VerbsNicAddress n;
    n.device = "mlx5_" + std::to_string(i);
    n.port = 1 + i;
    n.link_layer = 2;
    n.mtu = 4096;
    n.lid = 9;
    n.gid.raw[3] = 7;
    n.greeting_base = 123;
    n.greeting_rkey = 456;
    n.rkeys = {1, 2, 3, 4, 5, 6};
    n.queue_pairs.assign(kind == VerbsKind::kReliableConnected ? 5 * 3 * 2 : 3, 0xabcdef);
    a.nics.push_back(n);
  }
  return a;
}

std::string refusal(const std::string& bytes) {
  try {
    decode_address(bytes);
  } catch (const std::invalid_argument& e) { return e.what(); }
  return "";
}

}  // namespace

TEST(transport_verbs_address_round_trip) {
  for (const VerbsKind kind : {VerbsKind::kReliableConnected, VerbsKind::kScalableDatagram}) {
    for (const u32 nics : {1u, 2u, 8u}) {
      const std::string bytes = encode_address(sample(nics, kind));
      const VerbsAddress a = decode_address(bytes);
      CHECK_EQ(encode_address(a), bytes);
      CHECK_EQ(a.nics.size(), nics);
      CHECK_EQ(a.nics.back().device, "mlx5_" + std::to_string(nics - 1));
      CHECK_EQ(a.spans[1].base, 77u);
      CHECK_EQ(a.nics[0].rkeys.size(), 6u);
      CHECK_EQ(a.qkey, 5u);
    }
  }
}

TEST(transport_verbs_address_refusals_name_the_field) {
  CHECK(refusal("").find("magic") != std::string::npos);
  CHECK(refusal("tcp 1.2.3.4:77").find("no address of a verbs") != std::string::npos);
  std::string bytes = encode_address(sample(1));
  bytes[4] = 9;
  CHECK(refusal(bytes).find("version: 9, allowed are 2 to 2") != std::string::npos);
  CHECK(refusal(encode_address(sample(1)) + "x").find("end") != std::string::npos);
  const std::function<void(VerbsAddress&)> wrong[] = {
      [](VerbsAddress& a) { a.rank = 4096; },
      [](VerbsAddress& a) { a.num_ranks = 2; },
      [](VerbsAddress& a) { a.num_lanes = 0; },
      [](VerbsAddress& a) { a.chunk_bytes = 0; },
      [](VerbsAddress& a) { a.spans[0].base = ~0ull; },
      [](VerbsAddress& a) { a.nics.clear(); },
      [](VerbsAddress& a) { a.nics[0].mtu = 1; },
      [](VerbsAddress& a) { a.nics[0].rkeys.pop_back(); },
      [](VerbsAddress& a) { a.nics[0].queue_pairs[3] = 1 << 24; },
      [](VerbsAddress& a) { a.nics[0].device = "a\nb"; },
  };
  const char* fields[] = {"rank",           "num_ranks", "num_lanes", "chunk_bytes", "span base",
                          "number of nics", "mtu",       "rkeys",     "queue_pairs", "device"};
  for (std::size_t i = 0; i < std::size(wrong); ++i) {
    VerbsAddress a = sample(1);
    wrong[i](a);
    CHECK(refusal(encode_address(a)).find(fields[i]) != std::string::npos);
  }
}

// Cut at every byte, and with random bytes changed: a refusal or a valid address, never more memory than came.
TEST(transport_verbs_address_any_bytes) {
  const std::string good = encode_address(sample(2));
  for (std::size_t n = 0; n < good.size(); ++n) CHECK(!refusal(good.substr(0, n)).empty());
  u64 r = 1;
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = good;
    for (u64 k = (r = contract::mix(r, 1)) % 4 + 1; k > 0; --k) {
      r = contract::mix(r, k);
      bytes[r % bytes.size()] = static_cast<char>(r >> 32);
    }
    if (refusal(bytes).empty()) CHECK_EQ(encode_address(decode_address(bytes)), bytes);
  }
}

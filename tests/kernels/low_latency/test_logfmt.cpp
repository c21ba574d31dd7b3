// logfmt-10 row by row against a loop over channels: sizes, mixed units, values that it cannot hold.
#include "kernels/host/runtime.h"
#include "kernels/low_latency/logfmt.h"
#include "kernels/low_latency/logfmt_reference.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

struct Coded {
  std::vector<float> values;
  LogfmtHeader header;
  u32 bytes;
};

// One lane: its channels of all units, decoded with weight 1.
template <u32 kChunk>
void decode(const u8* row, u32 units, float* values) {
  for (u32 u = 0; u < units; ++u)
    for (u32 s = 0; s < kLogfmtShares; ++s) {
      float acc[kChunk] = {};
      logfmt_accumulate<kChunk>(row, u, logfmt_share(s), 1.0f, acc);
      const u32 first = (u * simt::kWarp * kLogfmtShares + logfmt_share(s)) * kChunk;
      for (u32 i = 0; i < kChunk; ++i) values[first + i] = acc[i];
    }
}

// Encodes a row with one warp, decodes it with weight 1, and checks that nothing beyond its bytes was written.
Coded through_logfmt(const std::vector<u16>& row) {
  const u32 hidden = static_cast<u32>(row.size()), unit = logfmt_unit(hidden);
  Poisoned<u16> x(hidden);
  std::memcpy(x.data(), row.data(), 2 * row.size());
  Poisoned<u8> out(align_up(16 + 2ull * hidden, 16));
  Coded c;
  c.values.assign(hidden, 0.0f);
  u32 bytes[simt::kWarp] = {};
  simt::launch({1, simt::kWarp, 0, 1, 0}, [&] {
    bytes[simt::lane()] = logfmt_encode(x.data(), out.data(), hidden);
    simt::sync_warp();
    if (unit == 1024)
      decode<logfmt_chunk(1024)>(out.data(), hidden / unit, c.values.data());
    else
      decode<logfmt_chunk(512)>(out.data(), hidden / unit, c.values.data());
  });
  for (const u32 b : bytes) CHECK_EQ(b, bytes[0]);
  c.bytes = bytes[0];
  c.header = *reinterpret_cast<LogfmtHeader*>(out.data());
  CHECK(out.untouched(c.bytes));
  CHECK_EQ(c.header.bytes, c.bytes);
  return c;
}

void check_row(const std::vector<u16>& row) {
  const Coded c = through_logfmt(row);
  const std::vector<float> expected = logfmt_round_trip(row);
  for (u64 i = 0; i < row.size(); ++i) CHECK_EQ(c.values[i], expected[i]);
}

}  // namespace

TEST(low_latency_logfmt_matches_a_plain_loop) {
  for (const u32 hidden : {512u, 1024u, 1536u, 2048u, 3584u, 7168u})
    for (u64 seed = 0; seed < 4; ++seed) check_row(row_of(hidden, key_of(seed, hidden)));
}

TEST(low_latency_logfmt_encodes_ten_bits_a_channel) {
  std::vector<u16> row(2048);
  for (u32 i = 0; i < row.size(); ++i) row[i] = static_cast<u16>(0x3d00 + i % 100);  // all below 1
  const Coded c = through_logfmt(row);
  CHECK_EQ(c.header.encoded, 3u);
  CHECK_EQ(c.bytes, 16u + 2 * (8 * 4 + 1024 * 10 / 8));
}

TEST(low_latency_logfmt_keeps_what_it_cannot_hold) {
  std::vector<u16> row = row_of(4096, 5);
  row[0] = 0x3f80;                                                 // 1.0 in unit 0
  for (u32 i = 1024; i < 1152; ++i) row[i] = 0x3e00;               // equal magnitudes in unit 1
  for (u32 i = 2048; i < 2176; ++i) row[i] = 0;                    // all zero in unit 2
  for (u32 i = 3072; i < 4096; ++i) row[i] = row[i] ? row[i] & 0xbeff : 0x3c01;  // below 1: unit 3 is encoded
  row[3072] = 0;
  const Coded c = through_logfmt(row);
  CHECK_EQ(c.header.encoded, 8u);
  for (u32 i = 0; i < 3072; ++i) CHECK_EQ(c.values[i], bf16_value(row[i]));
  CHECK_EQ(c.values[3072], 0.0f);
  check_row(row);
}

TEST(low_latency_logfmt_error_is_one_step_of_the_scale) {
  std::vector<u16> row = row_of(1024, 77);
  for (u16& v : row) v = v == 0 ? 0x3c80 : v & 0xbeff;  // no zeros, below 1: at most 2^13 between the ends
  const Coded c = through_logfmt(row);
  CHECK_EQ(c.header.encoded, 1u);
  for (u32 i = 0; i < 1024; ++i) {
    const float v = bf16_value(row[i]);
    CHECK(std::fabs(c.values[i] - v) <= 0.02f * std::fabs(v));
  }
}

TEST(low_latency_logfmt_a_changed_header_is_not_whole) {
  for (const u32 hidden : {512u, 2048u}) {
    alignas(16) u8 row[16 + 2 * 2048];
    const std::vector<u16> x = row_of(hidden, 9);
    simt::launch({1, simt::kWarp, 0, 1, 0}, [&] { logfmt_encode(x.data(), row, hidden); });
    CHECK(logfmt_is_whole(row, hidden));
    for (u32 bit = 0; bit < 96; ++bit) {
      row[bit / 8] ^= static_cast<u8>(1u << bit % 8);
      CHECK(!logfmt_is_whole(row, hidden));
      row[bit / 8] ^= static_cast<u8>(1u << bit % 8);
    }
  }
}

// Runs the probe kernels of the compile tests on the host and checks every result, so that what is compiled for GPUs is
// known to be right somewhere.
#include <thread>

#include "kernels/device/on_device.h"
#include "kernels/device/probe_kernels.h"
#include "ring/consumer.h"

namespace uccl {

using simt::Control;
using simt::kWarp;

TEST(probe_words_have_the_values_of_the_device_api) {
  Control control;
  alignas(16) u64 words[64] = {};
  u32 halves[64] = {};
  float floats[64] = {};
  ProbeArgs args{words, halves, floats, {&control.abort, &control.fault, 0, 0, 0}, 0};
  simt::launch({1, 128, sizeof(ProbeShared), 1, 0}, [&] { probe_words(args); });
  const u32 expect_halves[] = {1, 9, 5, 7, 9, 10, 11, 12, 13};
  for (u32 i = 0; i < 9; ++i) CHECK_EQ(halves[i], expect_halves[i]);
  const u64 base = (1ull << 40) + 3;
  const u64 expect_words[] = {
      base, base - 3, base + 1, base + 2, base + 3, base + 4, 17, 18, 17, 18, 1, 129, simt::kSpinsPerCheck + kWarp};
  for (u32 i = 0; i < 13; ++i) CHECK_EQ(words[i], expect_words[i]);
}

TEST(probe_lanes_have_the_values_of_the_device_api) {
  Control control;
  u64 words[64] = {};
  u32 halves[64] = {};
  float floats[64] = {};
  ProbeArgs args{words, halves, floats, {&control.abort, &control.fault, 0, 0, 0}, 0};
  simt::launch({1, kWarp, 0, 1, 0}, [&] { probe_lanes(args); });
  const u32 expect_halves[] = {kWarp / 2, 1, 3, kWarp * (kWarp - 1) / 2, 2, 0x2a | 0x2a << 8 | 0xaa << 16, 0x3f800000u};
  for (u32 i = 0; i < 7; ++i) CHECK_EQ(halves[10 + i], expect_halves[i]);
  CHECK_EQ(words[20], (5ull << 32) + 1);
  const float expect[] = {kWarp - 1.f, 15, 17, 2, 3, 16, -2, 1, 448, 1, 4};
  for (u32 i = 0; i < 11; ++i) CHECK_EQ(floats[i], expect[i]);
}

TEST(probe_rows_end_as_the_reduced_row) {
  const u32 hidden = 512, count = 2;
  alignas(16) static u16 x[hidden], row[hidden], out[hidden];
  alignas(16) static u8 bytes[2 * hidden];
  for (u32 i = 0; i < hidden; ++i) x[i] = simt::f_to_bf16(static_cast<float>(i)), row[i] = 0x3f80;
  const u16* rows[] = {row, row};
  const float weights[] = {0.5f, 0.25f};
  float scales[4] = {};
  u32 packed[1] = {};
  simt::launch({1, kWarp, 0, 1, 0}, [&] { probe_rows({x, rows, weights, bytes, scales, packed, out, hidden, count}); });
  for (u32 i = 0; i < hidden; ++i) CHECK_EQ(out[i], simt::f_to_bf16(2 * simt::bf16_to_f(x[i]) + 0.75f));
  CHECK_EQ(packed[0], 126u | 127u << 8 | 127u << 16 | 128u << 24);  // group maxima 127, 255, 384, 512 over 448
}

TEST(probe_match_finds_ids_in_order) {
  const std::vector<short> ids = {7, -1, 5, 7, 90, 6, 5, 5};
  std::vector<u32> counts(kWarp), indices(6, ~0u);
  const ProbeMatchArgs args{ids.data(), counts.data(), indices.data(), static_cast<u32>(ids.size()), 5, 3};
  simt::launch({1, kWarp, 0, 1, 0}, [&] { probe_match(args); });
  for (u32 l = 0; l < kWarp; ++l) CHECK_EQ(counts[l], l == 0 ? 6u : l == 1 ? 2u : l == 2 ? 4u : 0u);
  CHECK((indices == std::vector<u32>{2, 6, 7, 5, 0, 3}));
}

TEST(probe_push_stores_one_command_a_warp_or_a_lane) {
  constexpr u32 kCapacity = 256;
  alignas(64) static u8 memory[ring_bytes(kCapacity)];
  for (const bool group : {false, true}) {
    std::memset(memory, 0, sizeof memory);
    Control control;
    std::vector<u64> tickets(2 * kWarp);
    const ProbeRingArgs args{ring_view(memory, kCapacity),
                             nullptr,
                             tickets.data(),
                             {&control.abort, &control.fault, 0, 0, 0},
                             50'000'000'000,
                             1};
    simt::launch({1, 2 * kWarp, 0, 1, 0}, [&] { group ? probe_push_group(args) : probe_push(args); });
    RingConsumer consumer(memory, kCapacity);
    Command c;
    while (consumer.peek(&c)) {
      CHECK_EQ(c.bytes, 16u);
      consumer.advance();
    }
    u32 pushed = 0;
    for (const u64 t : tickets) pushed += t != simt::kNoTicket;
    CHECK_EQ(pushed, group ? 2 * (kWarp - (kWarp + 2) / 3) : 2);
    CHECK_EQ(consumer.next_ticket(), pushed);
  }
}

TEST(probe_ring_pushes_and_waits) {
  constexpr u32 kGrid = 2, kBlock = 65, kCapacity = 32;
  alignas(64) static u8 memory[ring_bytes(kCapacity)];
  std::memset(memory, 0, sizeof memory);
  Control control;
  u32 barrier = 0;
  std::vector<u64> tickets(kGrid * kBlock);
  u64 total = 0;
  for (u32 b = 0; b < kGrid; ++b)
    for (u32 t = 0; t < kBlock; ++t) total += t % kWarp % 3 != 0 || t % kWarp == 0;
  std::thread proxy([&] {
    RingConsumer consumer(memory, kCapacity);
    Command c;
    while (consumer.next_ticket() < total) {
      if (consumer.peek(&c)) {
        consumer.advance();
        consumer.publish_tail();
        consumer.publish_done(consumer.next_ticket());
      } else {
        std::this_thread::yield();
      }
    }
  });
  ProbeRingArgs args{ring_view(memory, kCapacity),
                     &barrier,
                     tickets.data(),
                     {&control.abort, &control.fault, 0, 0, 0},
                     50'000'000'000,
                     4};
  simt::launch({kGrid, kBlock, 0, 2, 5}, [&] { probe_ring(args); });
  proxy.join();
  CHECK_EQ(control.fault.claimed, 0u);
  std::vector<u32> used(total, 0);
  for (const u64 t : tickets)
    if (t != simt::kNoTicket) used.at(t)++;
  for (const u32 n : used) CHECK_EQ(n, 1u);
}

}  // namespace uccl

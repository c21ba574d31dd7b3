// Kernels of a Buffer count in memory of their own, and the halves of a call agree on its form.
#include <algorithm>
#include <vector>

#include "kernels/launch/low_latency.h"
#include "native/check.h"

using namespace uccl;

namespace {

struct Fixture {
  static constexpr u32 kRanks = 6;
  RankContext rank{};
  LowLatencyLayout layout{};
  std::vector<u64> workspace = std::vector<u64>(LowLatencyCalls::workspace_bytes(kRanks) / sizeof(u64));
  u64 words[16]{};

  Fixture() {
    rank.topology.num_ranks = kRanks;
    layout.hidden = 512;
  }
  LowLatencyCalls calls(const DeviceShape& device = {}) { return {rank, layout, 2 * kRanks, bytes(), device}; }
  u8* bytes() { return reinterpret_cast<u8*>(workspace.data()); }
};

struct Span {
  const void* begin;
  u64 bytes;
};

u32 node_rows(const Launch<CombineSendArgs>& l) { return l.args.node_rows; }
constexpr u32 kCopied = static_cast<u32>(NodeRows::kCopied), kStay = static_cast<u32>(NodeRows::kStay),
              kMarked = static_cast<u32>(NodeRows::kCopiedAndMarked);

}  // namespace

TEST(launch_low_latency_kernels_count_in_words_of_their_own) {
  Fixture f;
  const LowLatencyCalls calls = f.calls({4, 16, false});
  const auto send = calls.dispatch_send(f.words, {}), back = calls.dispatch_send(f.words, {});
  const auto take = calls.dispatch_recv(f.words, {});
  const auto combine = calls.combine_send(f.words, {}, true, false);
  const auto sums = calls.combine_reduce(combine.args, {});
  const auto reduce = calls.combine_recv(combine.args, {});
  CHECK_EQ(send.args.call.ticket, back.args.call.ticket);
  std::vector<Span> spans{{&calls.state(), LowLatencyState::bytes(Fixture::kRanks)},
                          {combine.args.staging_ticket, LowLatencyCalls::kMaxStagingRows * sizeof(u64)},
                          {send.args.num_writes, Fixture::kRanks * sizeof(u32)},
                          {send.args.arrivals, kMaxTokensPerRank / 32 * sizeof(u32)},
                          {sums.args.num_writes, Fixture::kRanks * sizeof(u32)}};
  for (const LowLatencyCall* c :
       {&send.args.call, &take.args.call, &combine.args.call, &sums.args.call, &reduce.args.call}) {
    CHECK_EQ(static_cast<const void*>(c->state), static_cast<const void*>(&calls.state()));
    spans.push_back({c->ticket, sizeof(u32)});
    spans.push_back({c->admitted, sizeof(u64)});
    spans.push_back({c->grid_barrier, kGridBarrierWords * sizeof(u32)});
  }
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  const u8* end = f.bytes();
  for (const Span& s : spans) {
    CHECK(static_cast<const u8*>(s.begin) >= end);
    end = static_cast<const u8*>(s.begin) + s.bytes;
  }
  CHECK(end <= f.bytes() + LowLatencyCalls::workspace_bytes(Fixture::kRanks));
}

TEST(launch_low_latency_words_of_a_call_hold_its_counts) {
  Fixture f;
  const LowLatencyCalls calls = f.calls();
  const auto l = calls.dispatch_recv(f.words, {});
  CHECK_EQ(static_cast<const void*>(l.args.counts), static_cast<const void*>(f.words + LowLatencyCalls::kCombineWords));
  CHECK_EQ(l.args.sizes - l.args.counts, 2 * Fixture::kRanks);
  CHECK_EQ(calls.dispatch_words(),
           LowLatencyCalls::kCombineWords + Fixture::kRanks * 3 / 2);  // two counts or sizes a word
  CHECK_EQ(l.args.call.num_local_experts, 2u);
}

TEST(launch_low_latency_batch_is_a_quarter_mebibyte_of_rows) {
  Fixture f;
  DispatchSendArgs own{};
  own.format = static_cast<u32>(RowFormat::kBf16);
  f.layout.hidden = 8;
  CHECK_EQ(f.calls().dispatch_send(f.words, own).args.batch, 32u);
  f.layout.hidden = 16384;
  const u32 batch = f.calls().dispatch_send(f.words, own).args.batch;
  const u64 row = LowLatencyLayout::row_bytes(16384, RowFormat::kBf16);
  CHECK(batch * row <= 256 << 10);
  CHECK((batch + 1) * row > 256 << 10);
}

TEST(launch_low_latency_shapes_follow_the_device_and_the_call) {
  Fixture f;
  f.layout.max_tokens = 128;
  f.layout.max_topk = 8;
  const LowLatencyCalls host = f.calls(), gpu = f.calls({132, 16, false});
  DispatchSendArgs own{};
  own.num_tokens = 128;
  CombineReceiveArgs take{};
  take.num_tokens = 1;
  CHECK_EQ(host.dispatch_send(f.words, own).grid.warps, kBlockWarps);
  CHECK_EQ(host.dispatch_send(f.words, own).args.call.share_rows, 0u);
  CHECK(host.dispatch_send(f.words, own).args.arrivals == nullptr);
  CHECK_EQ(host.dispatch_recv(f.words, {}).grid.blocks, Fixture::kRanks);
  const auto sent = gpu.combine_send(f.words, {}, false, false);
  CHECK_EQ(gpu.dispatch_send(f.words, own).grid.blocks, 128u);  // 16 warps a token
  CHECK_EQ(gpu.dispatch_recv(f.words, {}).grid.blocks, 132u);
  CHECK_EQ(sent.grid.blocks, 132u);
  CHECK_EQ(gpu.combine_send(f.words, {}, false, false, 3).grid.blocks, 3u);  // the others compute the rows
  CHECK_EQ(gpu.combine_reduce(sent.args, {}).grid.blocks, 132u);
  const auto l = gpu.combine_recv(sent.args, take);
  CHECK_EQ(l.grid.blocks, 1u);
  CHECK_EQ(l.grid.warps, 16u);
  CHECK_EQ(l.args.call.share_rows, 1u);
  own.num_tokens = kMaxTokensPerRank;
  own.format = static_cast<u32>(RowFormat::kBf16);
  f.layout.hidden = 16384;
  const auto large = f.calls({132, 16, false}).dispatch_send(f.words, own);
  CHECK(ceil_div(own.num_tokens, large.args.batch) <= kMaxTokensPerRank / 32);  // batches that are counted
}

TEST(launch_low_latency_rows_stay_only_as_they_are_and_in_registered_memory) {
  Fixture f;
  const LowLatencyCalls calls = f.calls();
  CombineSendArgs own{};
  own.own_stay = 1;
  own.format = static_cast<u32>(RowFormat::kBf16);
  CHECK_EQ(node_rows(calls.combine_send(f.words, own, false, false)), kCopied);
  CHECK_EQ(node_rows(calls.combine_send(f.words, own, false, true)), kMarked);
  own.zero_copy_offset = 4096;
  CHECK_EQ(node_rows(calls.combine_send(f.words, own, false, true)), kStay);
  own.own_stay = 0;
  CHECK_EQ(node_rows(calls.combine_send(f.words, own, false, true)), kMarked);
  own.own_stay = 1;
  own.format = static_cast<u32>(RowFormat::kLogfmt);
  const auto small = calls.combine_send(f.words, own, false, true);
  CHECK_EQ(node_rows(small), kCopied);
  CHECK_EQ(small.args.own_stay, 0u);
}

// They are not read where they lie, and a bf16 sum and the encoded one have a slot each.
TEST(launch_low_latency_encoded_sums_take_room_and_leave_no_rows) {
  Fixture f;
  CombineSendArgs own{};
  own.format = static_cast<u32>(RowFormat::kFp8);
  const u8* memories[1] = {};
  CombineReduceArgs reduce{};
  reduce.registered = memories;
  const auto sums = [&] {
    return f.calls().combine_reduce(f.calls().combine_send(f.words, own, true, true).args, reduce);
  };
  CHECK_THROWS(std::invalid_argument, sums());
  f.layout.reduces = 1;
  f.layout.max_topk = 1;
  CHECK_THROWS(std::invalid_argument, sums());
  f.layout.max_topk = 2;
  CHECK_EQ(sums().args.format, own.format);
  CHECK(sums().args.registered == nullptr);
  own.format = static_cast<u32>(RowFormat::kBf16);
  f.layout.max_topk = 1;
  CHECK(sums().args.registered == memories);
  CHECK_EQ(sums().args.call.epoch, f.words);
}

TEST(launch_low_latency_receiving_half_follows_the_sending_one) {
  Fixture f;
  const LowLatencyCalls calls = f.calls();
  u16 rows[8];
  CombineSendArgs own{};
  own.x = rows;
  own.row_stride = 520;
  own.own_stay = 1;
  own.zero_copy_offset = 128;
  own.format = static_cast<u32>(RowFormat::kBf16);
  const auto sent = calls.combine_send(f.words, own, true, false, 3);
  CHECK_EQ(sent.grid.blocks, 3u);
  CombineReceiveArgs take{};
  take.num_tokens = 9;
  const auto l = calls.combine_recv(sent.args, take);
  CHECK_EQ(l.grid.blocks, 9u);
  CHECK_EQ(l.args.own_rows, rows);
  CHECK_EQ(l.args.own_stride, 520u);
  CHECK_EQ(l.args.zero_copy, 1u);
  CHECK_EQ(l.args.call.reduces, 1u);
  CHECK_EQ(l.args.call.epoch, f.words);
  own.own_stay = 0;
  CHECK(calls.combine_recv(calls.combine_send(f.words, own, false, false).args, take).args.own_rows == nullptr);
}

TEST(launch_low_latency_refuses_more_staging_rows_than_it_counts) {
  Fixture f;
  f.layout.staging_rows = LowLatencyCalls::kMaxStagingRows;
  f.calls();
  ++f.layout.staging_rows;
  CHECK_THROWS(std::invalid_argument, f.calls());
}

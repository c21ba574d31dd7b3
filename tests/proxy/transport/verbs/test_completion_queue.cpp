// Both ways to poll give the same completions, whole and once, however few are asked for.
#include <arpa/inet.h>

#include <memory>
#include <stdexcept>

#include "native/check.h"
#include "proxy/transport/verbs/fake_verbs.h"
#include "transport/verbs/completion_queue.h"

using namespace uccl;

TEST(transport_verbs_completion_queue_polls_in_order_both_ways) {
  for (const bool extended : {true, false}) {
    fake::Fabric& f = fake::Fabric::begin({});
    std::vector<Note> notes;
    const VerbsNic nic(f.functions(), {"fake0", 1, -1}, {}, notes);
    CompletionQueue cq(nic, 1000, extended);
    CHECK_EQ(cq.is_extended(), extended);
    Completion out[200];
    CHECK_EQ(cq.poll(out), 0);
    CHECK_EQ(cq.poll(std::span(out, 0)), 0);
    for (u32 i = 0; i < 150; ++i) {
      ibv::Wc wc{};
      wc.wr_id = i;
      wc.status = i % 50 == 49 ? u32{ibv::kWcRemAccessErr} : u32{ibv::kWcSuccess};
      wc.opcode = ibv::kWcRecvRdmaWithImm;
      wc.imm_data = htonl(0x01020304 + i);
      wc.wc_flags = ibv::kWcWithImm;
      wc.byte_len = i;
      wc.qp_num = 1000 + i;
      f.push(*static_cast<fake::Cq*>(reinterpret_cast<ibv::CqEx*>(cq.get())), wc);
    }
    u32 seen = 0;
    for (const std::size_t some : {1u, 31u, 33u, 200u}) {
      const int n = cq.poll(std::span(out, some));
      CHECK_EQ(n, static_cast<int>(std::min<std::size_t>(some, 150 - seen)));
      for (int i = 0; i < n; ++i, ++seen) {
        CHECK_EQ(out[i].wr_id, static_cast<u64>(seen));
        CHECK_EQ(out[i].queue_pair, 1000 + seen);
        CHECK_EQ(out[i].status == ibv::kWcSuccess, seen % 50 != 49);
        if (out[i].status == ibv::kWcSuccess) CHECK_EQ(out[i].immediate, 0x01020304 + seen);
        if (out[i].status == ibv::kWcSuccess) CHECK_EQ(out[i].bytes, seen);
      }
    }
    CHECK_EQ(seen, 150u);
    CHECK_EQ(cq.poll(out), 0);
  }
}

TEST(transport_verbs_completion_queue_says_what_the_device_allows) {
  fake::Options o;
  o.max_cqe = 10;
  fake::Fabric& f = fake::Fabric::begin(o);
  std::vector<Note> notes;
  const VerbsNic nic(f.functions(), {"fake0", 1, -1}, {}, notes);
  try {
    const CompletionQueue cq(nic, 11, true);
    CHECK(false);
  } catch (const check::Failure&) { throw; } catch (const std::runtime_error& e) {
    CHECK(std::string(e.what()).find("11 entries (the device allows 10)") != std::string::npos);
  }
}

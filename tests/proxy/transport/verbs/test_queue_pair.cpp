// A queue pair's states, what its address handle says, and that both ways to post say the same.
#include <stdexcept>

#include "native/check.h"
#include "proxy/transport/verbs/fake_verbs.h"
#include "transport/verbs/queue_pair.h"

using namespace uccl;

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST(transport_verbs_queue_pair_address_handle) {
  fake::Fabric& f = fake::Fabric::begin({});
  std::vector<Note> notes;
  const VerbsNic nic(f.functions(), {"fake0", 1, -1}, {}, notes);
  FabricSettings s;
  s.service_level = 3;
  s.traffic_class = 104;
  s.hop_limit = 9;
  VerbsPath p;
  p.lid = 77;
  ibv::AhAttr a = address_handle(nic, s, p);
  CHECK_EQ(a.is_global, 0u);
  CHECK_EQ(a.dlid, 77u);
  CHECK_EQ(a.sl, 3u);
  ibv::Gid gid{};
  gid.raw[15] = 5;
  p.gid = &gid;
  p.udp_source_port = 0xc123;
  a = address_handle(nic, s, p);
  CHECK_EQ(a.is_global, 1u);
  CHECK_EQ(a.grh.dgid.raw[15], 5u);
  CHECK_EQ(a.grh.sgid_index, 2u);
  CHECK_EQ(a.grh.traffic_class, 104u);
  CHECK_EQ(a.grh.hop_limit, 9u);
  CHECK_EQ(a.grh.flow_label, 0x123u);
}

TEST(transport_verbs_queue_pair_states) {
  for (const bool extended : {true, false}) {
    fake::Fabric& f = fake::Fabric::begin({});
    std::vector<Note> notes;
    const VerbsNic nic(f.functions(), {"fake0", 1, -1}, {}, notes);
    CompletionQueue cq(nic, 100, extended);
    QueuePairShape shape{cq.get(), cq.get(), nullptr, 8, 8, 64, extended};
    QueuePair q(nic, shape);
    CHECK_EQ(q.is_extended(), extended);
    CHECK_EQ(q.inline_bytes(), 64u);
    VerbsPath path;
    path.queue_pair = q.number();  // to itself
    path.mtu = ibv::kMtu1024;
    ibv::SendWr wr{};
    wr.opcode = ibv::kWrRdmaWriteWithImm;
    wr.send_flags = ibv::kSendSignaled;
    ibv::Sge sge{};
    wr.sg_list = &sge;
    ibv::SendWr* bad = nullptr;
    CHECK(q.send(&wr, &bad) != 0);  // not connected
    CHECK(bad == &wr);
    q.connect({}, path);
    CHECK_THROWS(std::runtime_error, q.connect({}, path));  // it is connected
    ibv::Sge nowhere = nic.dummy();
    ibv::RecvWr receive{0, nullptr, &nowhere, 1};
    ibv::RecvWr* bad_receive = nullptr;
    CHECK_EQ(q.post_receives(&receive, &bad_receive), 0);
    CHECK_EQ(q.send(&wr, &bad), 0);
    Completion c[4];
    int n = 0;
    for (int i = 0; i < 200; ++i) n += cq.poll(std::span(c + (n < 3 ? n : 3), 1));
    CHECK_EQ(n, 2);  // sent and received
    q.to_error();
    q.reset();
    q.connect({}, path);
    CHECK_EQ(q.send(&wr, &bad), 0);
  }
}

TEST(transport_verbs_queue_pair_without_inline_rather_than_not_at_all) {
  fake::Options o;
  o.max_inline = 0;
  o.max_qp_wr = 16;
  fake::Fabric& f = fake::Fabric::begin(o);
  std::vector<Note> notes;
  const VerbsNic nic(f.functions(), {"fake0", 1, -1}, {}, notes);
  CompletionQueue cq(nic, 100, true);
  const QueuePair q(nic, {cq.get(), cq.get(), nullptr, 16, 8, 64, true});
  CHECK_EQ(q.inline_bytes(), 0u);
  try {
    const QueuePair larger(nic, {cq.get(), cq.get(), nullptr, 17, 8, 64, true});
    CHECK(false);
  } catch (const check::Failure&) { throw; } catch (const std::runtime_error& e) {
    CHECK(has(e.what(), "17 writes") && has(e.what(), "of 16"));
  }
}

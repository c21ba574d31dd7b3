// libefa's table over the fake fabric: SRD queue pairs, whose messages arrive in any order.
#pragma once
#include <cerrno>

#include "proxy/transport/verbs/family.h"
#include "transport/efa/transport.h"

namespace efa_test {

struct Device {
  uccl::u32 caps = uccl::efadv::kCapsRdmaWrite | uccl::efadv::kCapsRnrRetry | uccl::efadv::kCapsUnsolicitedWriteReceive;
  uccl::u32 send_entries = 4096, largest = 1u << 30;
  bool old_library = false;  // refuses flags and service levels that it does not know
};
// A device whose senders cannot wait for a receive.
inline Device unsolicited() {
  Device d;
  d.caps = uccl::efadv::kCapsRdmaWrite | uccl::efadv::kCapsUnsolicitedWriteReceive;
  return d;
}
inline Device& device() {
  static Device d;
  return d;
}

inline const uccl::efadv::Functions& functions() {
  using namespace uccl;
  static const efadv::Functions table = [] {
    efadv::Functions t;
    t.query_device = [](ibv::Context*, efadv::DeviceAttr* a, u32) {
      *a = {};
      a->max_sq_wr = device().send_entries;
      a->max_rq_wr = 32768;
      a->device_caps = device().caps;
      a->max_rdma_size = device().largest;
      return 0;
    };
    t.create_qp_ex = [](ibv::Context* context, ibv::QpInitAttrEx* x, efadv::QpInitAttr* e, u32) -> ibv::Qp* {
      if (device().old_library && (e->flags != 0 || e->service_level != 0)) {
        errno = EINVAL;
        return nullptr;
      }
      ibv::QpInitAttr a{nullptr, x->send_cq, x->recv_cq, x->srq, x->cap, x->qp_type, 0};
      ibv::Qp* qp = fake::make_queue_pair(context, x->pd, a);
      if (qp != nullptr) fake::of(qp)->unsolicited = (e->flags & efadv::kQpUnsolicitedWriteReceive) != 0;
      return qp;
    };
    t.query_ah = [](ibv::Ah* ah, efadv::AhAttr* a, u32) {
      a->ahn = static_cast<u16>(ah->handle);
      return 0;
    };
    return t;
  }();
  return table;
}

inline contract::Family on_fake(const fake::Options& options, const Device& d = {},
                                const verbs_test::Change& change = {}, const uccl::VerbsTuning& tuning = {}) {
  fake::Options o = options;
  o.link_layers.assign(o.num_devices, uccl::ibv::kLinkUnspecified);
  // Nothing but its size keeps a queue of unsolicited writes from an overrun, and these tests have no window of an engine's.
  o.overruns_end = (d.caps & uccl::efadv::kCapsRnrRetry) != 0;
  fake::Fabric::begin(o);
  device() = d;
  return {"efa",
          [change, tuning](uccl::TransportSettings s) -> std::unique_ptr<uccl::Transport> {
            verbs_test::add_sources(s);
            s.fabric.nics = {{"fake0", 1, -1}};
            if (change) change(s);
            return std::make_unique<uccl::EfaTransport>(s, fake::Fabric::the().functions(), functions(), tuning);
          },
          true};
}

}  // namespace efa_test

// What a provider's answer means, from answers made by hand; and the choice itself where the library is installed.
#include <cstring>
#include <stdexcept>

#include "native/check.h"
#include "proxy/transport/libfabric/available.h"
#include "transport/libfabric/provider.h"
#include "wire/limits.h"

using namespace uccl;
using libfabric_tests::settings_of;
using libfabric_tests::unavailable;

namespace {

// A provider that gives everything.
struct Answer {
  fi::TxAttr tx{};
  fi::RxAttr rx{};
  fi::EpAttr ep{};
  fi::DomainAttr domain{};
  fi::FabricAttr fabric{};
  fi::Info info{};
  char provider[16] = "made", device[8] = "nic0";

  Answer() {
    info.tx_attr = &tx;
    info.rx_attr = &rx;
    info.ep_attr = &ep;
    info.domain_attr = &domain;
    info.fabric_attr = &fabric;
    fabric.prov_name = provider;
    domain.name = device;
    domain.cq_data_size = 8;
    domain.mr_key_size = 8;
    domain.threading = fi::kThreadCompletion;
    domain.mr_mode = fi::kMrAllocated;
    tx.op_flags = fi::kDeliveryComplete;
    tx.size = 128;
    ep.max_msg_size = 1ull << 30;
  }
  ProviderLimits limits() const { return limits_of(info); }
};

std::string refusal(const TransportSettings& s, const std::string& device) {
  try {
    choose_provider(s, device);
  } catch (const std::runtime_error& e) { return e.what(); }
  return "";
}

}  // namespace

// Two forms of a provider do not understand each other; which one it is, is the name of its fabric.
TEST(libfabric_provider_a_form_has_a_name_of_its_own) {
  Answer a;
  CHECK_EQ(a.limits().form, std::string("made"));
  char direct[] = "made-direct", network[] = "192.168.0.0/16";
  a.fabric.name = direct;
  CHECK_EQ(a.limits().form, std::string("made-direct"));
  a.fabric.name = network;
  CHECK_EQ(a.limits().form, std::string("made"));
}

// A registration may be made beside lanes that work, unless sources need one and a domain belongs to a lane.
TEST(libfabric_provider_registers_at_once_where_it_must) {
  Answer a;
  CHECK(!a.limits().registers_at_once());
  a.domain.mr_mode = fi::kMrAllocated | fi::kMrLocal;
  CHECK(!a.limits().registers_at_once());
  a.domain.threading = fi::kThreadDomain;
  CHECK(a.limits().registers_at_once());
  a.domain.threading = fi::kThreadCompletion;
  a.domain.mr_mode |= fi::kMrEndpoint;
  CHECK(a.limits().registers_at_once());
}

TEST(libfabric_provider_limits_are_read) {
  Answer a;
  CHECK_EQ(limits_problem(a.limits()), std::string());
  CHECK_EQ(a.limits().name, std::string("made"));
  CHECK_EQ(a.limits().device, std::string("nic0"));
  CHECK_EQ(a.limits().max_message, 1ull << 30);
  CHECK_EQ(a.limits().transmit_entries, 128u);
  CHECK(a.limits().delivery_complete && !a.limits().ordered && !a.limits().source_address);
}

TEST(libfabric_provider_what_cannot_be_used_is_said) {
  Answer a;
  a.domain.cq_data_size = 0;
  CHECK(limits_problem(a.limits()).find("0 bytes of CQ data") != std::string::npos);
  a.domain.cq_data_size = 4;
  CHECK_EQ(limits_problem(a.limits()), std::string());
  a.domain.mr_key_size = 16;
  CHECK(limits_problem(a.limits()).find("keys of 16") != std::string::npos);
  a.domain.mr_key_size = 4;
  a.domain.mr_mode |= fi::kMrRaw;
  CHECK(limits_problem(a.limits()).find("registered") != std::string::npos);
  Answer slingshot;
  slingshot.fabric.prov_name = const_cast<char*>("cxi");
  CHECK(limits_problem(slingshot.limits()).find("FI_REMOTE_CQ_DATA") != std::string::npos);
}

// Long writes need pieces, and pieces need either order or a word about the first ones.
TEST(libfabric_provider_pieces_need_order_or_delivery) {
  Answer a;
  a.ep.max_msg_size = 4096;
  CHECK_EQ(limits_problem(a.limits()), std::string());
  a.tx.op_flags = fi::kTransmitComplete;
  CHECK(limits_problem(a.limits()).find("pieces") != std::string::npos);
  a.tx.msg_order = fi::kOrderRmaWaw;
  CHECK(!limits_problem(a.limits()).empty());  // ordered for writes of no size at all
  a.ep.max_order_waw_size = 4096;
  CHECK(a.limits().ordered);
  CHECK_EQ(limits_problem(a.limits()), std::string());
  a.tx.msg_order = 0;
  a.ep.max_msg_size = kMaxWriteBytes;  // no pieces ever
  CHECK_EQ(limits_problem(a.limits()), std::string());
}

TEST(libfabric_provider_source_forms) {
  Answer a;
  CHECK(source_form_of(a.limits()) == SourceForm::kTag);
  a.domain.cq_data_size = 4;
  CHECK(source_form_of(a.limits()) == SourceForm::kImmediate);
  a.info.caps = fi::kSource;
  CHECK(source_form_of(a.limits()) == SourceForm::kAddress);
  // ofi_rxm grants FI_SOURCE and then reports no source of a remote write.
  std::strcpy(a.provider, "verbs;ofi_rxm");
  CHECK(source_form_of(a.limits()) == SourceForm::kImmediate);
}

TEST(libfabric_provider_domains_are_shared_only_where_registering_costs) {
  Answer a;
  CHECK(!a.limits().domain_per_lane);
  a.domain.threading = fi::kThreadDomain;
  CHECK(a.limits().domain_per_lane);
  a.domain.threading = fi::kThreadSafe;
  a.domain.mr_mode = fi::kMrVirtAddr;  // pins nothing
  CHECK(a.limits().domain_per_lane);
}

TEST(libfabric_provider_refusals_name_what_was_asked) {
  if (unavailable("tcp")) return;
  const std::string e = refusal(settings_of("no-such-provider"), "");
  CHECK(e.find("'no-such-provider'") != std::string::npos && e.find("fi_info") != std::string::npos);
  const std::string d = refusal(settings_of("tcp"), "no-such-device");
  CHECK(d.find("'no-such-device'") != std::string::npos);
}

TEST(libfabric_provider_default_is_tcp_on_one_interface) {
  if (unavailable("tcp")) return;
  const Provider p = choose_provider(settings_of(""), "");
  CHECK(p.limits.name == "tcp" || p.limits.name == "net" || p.limits.name == "tcp;ofi_rxm");
  CHECK(p.limits.cq_data_bytes >= 4);
  CHECK(p.info->next == nullptr);
  std::string all;
  for (const Note& n : p.notes) all += n.choice + ": " + n.reason + "\n";
  for (const char* said : {"libfabric ", "provider ", "memory registration", "CQ data of", "completion", "writes of"}) {
    CHECK(all.find(said) != std::string::npos);
  }
}

TEST(libfabric_provider_device_memory_is_refused_aloud) {
  if (unavailable("tcp")) return;
  TransportSettings s = settings_of("tcp");
  s.fabric.span_dmabuf_fds = {{7}};
  const Provider p = choose_provider(s, "");
  if (p.limits.device_memory) return;  // a provider that offers it: nothing was refused
  CHECK(p.notes[0].reason.find("registered by address") != std::string::npos);
}

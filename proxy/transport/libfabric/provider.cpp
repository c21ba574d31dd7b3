// Asks libfabric for a reliable-datagram endpoint with RMA, best answer first: delivery-complete before
// transmit-complete, one domain for all lanes before one each (except where registering memory costs nothing).
#include "transport/libfabric/provider.h"

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "transport/libfabric/codes.h"
#include "transport/libfabric/rxm_queues.h"
#include "wire/limits.h"

namespace uccl {
namespace {

constexpr int kMrModes = fi::kMrLocal | fi::kMrVirtAddr | fi::kMrAllocated | fi::kMrProvKey | fi::kMrEndpoint;

struct Query {
  std::string provider, node;
  bool delivery = true, source = false, device_memory = false;
  fi::Threading threading = fi::kThreadCompletion;
};

// Names under which a library knows a provider. Before 1.18 the native reliable-datagram tcp was called net, and tcp
// was a connection-oriented one that ofi_rxm wraps at several times the cost.
std::vector<std::string> names_of(const std::string& asked, u32 release) {
  if (asked == "tcp" && release < fi::version(1, 18)) return {"net", "tcp"};
  return {asked};
}

bool is_on_ip(const std::string& provider) {
  for (const char* name : {"tcp", "net", "sockets", "udp"}) {
    if (provider.compare(0, std::strlen(name), name) == 0) return true;
  }
  return false;
}

// What a provider is to find its own end by. Those with addresses of their own (efa, cxi, opx) know no device of an IP one.
std::string node_for(const std::string& provider, const std::string& interface) {
  if (is_on_ip(provider)) return interface.empty() ? "127.0.0.1" : interface;
  return provider.starts_with("verbs") ? interface : "";
}

// shm has delivery-complete, but sends each such write in pieces that wait for each other, and 1.17 then hangs with
// several writes open. Without, a completion means that the write is in the receiver's queue in shared memory, or
// (beyond 4 KiB) that the receiver has copied it.
bool delivers_badly(const std::string& provider) { return provider == "shm"; }

// ofi_rxm grants FI_SOURCE and fills it in for messages only: of a remote write it reports whatever stood there before.
bool forgets_sources(const std::string& provider) { return provider.find("ofi_rxm") != std::string::npos; }
std::string name_of(const fi::Info& info) { return info.fabric_attr->prov_name ? info.fabric_attr->prov_name : ""; }

int ask(const Query& q, InfoPointer* answer) {
  const fi::Library& lib = fi::library();
  const InfoPointer hints(lib.dupinfo(nullptr));
  if (!hints) return ENOMEM;
  hints->caps = fi::kMsg | fi::kRma | (q.source ? fi::kSource : 0) | (q.device_memory ? fi::kHmem : 0);
  hints->mode = fi::kContext | fi::kContext2;
  hints->ep_attr->type = fi::kEpRdm;
  hints->tx_attr->op_flags = q.delivery ? fi::kDeliveryComplete : fi::kTransmitComplete;
  hints->domain_attr->mr_mode = kMrModes | (q.device_memory ? fi::kMrHmem : 0);
  hints->domain_attr->threading = q.threading;
  hints->domain_attr->control_progress = hints->domain_attr->data_progress = fi::kProgressManual;
  hints->domain_attr->resource_mgmt = fi::kRmEnabled;
  hints->domain_attr->av_type = fi::kAvTable;
  hints->fabric_attr->prov_name = strdup(q.provider.c_str());  // freed with the hints
  fi::Info* found = nullptr;
  const char* node = q.node.empty() ? nullptr : q.node.c_str();
  const int error = lib.getinfo(lib.api, node, nullptr, node ? fi::kSource : 0, hints.get(), &found);
  answer->reset(found);
  return -error;
}

// EFA's devices are "rdmap0s6-rdm" in libfabric and "rdmap0s6" everywhere else.
bool device_fits(const fi::Info& info, const std::string& device) {
  const char* name = info.domain_attr->name ? info.domain_attr->name : "";
  return device.empty() || device == name || std::string(name).compare(0, device.size() + 1, device + "-") == 0;
}

// The first answer that can be used, alone; why there is none in *problem.
InfoPointer pick(const Query& q, const std::string& device, std::string* problem) {
  InfoPointer answers;
  const int error = ask(q, &answers);
  if (error != 0) {
    *problem = q.provider + ": " + libfabric_code_text(error);
    return nullptr;
  }
  for (fi::Info* i = answers.get(); i != nullptr; i = i->next) {
    const std::string wrong = limits_problem(limits_of(*i));
    if (wrong.empty() && device_fits(*i, device)) {
      return InfoPointer(fi::library().dupinfo(i));  // it alone, without those behind it
    }
    *problem = q.provider + ": " + (wrong.empty() ? "no device '" + device + "'" : wrong);
  }
  return nullptr;
}

InfoPointer pick_best(Query q, const std::string& device, std::string* problem) {
  InfoPointer best;
  for (const bool delivery : {true, false}) {
    if (delivery && delivers_badly(q.provider)) continue;
    for (const fi::Threading threading : {fi::kThreadCompletion, fi::kThreadDomain}) {
      q.delivery = delivery;
      q.threading = threading;
      if (!best) best = pick(q, device, problem);
    }
    if (best) {
      q.delivery = delivery;
      break;
    }
  }
  if (!best) return best;
  std::string ignored;
  if ((best->domain_attr->mr_mode & fi::kMrAllocated) == 0) {  // registering pins nothing: no lock is worth sharing
    q.threading = fi::kThreadDomain;
    if (InfoPointer own = pick(q, device, &ignored)) best = std::move(own);
  } else {
    q.threading = best->domain_attr->threading;
  }
  if (best->domain_attr->cq_data_size < 8 && !forgets_sources(name_of(*best))) {
    q.source = true;
    if (InfoPointer source = pick(q, device, &ignored)) best = std::move(source);
  }
  return best;
}

// Before libfabric is asked for anything: it reads its sizes once.
std::vector<Note> fitted_queues(const TransportSettings& settings, const std::string& provider) {
  if (!is_rxm_over_verbs(provider)) return {};
  try {
    return fit_rxm_queues(ibv::Library::shared(), settings);
  } catch (const std::runtime_error&) { return {}; }  // no libibverbs: libfabric will offer no verbs either
}

std::string mr_mode_text(int mode) {
  std::string s;
  const auto add = [&](int bit, const char* name) {
    s += mode & bit ? (s.empty() ? "" : ", ") + std::string(name) : "";
  };
  add(fi::kMrLocal, "local");
  add(fi::kMrVirtAddr, "virtual addresses");
  add(fi::kMrAllocated, "allocated");
  add(fi::kMrProvKey, "keys by the provider");
  add(fi::kMrEndpoint, "by endpoint");
  add(fi::kMrHmem, "device memory");
  return s.empty() ? "no demands" : s;
}

std::vector<Note> notes_of(const fi::Info& info, const ProviderLimits& l, const std::string& asked) {
  const u32 v = info.fabric_attr->prov_version;
  const u64 most = l.max_message;
  std::vector<Note> notes;
  notes.push_back({"libfabric " + fi::version_text(fi::library().release) + ", provider " + l.form + " " +
                       fi::version_text(v) + ", device " + l.device,
                   "asked for " + asked});
  notes.push_back({"memory registration: " + mr_mode_text(l.mr_mode),
                   l.domain_per_lane ? "a domain for each lane: no lock between the workers"
                                     : "one domain for all lanes: memory is registered once"});
  notes.push_back({"sender known by: " + std::string(source_form_text(source_form_of(l))),
                   "CQ data of " + std::to_string(l.cq_data_bytes) + " bytes, of which the immediate takes 4"});
  notes.push_back({l.delivery_complete ? "completion: delivery" : "completion: transmission",
                   l.delivery_complete      ? "data and immediate have reached the receiver"
                   : delivers_badly(l.name) ? "the write is in the receiver's queue; with delivery-complete this "
                                              "provider sends one write at a time and may hang"
                                            : "the provider refused delivery-complete: QUIET means that the fabric has "
                                              "taken over, and the protocol's own counts say what has arrived"});
  if (l.name == "shm") {
    notes.push_back({"a killed rank may block its peers",
                     "libfabric's shm takes spin locks in shared memory; our own shared_memory family has none"});
  }
  notes.push_back({"writes of up to " + (most >= kMaxWriteBytes ? "any size" : std::to_string(most) + " bytes"),
                   most >= kMaxWriteBytes ? "the provider takes more than one command can say"
                   : l.ordered            ? "longer ones in pieces; writes to a peer land in order"
                                          : "longer ones in pieces; the last waits for the others to be complete"});
  return notes;
}

}  // namespace

ProviderLimits limits_of(const fi::Info& info) {
  ProviderLimits l;
  const fi::DomainAttr& d = *info.domain_attr;
  l.name = name_of(info);
  const std::string fabric = info.fabric_attr->name ? info.fabric_attr->name : "";
  l.form = fabric.starts_with(l.name + "-") ? fabric : l.name;
  l.device = d.name ? d.name : "";
  l.max_message = info.ep_attr->max_msg_size;
  l.inject_bytes = info.tx_attr->inject_size;
  l.cq_data_bytes = static_cast<u32>(d.cq_data_size);
  l.key_bytes = static_cast<u32>(d.mr_key_size);
  l.transmit_entries = static_cast<u32>(info.tx_attr->size);
  l.mr_mode = d.mr_mode;
  // Both bits: of RMA, and for every size that a piece can have.
  l.ordered = (info.tx_attr->msg_order & (fi::kOrderWaw | fi::kOrderRmaWaw)) != 0 &&
              info.ep_attr->max_order_waw_size >= info.ep_attr->max_msg_size;
  l.delivery_complete = (info.tx_attr->op_flags & fi::kDeliveryComplete) != 0;
  l.source_address = (info.caps & fi::kSource) != 0 && !forgets_sources(l.name);
  l.device_memory = (info.caps & fi::kHmem) != 0;
  // Where registering costs nothing (software), sharing a domain only shares its lock.
  l.domain_per_lane = d.threading == fi::kThreadDomain || (d.mr_mode & fi::kMrAllocated) == 0;
  return l;
}

bool ProviderLimits::registers_at_once() const {
  return (mr_mode & fi::kMrLocal) != 0 && (domain_per_lane || (mr_mode & fi::kMrEndpoint) != 0);
}

std::string limits_problem(const ProviderLimits& l) {
  // CXIP_WRITEMSG_ALLOWED_FLAGS lacks it, and the first message would end in FI_EBADFLAGS.
  if (l.name == "cxi") return "takes no data with a write (FI_REMOTE_CQ_DATA in fi_writemsg), which every message is";
  if (l.cq_data_bytes < 4) {
    return "carries " + std::to_string(l.cq_data_bytes) + " bytes of CQ data with a write, 4 are needed";
  }
  if (l.mr_mode & ~(kMrModes | fi::kMrHmem))
    return "wants memory registered in a way that this transport does not know";
  if (l.key_bytes > 8) return "has memory keys of " + std::to_string(l.key_bytes) + " bytes, 8 are the most";
  if (l.max_message < kMaxWriteBytes && !l.ordered && !l.delivery_complete) {
    return "would need writes in pieces, and promises neither order nor delivery of the first ones";
  }
  return "";
}

SourceForm source_form_of(const ProviderLimits& l) {
  return l.cq_data_bytes >= 8 ? SourceForm::kTag : l.source_address ? SourceForm::kAddress : SourceForm::kImmediate;
}

Provider choose_provider(const TransportSettings& settings, const std::string& device) {
  const std::string asked = settings.fabric.provider.empty() ? "tcp" : settings.fabric.provider;
  const fi::Library& lib = fi::library();
  const std::vector<Note> fitted = fitted_queues(settings, asked);
  bool device_memory = false;
  for (const auto& fds : settings.fabric.span_dmabuf_fds) device_memory |= !fds.empty();
  std::string problems;
  for (const std::string& name : names_of(asked, lib.release)) {
    Query q;
    q.provider = name;
    q.node = node_for(name, settings.ip.interface_address);
    q.device_memory = device_memory;
    std::string problem;
    InfoPointer info = pick_best(q, device, &problem);
    std::string refused;
    if (!info && device_memory) {  // by address then, which needs a peer-memory module; registration will tell
      refused = "; FI_HMEM with dma-buf was refused (" + problem + "), so device memory is registered by address";
      q.device_memory = false;
      info = pick_best(q, device, &problem);
    }
    if (info) {
      Provider p;
      p.limits = limits_of(*info);
      p.notes = notes_of(*info, p.limits, asked + (problems.empty() ? "" : "; " + problems) + refused);
      p.notes.insert(p.notes.end(), fitted.begin(), fitted.end());
      p.info = std::move(info);
      return p;
    }
    problems += (problems.empty() ? "" : ", ") + problem;
  }
  throw std::runtime_error("libfabric " + fi::version_text(lib.release) + " offers no usable provider '" + asked + "'" +
                           (device.empty() ? "" : " on device '" + device + "'") + " (" + problems +
                           "); `fi_info -l` lists what there is, and FI_LOG_LEVEL=info says why one was left out");
}

}  // namespace uccl

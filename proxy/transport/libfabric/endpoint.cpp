// Creates an endpoint and its registrations; posts writes and reads completions. The control path throws, write() and
// poll() never do.
#include "transport/libfabric/endpoint.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>

#include "transport/libfabric/codes.h"
#include "transport/libfabric/rxm_queues.h"
#include "wire/command.h"

namespace uccl {
namespace {

constexpr std::size_t kEventsPerRead = 64;
constexpr std::size_t kLeastQueueEntries = 4096, kMostQueueEntries = 1 << 16;
constexpr std::size_t kWindowsOfLag = 4;
constexpr int kKeyAttempts = 16;
constexpr u64 kLatePage = 1 << 16;

void check(int error, const std::string& what) {
  if (error != 0) throw std::runtime_error("libfabric: " + what + ": " + libfabric_code_text(-error));
}

// Keys that nobody can guess: on a provider without a protection of its own the key is what keeps strangers out.
u64 random_key(u32 key_bytes) {
  u64 key = 0;
  if (getrandom(&key, sizeof(key), 0) != static_cast<ssize_t>(sizeof(key))) {
    throw std::runtime_error("libfabric: the kernel gives no random number for a memory key");
  }
  return key_bytes >= 8 ? key >> 1 : key & low_bits(static_cast<int>(8 * key_bytes));  // all ones means "no key"
}

// Which GPU family a dma-buf is of: what this process's machine has. AMD's compute device is /dev/kfd.
fi::HmemIface device_iface() {
  const bool amd = access("/dev/kfd", F_OK) == 0, nvidia = access("/dev/nvidiactl", F_OK) == 0;
  return amd && !nvidia ? fi::kHmemRocr : fi::kHmemCuda;
}

struct Part {
  u8* base;
  u64 bytes;
  u64 offset;
  int dmabuf_fd;
};

RegisteredMemory::Region register_part(const ProviderLimits& l, fi::Domain& domain, fi::Endpoint* endpoint,
                                       const Part& part) {
  const iovec iov{part.base, part.bytes};
  const fi::DmabufAttr dmabuf{part.dmabuf_fd, 0, part.bytes, part.base};
  fi::MrAttr attr{};
  attr.iov_count = 1;
  attr.access = fi::kWrite | fi::kRead | fi::kRemoteWrite;
  u64 flags = 0;
  attr.mr_iov = &iov;
  if (part.dmabuf_fd >= 0 && l.device_memory) {
    attr.iface = device_iface();
    if (fi::library().api >= fi::version(1, 20)) {
      attr.dmabuf = &dmabuf;
      flags = fi::kMrDmabuf;
    }
  }
  fi::MemoryRegion* region = nullptr;
  int error = 0;
  for (int i = 0; i < kKeyAttempts; ++i) {
    attr.requested_key = l.mr_mode & fi::kMrProvKey ? 0 : random_key(l.key_bytes);
    error = domain.mr->regattr(&domain.fid, &attr, flags, &region);
    if (error != -fi::kErrNoKey) break;  // else: the key is taken
  }
  const std::string how = flags & fi::kMrDmabuf ? " as a dma-buf" : "";
  check(error, "cannot register " + std::to_string(part.bytes) + " bytes at offset " + std::to_string(part.offset) +
                   how + " with provider " + l.name);
  FiPointer<fi::MemoryRegion> owner(region);
  if (endpoint != nullptr) {
    check(region->fid.ops->bind(&region->fid, &endpoint->fid, 0), "cannot bind memory to an endpoint");
    check(region->fid.ops->control(&region->fid, fi::kEnable, nullptr), "cannot enable registered memory");
  }
  const u64 address = l.mr_mode & fi::kMrVirtAddr ? reinterpret_cast<u64>(part.base) : 0;
  return {std::move(owner), part.base, part.bytes, RemoteMemory{part.offset, part.bytes, address, region->key}};
}

// Providers that make queues of their own at that moment fail when the device's are shorter (rxm_queues.h).
std::string too_long(const ProviderLimits& l) {
  if (!is_rxm_over_verbs(l.name)) return "";
  return " of provider " + l.name + " (if the device's completion queues are too short, set FI_UNIVERSE_SIZE and " +
         "FI_OFI_RXM_MSG_TX_SIZE, FI_OFI_RXM_MSG_RX_SIZE lower before the process starts)";
}

}  // namespace

bool RegisteredMemory::describe(const u8* source, u64 bytes, void** descriptor) const {
  for (const Region& r : regions) {
    if (!r.holds(source, bytes)) continue;
    *descriptor = r.region->mem_desc;
    return true;
  }
  return false;
}

void LateMemory::admit(const ProviderLimits& limits, fi::Domain& domain, const Span& span, u64 bytes) {
  const u32 n = num_.load(std::memory_order_relaxed);  // only this function changes it
  const u64 before = n == 0 ? 0 : regions_[n - 1].bytes;
  if (bytes <= before) return;
  if (bytes > span.bytes || n == regions_.size())
    throw std::runtime_error("libfabric: late memory: " + std::to_string(bytes) + " bytes of a span of " +
                             std::to_string(span.bytes) + " are more than can be registered");
  const u64 to = std::min(span.bytes, std::max(align_up(bytes, kLatePage), 2 * before));
  regions_[n] = register_part(limits, domain, nullptr, Part{span.base, to, span.offset, -1});
  num_.store(n + 1, std::memory_order_release);  // pairs with describe
}

bool LateMemory::describe(const u8* source, u64 bytes, void** descriptor) const {
  const u32 n = num_.load(std::memory_order_acquire);  // pairs with admit
  if (n == 0 || !regions_[n - 1].holds(source, bytes)) return false;
  *descriptor = regions_[n - 1].region->mem_desc;
  return true;
}

std::shared_ptr<LibfabricDomain> open_domain(const Provider& provider) {
  auto d = std::make_shared<LibfabricDomain>();
  fi::Info& info = *provider.info;
  const std::string who = " of provider " + provider.limits.name;
  fi::Fabric* fabric = nullptr;
  check(fi::library().open_fabric(info.fabric_attr, &fabric, nullptr), "cannot open the fabric" + who);
  d->fabric.reset(fabric);
  fi::Domain* domain = nullptr;
  check(fabric->ops->domain(fabric, &info, &domain, nullptr), "cannot open device " + provider.limits.device + who);
  d->domain.reset(domain);
  return d;
}

RegisteredMemory register_spans(const Provider& provider, fi::Domain& domain, fi::Endpoint* endpoint,
                                const TransportSettings& settings, std::vector<Note>* notes) {
  RegisteredMemory memory;
  const auto& spans = settings.local.spans();
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (settings.fabric.late_span == static_cast<int>(i)) continue;  // nobody writes there
    const bool one = i < settings.fabric.span_dmabuf_fds.size() && settings.fabric.span_dmabuf_fds[i].size() == 1;
    const int fd = one ? settings.fabric.span_dmabuf_fds[i][0] : -1;  // of a span that several hold: by address
    memory.regions.push_back(
        register_part(provider.limits, domain, endpoint, Part{spans[i].base, spans[i].bytes, spans[i].offset, fd}));
    if (notes == nullptr || fd < 0) continue;
    const bool dmabuf = provider.limits.device_memory && fi::library().api >= fi::version(1, 20);
    notes->push_back({"device memory at offset " + std::to_string(spans[i].offset) +
                          (dmabuf ? ": registered as a dma-buf" : ": registered by address"),
                      dmabuf ? "the provider takes FI_MR_DMABUF"
                             : "no dma-buf before libfabric 1.20 or without FI_HMEM; a peer-memory module carries it"});
  }
  return memory;
}

LibfabricEndpoint::LibfabricEndpoint(const Provider& provider, std::shared_ptr<LibfabricDomain> domain,
                                     const TransportSettings& settings, std::vector<Note>* notes)
    : limits_(provider.limits), domain_(std::move(domain)), mailbox_(2 * static_cast<std::size_t>(settings.num_ranks)) {
  fi::Domain* d = domain_->domain.get();
  fi::AvAttr av{};
  av.type = fi::kAvTable;
  av.count = settings.num_ranks;
  fi::AddressVector* addresses = nullptr;
  check(d->ops->av_open(d, &av, &addresses, nullptr), "cannot make an address vector");
  addresses_.reset(addresses);

  fi::CqAttr cq{};
  // What may be open, and arrivals of a receiver that lags: efa-direct's device acknowledges them before anybody polls, and
  // writes over what was not read. Never more than providers are known to take.
  const std::size_t open = static_cast<std::size_t>(settings.max_in_flight) * settings.num_ranks;
  cq.size = std::clamp<std::size_t>((1 + kWindowsOfLag) * open, kLeastQueueEntries, kMostQueueEntries);
  cq.format = fi::kCqFormatData;
  cq.wait_obj = fi::kWaitNone;
  fi::CompletionQueue* queue = nullptr;
  int error = d->ops->cq_open(d, &cq, &queue, nullptr);
  if (error != 0) {  // devices have limits of their own: soft-RoCE 32,767
    cq.size = 1024;
    error = d->ops->cq_open(d, &cq, &queue, nullptr);
  }
  check(error, "cannot make a completion queue of " + std::to_string(cq.size) + " entries");
  queue_.reset(queue);

  fi::Endpoint* endpoint = nullptr;
  check(d->ops->endpoint(d, provider.info.get(), &endpoint, nullptr), "cannot make an endpoint");
  endpoint_.reset(endpoint);
  check(endpoint->fid.ops->bind(&endpoint->fid, &queue->fid, fi::kTransmit | fi::kRecv), "cannot bind the queue");
  check(endpoint->fid.ops->bind(&endpoint->fid, &addresses->fid, 0), "cannot bind the address vector");
  check(endpoint->fid.ops->control(&endpoint->fid, fi::kEnable, nullptr),
        "cannot enable an endpoint" + too_long(limits_));

  fi::Endpoint* bound = limits_.mr_mode & fi::kMrEndpoint ? endpoint : nullptr;
  const Part mailbox{reinterpret_cast<u8*>(mailbox_.data()), mailbox_.size() * sizeof(MailboxSlot), 0, -1};
  own_.regions.push_back(register_part(limits_, *d, bound, mailbox));
  if (bound != nullptr) {
    RegisteredMemory spans = register_spans(provider, *d, bound, settings, notes);
    for (auto& r : spans.regions) own_.regions.push_back(std::move(r));
  }
}

LibfabricAddress::LaneAddress LibfabricEndpoint::address() const {
  LibfabricAddress::LaneAddress a;
  a.name.resize(512);
  std::size_t length = a.name.size();
  check(endpoint_->cm->getname(&endpoint_->fid, a.name.data(), &length), "cannot learn the endpoint's name");
  a.name.resize(length);
  a.mailbox = own_.regions.front().remote;
  for (std::size_t i = 1; i < own_.regions.size(); ++i) a.spans.push_back(own_.regions[i].remote);
  for (const auto& r : domain_->spans.regions) a.spans.push_back(r.remote);
  return a;
}

u64 LibfabricEndpoint::add(const std::string& name) {
  fi::Address peer = fi::kAddrUnspec;
  const int n = addresses_->ops->insert(addresses_.get(), name.data(), 1, &peer, 0, nullptr);
  if (n != 1) check(n < 0 ? n : -EINVAL, "the provider does not take a peer's address");
  return peer;
}

int LibfabricEndpoint::write(const RmaWrite& w) {
  void* descriptor = nullptr;
  u64 flags = fi::kCompletion;
  // Of zero bytes too: ofi_rxm reads the descriptor of whatever it is given.
  if ((limits_.mr_mode & fi::kMrLocal) && !own_.describe(w.source, w.bytes, &descriptor) &&
      !domain_->spans.describe(w.source, w.bytes, &descriptor) &&
      !domain_->late.describe(w.source, w.bytes, &descriptor)) {
    if (w.bytes > limits_.inject_bytes) return EFAULT;
    flags |= fi::kInject;
  }
  if (w.with_data) flags |= fi::kRemoteCqData;
  if (w.more) flags |= fi::kMore;
  flags |= w.confirmed && limits_.delivery_complete ? fi::kDeliveryComplete : fi::kTransmitComplete;
  const iovec local{const_cast<u8*>(w.source), w.bytes};
  const fi::RmaIov remote{w.remote_address, w.bytes, w.key};
  const fi::MsgRma message{&local, &descriptor, 1, w.destination, &remote, 1, w.context, w.data};
  const ssize_t result = endpoint_->rma->writemsg(endpoint_.get(), &message, flags);
  return static_cast<int>(-result);
}

std::size_t LibfabricEndpoint::poll(std::span<RmaEvent> events) {
  fi::CqEntry entries[kEventsPerRead];
  fi::Address sources[kEventsPerRead];
  const std::size_t most = std::min(events.size(), kEventsPerRead);
  if (most == 0) return 0;
  const ssize_t n = limits_.source_address ? queue_->ops->readfrom(queue_.get(), entries, most, sources)
                                           : queue_->ops->read(queue_.get(), entries, most);
  if (n == -fi::kErrAvail) return poll_error(&events[0]);
  if (n <= 0) return 0;
  for (ssize_t i = 0; i < n; ++i) {
    const fi::CqEntry& e = entries[i];
    RmaEvent& out = events[static_cast<std::size_t>(i)];
    out = RmaEvent{};
    out.arrival = (e.flags & fi::kRemoteCqData) != 0;
    out.context = out.arrival ? nullptr : e.op_context;
    out.data = e.data;
    out.bytes = e.len;
    out.source = limits_.source_address ? sources[i] : fi::kAddrUnspec;
  }
  return static_cast<std::size_t>(n);
}

std::size_t LibfabricEndpoint::poll_error(RmaEvent* event) {
  fi::CqError e{};
  if (queue_->ops->readerr(queue_.get(), &e, 0) <= 0) return 0;
  *event = RmaEvent{};
  event->context = e.op_context;
  event->error = e.err != 0 ? e.err : EIO;
  return 1;
}

}  // namespace uccl

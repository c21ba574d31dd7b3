// Building a rank's proxy: map, make the transport, connect, hand over to the engine.
#include "bindings/proxy_host.h"

#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "ring/layout.h"

namespace uccl {

u64 counters_bytes(u32 num_workers, u32 num_ranks) {
  return num_workers * sizeof(WorkerCounters) + num_ranks * sizeof(PeerCounters);
}

ProxyHost::ProxyHost(ProxySettings settings) : settings_(std::move(settings)) {
  TransportSettings t;
  t.fabric = settings_.fabric;
  for (const SpanSettings& s : settings_.spans) {
    const bool late = static_cast<int>(local_.spans().size()) == settings_.late_span;
    local_.add(Span{s.offset, s.bytes, place(s, late)});
    t.shared_memory.span_fds.push_back(s.fd);
    t.fabric.span_dmabuf_fds.push_back(s.dmabuf_fds);
    if (s.fd < 0 && !late && t.fabric.flush_by_read)  // what only sends is not registered yet, nor ever written
      t.fabric.flushed_span = static_cast<int>(t.fabric.span_dmabuf_fds.size()) - 1;
  }
  t.fabric.late_span = settings_.late_span;
  rings_ = Segment::map(settings_.rings_fd, settings_.num_rings * ring_bytes(settings_.ring_capacity));
  counters_ = Segment::map(settings_.counters_fd, counters_bytes(settings_.num_workers, settings_.num_ranks));
  if (settings_.events_fd >= 0) {
    if (!std::has_single_bit(settings_.event_capacity))
      throw std::invalid_argument("event_capacity is " + std::to_string(settings_.event_capacity) +
                                  ", allowed: a power of two");
    events_ = Segment::map(settings_.events_fd, settings_.num_workers * event_stride(settings_.event_capacity));
  }
  t.rank = settings_.rank;
  t.num_ranks = settings_.num_ranks;
  t.num_lanes = settings_.num_workers;
  t.session = settings_.session;
  t.secret = settings_.secret;
  t.local = local_;
  t.ip.interface_address = settings_.interface_address;
  t.max_in_flight = settings_.max_in_flight;
  t.in_process.shuffle_seed = settings_.shuffle_seed;
  t.connect_timeout_ns = settings_.connect_timeout_ns;
  t.unreached = settings_.unreached;
  transport_.reset(make_transport(settings_.family, t).release());
}

ProxyHost::~ProxyHost() = default;  // the engine first, which stops

u8* ProxyHost::place(const SpanSettings& s, bool late) {
  if (s.fd >= 0) {
    segments_.push_back(Segment::map(s.fd, s.bytes));
    return static_cast<u8*>(segments_.back()->data());
  }
  if (!late && s.dmabuf_fds.empty() && s.address == 0)
    throw std::invalid_argument("a span has neither memory nor a device's");
  // Also with a dma-buf: where a NIC refuses that one, a peer-memory module may know the address.
  if (s.address != 0) return reinterpret_cast<u8*>(s.address);
  reservations_.emplace_back(s.bytes);
  return reservations_.back().base();
}

Reservation::Reservation(u64 bytes)
    : base_(mmap(nullptr, bytes + kAlign, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)),
      bytes_(bytes + kAlign) {
  if (base_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "reserve addresses for a dma-buf");
}

Reservation::Reservation(Reservation&& other) noexcept
    : base_(std::exchange(other.base_, MAP_FAILED)), bytes_(other.bytes_) {}

Reservation::~Reservation() {
  if (base_ != MAP_FAILED) munmap(base_, bytes_);
}

// On a worker's thread, which has no context of its own.
int ProxyHost::flush_device(void* settings) {
  constexpr int kTargetOfContext = 0, kToAllDevices = 200;  // CUflushGPUDirectRDMAWritesTarget, ...Scope
  const ProxySettings& s = *static_cast<const ProxySettings*>(settings);
  int error = reinterpret_cast<int (*)(void*)>(s.context_call)(reinterpret_cast<void*>(s.context));
  if (error == 0) error = reinterpret_cast<int (*)(int, int)>(s.flush_call)(kTargetOfContext, kToAllDevices);
  return error == 0 ? 0 : kFlushFailed | error;
}

std::string ProxyHost::local_address() {
  if (!transport_) throw std::logic_error("local_address: the proxy is already connected");
  return transport_->local_address();
}

void ProxyHost::connect(const std::vector<std::string>& addresses, const std::vector<u64>& peer_bytes,
                        const std::vector<int>& peer_pids) {
  if (!transport_) throw std::logic_error("connect: the proxy is already connected");
  transport_->connect(addresses);
  notes_ = transport_->notes();
  EngineSettings e;
  e.rank = settings_.rank;
  e.num_ranks = settings_.num_ranks;
  e.num_workers = settings_.num_workers;
  for (u32 i = 0; i < settings_.num_rings; ++i)
    e.rings.push_back(static_cast<u8*>(rings_->data()) + i * ring_bytes(settings_.ring_capacity));
  e.ring_capacity = settings_.ring_capacity;
  e.local = local_;
  e.peer_bytes = peer_bytes;
  e.control = local_.resolve(settings_.control_offset, 1);
  e.control_layout = ControlLayout{settings_.num_ranks, settings_.num_channels};
  e.peer_pids = peer_pids;
  e.max_in_flight = settings_.max_in_flight;
  e.max_in_flight_bytes = settings_.max_in_flight_bytes;
  e.max_in_flight_bytes_all = ceil_div(settings_.max_in_flight_bytes_all, u64{settings_.num_workers});
  e.nap_when_idle = settings_.nap_when_idle;
  e.cpus = settings_.cpus;
  e.near_cpus = settings_.near_cpus;
  e.losses_are_absences = settings_.losses_are_absences;
  if (settings_.flush_call != 0) e.flush = {flush_device, &settings_};
  if (events_)
    for (u32 w = 0; w < settings_.num_workers; ++w)
      e.events.emplace_back(static_cast<u8*>(events_->data()) + w * event_stride(settings_.event_capacity),
                            settings_.event_capacity, settings_.trace);
  auto* workers = static_cast<WorkerCounters*>(counters_->data());
  auto* peers = reinterpret_cast<PeerCounters*>(workers + settings_.num_workers);
  engine_ = std::make_unique<Engine>(std::move(e), std::unique_ptr<Transport>(transport_.release()), workers, peers);
}

void ProxyHost::start() {
  if (!engine_) throw std::logic_error("start: connect the proxy first");
  engine_->start();
}

void ProxyHost::stop(u64 drain_ns) {
  if (engine_) engine_->stop(drain_ns);
}

void ProxyHost::dismiss_peer(u32 peer) {
  if (engine_) engine_->dismiss_peer(peer);
}

void ProxyHost::admit(const Admission& wanted) {
  if (!engine_) throw std::logic_error("admit: connect the proxy first");
  engine_->admit(wanted);
}

std::vector<Note> ProxyHost::notes() const { return transport_ ? transport_->notes() : notes_; }

std::vector<QueueCounters> ProxyHost::queue_counters() const {
  if (engine_) return engine_->queue_counters();
  return transport_ ? transport_->queue_counters() : std::vector<QueueCounters>();
}

ProxyGuard::ProxyGuard(int pid, u8* control, u32 rank)
    : faults_(control, nullptr, 0), watch_(make_at_home<ProcessWatch>(std::vector<int>{pid}, [this, rank](u32) {
        faults_.raise({.kind = FaultKind::kPeerLost, .peer = rank});
      })) {
  watch_->start();
}

}  // namespace uccl

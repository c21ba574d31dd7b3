// Building a rank's proxy: map, make the transport, connect, hand over to the engine.
#include "bindings/proxy_host.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>

namespace uccl {
namespace {

// A mapping of its own, so that the settings' descriptor stays the caller's.
std::shared_ptr<Segment> map(int fd, u64 bytes) {
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (copy < 0) throw std::system_error(errno, std::generic_category(), "duplicate a segment's descriptor");
  return Segment::adopt(copy, bytes);
}

}  // namespace

u64 counters_bytes(u32 num_workers, u32 num_ranks) {
  return num_workers * sizeof(WorkerCounters) + num_ranks * sizeof(PeerCounters);
}

ProxyHost::ProxyHost(ProxySettings settings) : settings_(std::move(settings)) {
  TransportSettings t;
  for (const SpanSettings& s : settings_.spans) {
    segments_.push_back(map(s.fd, s.bytes));
    local_.add(Span{s.offset, s.bytes, static_cast<u8*>(segments_.back()->data())});
    t.span_fds.push_back(segments_.back()->fd());
  }
  rings_ = map(settings_.rings_fd, settings_.num_rings * ring_bytes(settings_.ring_capacity));
  counters_ = map(settings_.counters_fd, counters_bytes(settings_.num_workers, settings_.num_ranks));
  t.rank = settings_.rank;
  t.num_ranks = settings_.num_ranks;
  t.num_lanes = settings_.num_workers;
  t.session = settings_.session;
  t.secret = settings_.secret;
  t.local = local_;
  t.interface_address = settings_.interface_address;
  t.max_in_flight = settings_.max_in_flight;
  t.shuffle_seed = settings_.shuffle_seed;
  t.connect_timeout_ns = settings_.connect_timeout_ns;
  transport_ = make_transport(settings_.family, t);
}

ProxyHost::~ProxyHost() { stop(0); }

std::string ProxyHost::local_address() {
  if (!transport_) throw std::logic_error("local_address: the proxy is already connected");
  return transport_->local_address();
}

void ProxyHost::connect(const std::vector<std::string>& addresses, const std::vector<u64>& peer_bytes,
                        const std::vector<int>& peer_pids) {
  if (!transport_) throw std::logic_error("connect: the proxy is already connected");
  transport_->connect(addresses);
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
  e.cpus = settings_.cpus;
  auto* workers = static_cast<WorkerCounters*>(counters_->data());
  auto* peers = reinterpret_cast<PeerCounters*>(workers + settings_.num_workers);
  engine_ = std::make_unique<Engine>(std::move(e), std::move(transport_), workers, peers);
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

ProxyGuard::ProxyGuard(int pid, u8* control, u32 rank)
    : faults_(control, nullptr, 0),
      watch_({pid}, [this, rank](u32) { faults_.raise({.kind = FaultKind::kPeerLost, .peer = rank}); }) {
  watch_.start();
}

}  // namespace uccl

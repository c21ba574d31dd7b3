// Set-up of libfabric: endpoints first, so that their names can travel; then greet everybody.
#include "transport/libfabric/transport.h"

#include <algorithm>
#include <stdexcept>

namespace uccl {

LibfabricTransport::LibfabricTransport(const TransportSettings& settings, const LibfabricTuning& tuning)
    : settings_(settings) {
  if (settings_.secret.size() != kSecretBytes) {
    throw std::invalid_argument("libfabric: the secret has " + std::to_string(settings_.secret.size()) + " bytes, " +
                                std::to_string(kSecretBytes) + " are needed");
  }
  lanes_.resize(settings_.num_lanes);
  address_.lanes.resize(settings_.num_lanes);
  std::vector<std::string> devices;
  for (const NicSettings& nic : settings_.fabric.nics) devices.push_back(nic.device);
  if (devices.empty()) devices.emplace_back();
  for (std::size_t i = 0; i < devices.size() && i < lanes_.size(); ++i) open_lanes(devices[i], tuning);
}

// Lane i is on NIC i modulo their number, so that all of them carry.
void LibfabricTransport::open_lanes(const std::string& device, const LibfabricTuning& tuning) {
  const std::size_t num_devices = std::max<std::size_t>(1, settings_.fabric.nics.size());
  std::size_t first = 0;
  while (first < lanes_.size() && lanes_[first]) ++first;
  const Provider provider = choose_provider(settings_, device);
  notes_.insert(notes_.end(), provider.notes.begin(), provider.notes.end());
  const SourceForm form = source_form_of(provider.limits);
  if (first == 0) {
    address_.provider = provider.limits.form;
    address_.source_form = form;
  }
  if (settings_.fabric.late_span >= 0 && provider.limits.registers_at_once())
    throw std::runtime_error("libfabric: provider " + provider.limits.form +
                             ": memory is registered only when lanes are made");
  const bool by_endpoint = (provider.limits.mr_mode & fi::kMrEndpoint) != 0;
  std::shared_ptr<LibfabricDomain> domain;
  for (std::size_t i = first; i < lanes_.size(); i += num_devices) {
    std::vector<Note>* notes = i == first ? &notes_ : nullptr;
    if (!domain || provider.limits.domain_per_lane) {
      domain = open_domain(provider);
      domains_.push_back({provider.limits, domain});
      if (!by_endpoint) domain->spans = register_spans(provider, *domain->domain, nullptr, settings_, notes);
    }
    auto endpoint = std::make_unique<LibfabricEndpoint>(provider, domain, settings_, notes);
    address_.lanes[i] = endpoint->address();
    LaneShape shape;
    shape.rank = settings_.rank;
    shape.index = static_cast<u32>(i);
    shape.num_ranks = settings_.num_ranks;
    shape.max_in_flight = settings_.max_in_flight;
    shape.session = settings_.session;
    shape.secret = settings_.secret;
    shape.max_piece = std::min<u64>(provider.limits.max_message, tuning.max_piece);
    shape.ordered = provider.limits.ordered;
    shape.transmit_entries = provider.limits.transmit_entries;
    shape.source_form = form;
    shape.unreachable_ns = settings_.connect_timeout_ns;
    MailboxSlot *inbox = endpoint->inbox(), *outbox = endpoint->outbox();
    lanes_[i] = std::make_unique<LibfabricLane>(shape, std::move(endpoint), inbox, outbox);
  }
}

void LibfabricTransport::admit(const Admission& wanted) {
  if (settings_.fabric.late_span < 0) return;
  if (wanted.of_device()) throw std::runtime_error("libfabric: a device's memory is not registered here");
  const Span& span = settings_.local.spans()[static_cast<std::size_t>(settings_.fabric.late_span)];
  for (Opened& o : domains_) o.domain->late.admit(o.limits, *o.domain->domain, span, wanted.bytes);
}

void LibfabricTransport::add_peer(u32 peer, const std::string& text) {
  const std::string who = "libfabric: rank " + std::to_string(peer) + ": ";
  try {
    const LibfabricAddress a = LibfabricAddress::parse(text);
    if (a.provider != address_.provider || a.source_form != address_.source_form) {
      throw std::runtime_error("it uses provider " + a.provider + ", rank " + std::to_string(settings_.rank) +
                               " uses " + address_.provider + "; all ranks need the same provider and library");
    }
    if (a.lanes.size() != lanes_.size()) {
      throw std::runtime_error("it has " + std::to_string(a.lanes.size()) + " lanes, rank " +
                               std::to_string(settings_.rank) + " has " + std::to_string(lanes_.size()));
    }
    for (std::size_t i = 0; i < lanes_.size(); ++i) lanes_[i]->add_peer(peer, a.lanes[i]);
  } catch (const std::runtime_error& e) { throw std::runtime_error(who + e.what()); }
}

void LibfabricTransport::connect(const std::vector<std::string>& addresses) {
  if (connected_) throw std::runtime_error("libfabric: connect was called before");
  if (addresses.size() != settings_.num_ranks) {
    throw std::runtime_error("libfabric: " + std::to_string(addresses.size()) + " addresses for " +
                             std::to_string(settings_.num_ranks) + " ranks");
  }
  connected_ = true;
  std::vector<u32> peers;
  for (u32 p = 0; p < settings_.num_ranks; ++p) {
    if (p == settings_.rank || addresses[p].empty()) continue;
    add_peer(p, addresses[p]);
    peers.push_back(p);
  }
  LibfabricHandshake handshake(settings_, lanes_, peers);
  try {
    handshake.run();
  } catch (...) {
    handshake_counters_ = handshake.counters();
    throw;
  }
  handshake_counters_ = handshake.counters();
  if (const u64 n = handshake_counters_.strangers; n != 0) {
    notes_.push_back({"libfabric: " + std::to_string(n) + " greeting(s) of strangers ignored",
                      "they did not prove that they know the session's secret"});
  }
  for (const u32 p : peers) {
    for (auto& lane : lanes_) lane->open(p);
  }
}

}  // namespace uccl

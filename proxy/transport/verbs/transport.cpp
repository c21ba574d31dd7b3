// Set-up of verbs: NICs, registrations and queue pairs when made, so that the address can travel; proof in connect().
#include "transport/verbs/transport.h"

#include <algorithm>
#include <stdexcept>

#include "transport/verbs/errors.h"

namespace uccl {
namespace {

constexpr u32 kMaxNics = 64;
constexpr u32 kMaxQueuePairs = 64;

std::string link_text(u32 layer) {
  return layer == ibv::kLinkInfiniband ? "InfiniBand" : layer == ibv::kLinkEthernet ? "RoCE (Ethernet)" : "unknown";
}

Note patience(const VerbsNic& nic, const FabricSettings& fabric) {
  const u32 again = nic.retries(fabric);
  const u64 ms = (again + 1) * (4096ull << fabric.timeout) / 1'000'000;
  return {"timeout " + std::to_string(fabric.timeout) + ", " + std::to_string(again) + " retries on " + nic.name(),
          "a peer that does not answer is lost after " + std::to_string(ms) + " ms, or up to 4 times as long" +
              (again == fabric.retries ? "" : "; soft-RoCE repeats for ever with more retries")};
}

}  // namespace

void check_fabric(const TransportSettings& s, const std::string& family) {
  auto demand = [&](bool ok, const std::string& what) {
    if (!ok) throw std::invalid_argument(family + ": " + what);
  };
  auto within = [&](const char* name, u32 value, u32 low, u32 high) {
    demand(value >= low && value <= high, std::string(name) + " is " + std::to_string(value) + ", allowed are " +
                                              std::to_string(low) + " to " + std::to_string(high));
  };
  const FabricSettings& f = s.fabric;
  demand(s.secret.size() == kSecretBytes, "the secret has " + std::to_string(s.secret.size()) + " bytes, " +
                                              std::to_string(kSecretBytes) + " are needed");
  demand(!f.nics.empty() && f.nics.size() <= kMaxNics,
         std::to_string(f.nics.size()) + " NICs are named, 1 to " + std::to_string(kMaxNics) + " are needed");
  within("queue_pairs", f.queue_pairs, 1, kMaxQueuePairs);
  within("service_level", f.service_level, 0, 15);
  within("traffic_class", f.traffic_class, 0, 255);
  within("hop_limit", f.hop_limit, 1, 255);
  within("timeout", f.timeout, 1, 31);
  within("retries", f.retries, 0, 7);
  if (f.udp_source_port != 0) within("udp_source_port", f.udp_source_port, 0xc001, 0xffff - kMaxQueuePairs * kMaxNics);
  for (const NicSettings& n : f.nics) {
    demand(!n.device.empty(), "a NIC without a device name");
    within("port", n.port, 1, 255);
    demand(n.gid_index >= -1 && n.gid_index <= 255,
           "gid_index of " + n.device + " is " + std::to_string(n.gid_index) + ", allowed are -1 (chosen here) to 255");
  }
}

std::unique_ptr<VerbsAddress> parse_peer(const std::string& bytes, u32 peer, const VerbsAddress& own,
                                         std::vector<Note>& notes) {
  const std::string family = own.kind != VerbsKind::kReliableConnected ? "efa" : "verbs";
  const std::string who = family + ": rank " + std::to_string(own.rank) + ": rank " + std::to_string(peer);
  auto a = std::make_unique<VerbsAddress>();
  try {
    *a = decode_address(bytes);
  } catch (const std::invalid_argument& e) { throw std::runtime_error(who + ": " + e.what()); }
  auto same = [&](const char* what, u64 theirs, u64 mine) {
    if (theirs == mine) return;
    throw std::runtime_error(who + " says " + what + " " + std::to_string(theirs) + ", this rank " +
                             std::to_string(mine) + "; they must be the same on all ranks");
  };
  if (family == "efa" && a->kind != own.kind && a->kind != VerbsKind::kReliableConnected) {
    const bool theirs = a->kind == VerbsKind::kUnsolicitedDatagram;
    throw std::runtime_error(who +
                             std::string(theirs ? " takes writes without receives, this rank with them"
                                                : " takes writes with receives, this rank without them") +
                             ", and their devices refuse what is between them: install one rdma-core and one EFA " +
                             "driver on all hosts");
  }
  same("kind of transport (1 verbs, 2 or 3 efa)", static_cast<u64>(a->kind), static_cast<u64>(own.kind));
  same("rank", a->rank, peer);
  same("num_ranks", a->num_ranks, own.num_ranks);
  same("num_lanes", a->num_lanes, own.num_lanes);
  same("queue_pairs", a->queues, own.queues);
  if (a->fingerprint != own.fingerprint)
    throw std::runtime_error(who + " is of another session, or has another secret");
  for (const VerbsNicAddress& theirs : a->nics) {
    for (const VerbsNicAddress& mine : own.nics) {
      if (theirs.link_layer != mine.link_layer) {
        throw std::runtime_error(who + " is on " + link_text(theirs.link_layer) + " (" + theirs.device +
                                 "), this rank on " + link_text(mine.link_layer) + " (" + mine.device +
                                 "): name NICs of one network");
      }
      if (theirs.mtu != mine.mtu && &theirs == &a->nics[0]) {
        notes.push_back({"MTU " + std::to_string(std::min(theirs.mtu, mine.mtu)) + " to rank " + std::to_string(peer),
                         "its " + theirs.device + " has " + std::to_string(theirs.mtu) + ", " + mine.device + " here " +
                             std::to_string(mine.mtu)});
      }
    }
  }
  return a;
}

VerbsAddress describe_rank(const TransportSettings& s, const VerbsTuning& tuning) {
  VerbsAddress a;
  a.fingerprint = group_fingerprint(s.session, s.secret);
  a.nonce = new_nonce();
  a.rank = s.rank;
  a.num_ranks = s.num_ranks;
  a.num_lanes = s.num_lanes;
  a.queues = s.fabric.queue_pairs;
  a.max_in_flight = s.max_in_flight;
  a.chunk_bytes = tuning.chunk_bytes;
  const std::vector<Span>& spans = s.local.spans();
  for (std::size_t i = 0; i < spans.size(); ++i)
    if (s.fabric.late_span != static_cast<int>(i))  // nobody writes there
      a.spans.push_back({spans[i].offset, spans[i].bytes, reinterpret_cast<u64>(spans[i].base)});
  return a;
}

VerbsNicAddress describe_nic(const VerbsNic& nic, const VerbsMemory& memory) {
  VerbsNicAddress n;
  n.device = nic.settings().device;
  n.port = nic.settings().port;
  n.link_layer = nic.port().link_layer;
  n.gid_type = nic.gid_type();
  n.mtu = nic.mtu();
  n.lid = nic.port().lid;
  n.gid = nic.gid();
  n.rkeys = memory.rkeys();
  return n;
}

VerbsTransport::VerbsTransport(const TransportSettings& settings, const ibv::Functions& functions,
                               const VerbsTuning& tuning)
    : settings_(settings), tuning_(tuning) {
  check_fabric(settings_, "verbs");
  for (const NicSettings& n : settings_.fabric.nics)
    nics_.push_back(std::make_unique<VerbsNic>(functions, n, settings_.fabric, notes_));
  check_budget();
  own_ = describe_rank(settings_, tuning_);
  const u32 slots = settings_.num_ranks * settings_.num_lanes * settings_.fabric.queue_pairs;
  for (auto& nic : nics_) {
    notes_.push_back(patience(*nic, settings_.fabric));
    memories_.push_back(std::make_unique<VerbsMemory>(*nic, settings_, tuning_, notes_));
    areas_.push_back(std::make_unique<GreetingArea>(*nic, slots));
    own_.nics.push_back(describe_nic(*nic, *memories_.back()));
    own_.nics.back().greeting_base = areas_.back()->base();
    own_.nics.back().greeting_rkey = areas_.back()->rkey();
  }
  for (u32 l = 0; l < settings_.num_lanes; ++l) {
    std::vector<Note> ignored;  // what lane 0 says holds for all
    lanes_.push_back(
        std::make_unique<VerbsLane>(settings_, tuning_, nics_, memories_, l == 0, l == 0 ? notes_ : ignored));
  }
  notes_.push_back(
      {std::to_string(num_reached() * settings_.num_lanes * settings_.fabric.queue_pairs) + " queue pairs a NIC",
       "one per peer that is not reached by memory, lane and queue of " + std::to_string(settings_.fabric.queue_pairs) +
           "; " + nics_[0]->name() + " allows " + std::to_string(nics_[0]->limits().max_qp)});
}

VerbsTransport::~VerbsTransport() = default;

u32 VerbsTransport::num_reached() const {
  u32 n = 0;
  for (u32 peer = 0; peer < settings_.num_ranks; ++peer) n += settings_.reaches(peer);
  return n;
}

void VerbsTransport::check_budget() const {
  const u64 flushes = settings_.fabric.flushed_span >= 0 ? settings_.num_lanes : 0;
  const u64 needed = static_cast<u64>(num_reached()) * settings_.num_lanes * settings_.fabric.queue_pairs + flushes;
  for (const auto& nic : nics_) {
    if (needed <= static_cast<u64>(std::max(nic->limits().max_qp, 0))) continue;
    throw std::runtime_error("verbs: " + std::to_string(num_reached()) + " peers with " +
                             std::to_string(settings_.num_lanes) + " lanes and queue_pairs " +
                             std::to_string(settings_.fabric.queue_pairs) + " need " + std::to_string(needed) +
                             " queue pairs a rank; " + nic->name() + " allows " + std::to_string(nic->limits().max_qp) +
                             " to all processes together. Use fewer proxy threads (lanes) or queue_pairs");
  }
}

std::string VerbsTransport::local_address() {
  const u32 per_peer = settings_.fabric.queue_pairs;
  for (u32 e = 0; e < own_.nics.size(); ++e) {
    std::vector<u32>& numbers = own_.nics[e].queue_pairs;
    numbers.assign(static_cast<std::size_t>(settings_.num_ranks) * settings_.num_lanes * per_peer, 0);
    for (u32 peer = 0; peer < settings_.num_ranks; ++peer) {
      for (u32 l = 0; settings_.reaches(peer) && l < settings_.num_lanes; ++l) {
        for (u32 q = 0; q < per_peer; ++q) {
          VerbsQueue& queue = lanes_[l]->queue(lanes_[l]->queue_index(peer, e, q));
          numbers[(static_cast<std::size_t>(peer) * settings_.num_lanes + l) * per_peer + q] = queue.pair.number();
        }
      }
    }
  }
  return encode_address(own_);
}

void VerbsTransport::connect(const std::vector<std::string>& addresses) {
  if (connected_) throw std::runtime_error("verbs: connect was called before");
  if (addresses.size() != settings_.num_ranks) {
    throw std::runtime_error("verbs: " + std::to_string(addresses.size()) + " addresses for " +
                             std::to_string(settings_.num_ranks) + " ranks");
  }
  connected_ = true;
  peers_.resize(settings_.num_ranks);
  for (u32 p = 0; p < settings_.num_ranks; ++p) {
    if (p == settings_.rank || addresses[p].empty()) continue;
    if (!settings_.reaches(p)) {
      throw std::runtime_error("verbs: rank " + std::to_string(p) + " has an address, and rank " +
                               std::to_string(settings_.rank) +
                               " has no queue pair for it: all ranks must see the same nodes");
    }
    peers_[p] = parse_peer(addresses[p], p, own_, notes_);
  }
  VerbsGreeting greeting(GreetingSetting{settings_, std::chrono::nanoseconds(tuning_.greeting_ns), own_.nonce, nics_,
                                         areas_, lanes_, peers_});
  greeting.run();
  for (auto& lane : lanes_) lane->flush_device(settings_.connect_timeout_ns);
  if (settings_.fabric.flushed_span >= 0) {
    notes_.push_back(
        {"a NIC read of GPU memory before arrivals are told", "what the NIC wrote is then visible to all"});
  }
  if (greeting.num_restarts() != 0) {
    notes_.push_back({std::to_string(greeting.num_restarts()) + " queue pair(s) greeted again",
                      "their peers came to connect() later than the retries lasted"});
  }
  if (greeting.left_to_nics()) {
    notes_.push_back({"who comes late is greeted by the NIC's own retries",
                      "bnxt_re of rdma-core 46 and before cannot use a queue pair again"});
  }
}

std::vector<QueueCounters> VerbsTransport::queue_counters() const {
  std::vector<QueueCounters> all;
  for (u32 l = 0; l < lanes_.size(); ++l) lanes_[l]->count_queues(l, all);
  return all;
}

}  // namespace uccl

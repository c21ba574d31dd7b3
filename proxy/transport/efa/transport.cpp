// Set-up of efa: devices, queue pairs that are ready at once, address handles, and the proof of every pair of NICs.
#include "transport/efa/transport.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "transport/verbs/errors.h"
#include "transport/verbs/transport.h"

namespace uccl {
namespace {

// A device refuses what comes from an address that it has no handle for. Peers make theirs in connect(), and then write at
// once: who comes first tries again until the others are there too.
constexpr auto kAgain = std::chrono::milliseconds(1);
constexpr u32 kQkeyBits = 0x7fffffff;  // the top bit is for privileged users

TransportSettings with_gids(TransportSettings s) {
  for (NicSettings& n : s.fabric.nics) n.gid_index = std::max(n.gid_index, 0);  // an EFA port has the one
  return s;
}

}  // namespace

EfaTransport::EfaTransport(const TransportSettings& settings, const ibv::Functions& functions,
                           const efadv::Functions& extra, const VerbsTuning& tuning)
    : settings_(with_gids(settings)), tuning_(tuning), functions_(functions), extra_(extra) {
  check_fabric(settings_, "efa");
  settings_.fabric.queue_pairs = 1;  // every peer shares the one of a lane and NIC
  own_ = describe_rank(settings_, tuning_);
  own_.kind = VerbsKind::kScalableDatagram;
  own_.qkey = static_cast<u32>(group_fingerprint(~settings_.session, settings_.secret)) & kQkeyBits;
  for (const NicSettings& n : settings_.fabric.nics) make_nic(n);
  for (u32 l = 0; l < settings_.num_lanes; ++l) {
    std::vector<Note> ignored;  // what lane 0 says holds for all
    lanes_.push_back(std::make_unique<EfaLane>(settings_, EfaShared{nics_, memories_, devices_, extra_, tuning_},
                                               l == 0, l == 0 ? notes_ : ignored));
  }
}

EfaTransport::~EfaTransport() {
  lanes_.clear();
  for (const auto& [where, handle] : handles_) functions_.destroy_ah(handle.ah);
}

void EfaTransport::make_nic(const NicSettings& n) {
  nics_.push_back(std::make_unique<VerbsNic>(functions_, n, settings_.fabric, notes_));
  const VerbsNic& nic = *nics_.back();
  EfaDevice d;
  d.qkey = own_.qkey;
  if (const int e = extra_.query_device(nic.context(), &d.attr, sizeof(d.attr)); e != 0)
    throw std::runtime_error("efa: " + nic.name() + " is no EFA device: efadv_query_device: " + verbs_errno(e));
  if ((d.attr.device_caps & efadv::kCapsRdmaWrite) == 0)
    throw std::runtime_error("efa: " + nic.name() +
                             " cannot write to remote memory, or this libefa does not know it: " +
                             "rdma-core 46 and later do (Debian 12 has 44), on instances from the fourth generation " +
                             "of EFA's RDMA on (p5, p5en, p6); use the tcp or libfabric transport");
  d.largest = d.attr.max_rdma_size;
  devices_.push_back(d);
  memories_.push_back(std::make_unique<VerbsMemory>(nic, settings_, tuning_, notes_));
  areas_.push_back(std::make_unique<GreetingArea>(nic, settings_.num_ranks * settings_.num_lanes));
  own_.nics.push_back(describe_nic(nic, *memories_.back()));
  own_.nics.back().greeting_base = areas_.back()->base();
  own_.nics.back().greeting_rkey = areas_.back()->rkey();
}

std::string EfaTransport::local_address() {
  own_.kind = lanes_[0]->unsolicited() ? VerbsKind::kUnsolicitedDatagram : VerbsKind::kScalableDatagram;
  for (u32 nic = 0; nic < nics_.size(); ++nic) {
    own_.nics[nic].queue_pairs.clear();
    for (const auto& lane : lanes_) own_.nics[nic].queue_pairs.push_back(lane->queue_pair_number(nic));
  }
  return encode_address(own_);
}

// One for all lanes and for all ranks behind the same NIC.
EfaTransport::Handle EfaTransport::handle_of(u32 nic_idx, const ibv::Gid& gid, u32 peer) {
  const std::tuple where{nic_idx, gid.words[0], gid.words[1]};
  if (const auto found = handles_.find(where); found != handles_.end()) return found->second;
  const VerbsNic& nic = *nics_[nic_idx];
  VerbsPath to;
  to.gid = &gid;
  ibv::AhAttr attr = address_handle(nic, settings_.fabric, to);
  errno = 0;
  ibv::Ah* handle = functions_.create_ah(nic.pd(), &attr);
  if (handle == nullptr)
    throw std::runtime_error("efa: " + nic.name() + ": an address handle for rank " + std::to_string(peer) + ": " +
                             verbs_errno(errno));
  efadv::AhAttr number{};
  handles_[where] = {handle, 0};
  if (const int e = extra_.query_ah(handle, &number, sizeof(number)); e != 0)
    throw std::runtime_error("efa: " + nic.name() + ": efadv_query_ah: " + verbs_errno(e));
  return handles_[where] = {handle, number.ahn};
}

std::vector<EfaPath> EfaTransport::make_paths(u32 peer, u32 lane) {
  const VerbsAddress& a = *peers_[peer];
  std::vector<EfaPath> paths;
  const auto pairs = pair_nics(settings_.rank, static_cast<u32>(nics_.size()), peer, static_cast<u32>(a.nics.size()));
  for (u32 i = 0; i < pairs.size(); ++i) {
    const VerbsNicAddress& n = a.nics[pairs[i].theirs];
    const Handle handle = handle_of(pairs[i].mine, n.gid, peer);
    const u32 there = settings_.rank * settings_.num_lanes + lane;
    paths.push_back({pairs[i].mine, handle.ah, handle.number, n.queue_pairs[lane], a.qkey, n.rkeys.data(),
                     n.greeting_base + static_cast<u64>(there) * kGreetingBytes, n.greeting_rkey});
    const u32 slot = peer * settings_.num_lanes + lane;
    const Proof proof =
        prove_path(settings_.secret, {settings_.session, settings_.rank, peer, lane, i}, own_.nonce, a.nonce);
    std::memcpy(areas_[pairs[i].mine]->said(slot), proof.data(), proof.size());
    greetings_.push_back({peer, lane, i, pairs[i].mine, slot});
  }
  return paths;
}

void EfaTransport::connect(const std::vector<std::string>& addresses) {
  if (connected_) throw std::runtime_error("efa: connect was called before");
  if (addresses.size() != settings_.num_ranks) {
    throw std::runtime_error("efa: " + std::to_string(addresses.size()) + " addresses for " +
                             std::to_string(settings_.num_ranks) + " ranks");
  }
  connected_ = true;
  peers_.resize(settings_.num_ranks);
  for (u32 p = 0; p < settings_.num_ranks; ++p) {
    if (p == settings_.rank || addresses[p].empty()) continue;
    peers_[p] = parse_peer(addresses[p], p, own_, notes_);
    for (u32 l = 0; l < settings_.num_lanes; ++l) lanes_[l]->add_peer(p, *peers_[p], make_paths(p, l));
  }
  greet_all();
}

void EfaTransport::greet_all() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(settings_.connect_timeout_ns);
  std::vector<bool> proven(settings_.num_ranks, false);
  for (u32 p = 0; p < settings_.num_ranks; ++p) proven[p] = peers_[p] == nullptr;
  while (std::find(proven.begin(), proven.end(), false) != proven.end()) {
    const auto now = std::chrono::steady_clock::now();
    for (Greeting& g : greetings_) {
      GreetingArea& area = *areas_[g.nic];
      if (g.sent && lanes_[g.lane]->take_refused(g.peer, g.path)) {
        g.sent = false;
        g.not_before = now + kAgain;
      }
      if (!g.sent && now >= g.not_before)
        g.sent = lanes_[g.lane]->greet(g.peer, g.path, reinterpret_cast<u64>(area.said(g.slot)), area.lkey());
    }
    PeerEvent event{};
    for (auto& lane : lanes_) {
      lane->flush();
      lane->poll_greetings();
      if (lane->poll_events(std::span(&event, 1)) != 0)
        throw std::runtime_error("efa: rank " + std::to_string(settings_.rank) + " could not greet rank " +
                                 std::to_string(event.peer) + ": " + verbs_explain(event.code));
    }
    for (u32 p = 0; p < settings_.num_ranks; ++p) proven[p] = proven[p] || check_peer(p);
    if (std::chrono::steady_clock::now() > deadline) break;
    sched_yield();
  }
  if (std::find(proven.begin(), proven.end(), false) != proven.end()) give_up(proven);
  for (u32 p = 0; p < settings_.num_ranks; ++p) {
    for (auto& lane : lanes_)
      if (peers_[p] != nullptr) lane->open_peer(p);
  }
}

// True when the peer's proofs are all here, and ours are there. A wrong one throws.
bool EfaTransport::check_peer(u32 peer) const {
  const u32 pairs = static_cast<u32>(std::min(nics_.size(), peers_[peer]->nics.size()));
  for (const auto& lane : lanes_) {
    if (lane->greetings_heard(peer) < pairs || !lane->greeted(peer)) return false;
  }
  for (const Greeting& g : greetings_) {
    if (g.peer != peer) continue;
    const Proof expected = prove_path(settings_.secret, {settings_.session, peer, settings_.rank, g.lane, g.path},
                                      peers_[peer]->nonce, own_.nonce);
    if (!areas_[g.nic]->has_heard(g.slot, expected))
      throw std::runtime_error("efa: rank " + std::to_string(settings_.rank) + ": rank " + std::to_string(peer) +
                               " greeted with another secret or session");
  }
  return true;
}

void EfaTransport::give_up(const std::vector<bool>& proven) const {
  std::string ranks;
  for (u32 p = 0; p < proven.size(); ++p)
    if (!proven[p]) ranks += " " + std::to_string(p);
  throw std::runtime_error("efa: rank " + std::to_string(settings_.rank) + " could not connect to rank(s)" + ranks +
                           " within " + std::to_string(settings_.connect_timeout_ns / 1000000) +
                           " ms: no greeting; are they in connect(), and does the security group allow all traffic " +
                           "within itself, both ways?");
}

}  // namespace uccl

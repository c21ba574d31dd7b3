// The control path of an EFA lane: its queue pair on each NIC, and where its peers are.
#include <algorithm>
#include <cerrno>
#include <stdexcept>

#include "transport/efa/lane.h"
#include "transport/verbs/errors.h"

namespace uccl {
namespace {

constexpr u64 kSendOps = ibv::kExRdmaWrite | ibv::kExRdmaWriteWithImm | ibv::kExSendWithImm;
constexpr u32 kOwnReceives = 2;      // greeting and farewell of every peer
constexpr u8 kRnrRetriesForEver = 7;
// A sender's window opens when our NIC has acknowledged, not when we have polled: receives for a receiver that lags by so
// many windows. Without receives to run out of, only the size of the completion queue stands against one.
constexpr u32 kWindowsOfLag = 4, kWindowsOfUnsolicitedLag = 16;
constexpr u8 kLowLatencyLevel = 8;   // EFA's service level for short messages

u32 at_most(u64 wanted, u64 most) { return static_cast<u32>(std::max<u64>(std::min(wanted, most), 1)); }

}  // namespace

EfaLane::Rail::Rail(const VerbsNic& on, const RailShape& shape)
    : nic(on),
      sends(on, shape.depth, true, true),
      arrivals(on, shape.arriving, true, true),
      dummy(on.dummy()),
      blank(kBatch, ibv::RecvWr{0, nullptr, &dummy, 1}),
      depth(shape.depth),
      receives(shape.receives),
      own_receives(shape.own_receives),
      unsolicited(shape.unsolicited) {
  for (u32 i = 0; i + 1 < kBatch; ++i) blank[i].next = &blank[i + 1];
}

EfaLane::EfaLane(const TransportSettings& settings, const EfaShared& shared, bool hears_events,
                 std::vector<Note>& notes)
    : JudgingLane(settings.num_ranks),
      settings_(settings),
      shared_(shared),
      hears_events_(hears_events),
      peers_(settings.num_ranks),
      rounds_(shared.tuning.probe_ns) {
  u64 depth = 0;
  const auto& nics = shared.nics;
  const auto& devices = shared.devices;
  for (u32 nic = 0; nic < nics.size(); ++nic) {
    rails_.push_back(std::make_unique<Rail>(*nics[nic], shape_of(*nics[nic], devices[nic])));
    make_queue_pair(*rails_.back(), notes);
    const bool rnr_retries = (devices[nic].attr.device_caps & efadv::kCapsRnrRetry) != 0;
    to_ready(rails_.back()->pair->get(), *nics[nic], devices[nic].qkey, rnr_retries);
    rails_.back()->owed_receives = rails_.back()->receives;
    refill(*rails_.back(), true);
    depth += rails_.back()->depth;
  }
  const u64 window = static_cast<u64>(settings.num_ranks - 1) * settings.max_in_flight;
  requests_.resize(std::min(window, 4 * depth) + kControls + 1);
  complete_.resize(requests_.size());
  for (u32 i = 0; i < requests_.size(); ++i) free_.push_back(i);
}

EfaLane::RailShape EfaLane::shape_of(const VerbsNic& nic, const EfaDevice& device) const {
  const u64 others = settings_.num_ranks - 1;
  const u64 in_flight = others * settings_.max_in_flight;
  const u64 own = others * kOwnReceives + kBatch;
  // A completion queue that is full ends the device. Receives bound what can come, and a sender that finds none waits,
  // where the device lets it: writes without receives are for devices that do not.
  const u32 caps = device.attr.device_caps;
  const bool unsolicited = (caps & efadv::kCapsUnsolicitedWriteReceive) != 0 && (caps & efadv::kCapsRnrRetry) == 0;
  const u64 entries = static_cast<u64>(nic.limits().max_cqe);
  RailShape s{};
  s.depth = at_most(in_flight + kControls, std::min<u64>(device.attr.max_sq_wr, entries));
  s.receives = at_most(own + kWindowsOfLag * in_flight, std::min<u64>(device.attr.max_rq_wr, entries));
  s.own_receives = at_most(own, s.receives);
  s.arriving = unsolicited ? at_most(own + kWindowsOfUnsolicitedLag * in_flight, entries) : s.receives;
  s.unsolicited = unsolicited;
  return s;
}

// With the newest features first; a library that does not know them refuses, and is asked for less.
void EfaLane::make_queue_pair(Rail& rail, std::vector<Note>& notes) const {
  const u8 asked =
      settings_.fabric.service_level == 0 ? kLowLatencyLevel : static_cast<u8>(settings_.fabric.service_level);
  std::string refused;
  const struct {
    bool unsolicited;
    u8 level;
  } attempts[] = {{rail.unsolicited, asked}, {false, asked}, {false, 0}};
  for (const auto& a : attempts) {
    ibv::QpInitAttrEx x{};
    x.send_cq = rail.sends.get();
    x.recv_cq = rail.arrivals.get();
    x.cap = {rail.depth, a.unsolicited ? rail.own_receives : rail.receives, 1, 1, 0};
    x.qp_type = ibv::kQptDriver;
    x.pd = rail.nic.pd();
    x.comp_mask = ibv::kQpInitPd | ibv::kQpInitSendOps;
    x.send_ops_flags = kSendOps;
    efadv::QpInitAttr e{};
    e.driver_qp_type = efadv::kDriverTypeSrd;
    e.flags = a.unsolicited ? efadv::kQpUnsolicitedWriteReceive : u16{0};
    e.service_level = a.level;
    errno = 0;
    ibv::Qp* qp = shared_.functions.create_qp_ex(rail.nic.context(), &x, &e, sizeof(e));
    if (qp != nullptr) {
      rail.unsolicited = a.unsolicited;
      rail.receives = x.cap.max_recv_wr;
      rail.pair = std::make_unique<QueuePair>(rail.nic, qp, rail.nic.functions().qp_to_qp_ex(qp), 0);
      notes.push_back({"SRD on " + rail.nic.name() + ", service level " + std::to_string(a.level),
                       std::string(a.unsolicited ? "writes need no receive here" : "a write takes a posted receive") +
                           (refused.empty() ? "" : "; after " + refused)});
      return;
    }
    refused = verbs_errno(errno);
  }
  throw std::runtime_error("efa: " + rail.nic.name() + ": an SRD queue pair of " + std::to_string(rail.depth) +
                           " writes: " + refused + "; is this an EFA device that can write (p4de, p5 and later), and " +
                           "is its driver loaded?");
}

void EfaLane::to_ready(ibv::Qp* qp, const VerbsNic& nic, u32 qkey, bool rnr_retries) const {
  auto step = [&](ibv::QpAttr& a, u32 mask, const char* name) {
    const int e = nic.functions().modify_qp(qp, &a, static_cast<int>(mask));
    if (e != 0)
      throw std::runtime_error("efa: " + nic.name() + ": moving a queue pair to " + name + ": " + verbs_errno(e));
  };
  ibv::QpAttr a{};
  a.qp_state = ibv::kQpsInit;
  a.port_num = static_cast<u8>(nic.settings().port);
  a.qkey = qkey;
  step(a, ibv::kQpState | ibv::kQpPkeyIndex | ibv::kQpPort | ibv::kQpQkey, "INIT");
  a = ibv::QpAttr{};
  a.qp_state = ibv::kQpsRtr;
  step(a, ibv::kQpState, "RTR");
  a.qp_state = ibv::kQpsRts;
  a.rnr_retry = kRnrRetriesForEver;
  step(a, ibv::kQpState | ibv::kQpSqPsn | (rnr_retries ? u32{ibv::kQpRnrRetry} : 0u), "RTS");
}

void EfaLane::add_peer(u32 peer, const VerbsAddress& address, std::vector<EfaPath> paths) {
  Peer& p = peers_[peer];
  p.spans.set(address);
  for (const EfaPath& path : paths) rails_[path.nic]->senders.add(path.handle_number, path.queue_pair, peer);
  p.paths = std::move(paths);
}

}  // namespace uccl

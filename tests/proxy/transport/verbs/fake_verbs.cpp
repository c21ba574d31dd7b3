// How the fake fabric moves messages: packet numbers, receives, access checks, completions.
#include "proxy/transport/verbs/fake_verbs.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace fake {
namespace {

constexpr u32 kForEver = 7;  // retries of a message whose receiver is not ready

u64 now_ns() {
  return static_cast<u64>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

ibv::Wc completion(const Qp& qp, const Wr& wr, u32 status) {
  ibv::Wc wc{};
  wc.wr_id = wr.wr_id;
  wc.status = status;
  wc.opcode = wr.opcode == ibv::kWrSendWithImm ? ibv::kWcSend
              : wr.opcode == ibv::kWrRdmaRead  ? ibv::kWcRdmaRead
                                               : ibv::kWcRdmaWrite;
  wc.qp_num = qp.base.qp_num;
  return wc;
}

// Earlier fabrics stay: objects of theirs may end after the next one has begun.
std::vector<std::unique_ptr<Fabric>> g_fabrics;

}  // namespace

Fabric& Fabric::begin(const Options& o) {
  auto next = std::make_unique<Fabric>();
  if (!g_fabrics.empty()) {  // numbers are not used again
    next->next_number_ = g_fabrics.back()->next_number_;
    next->next_key_ = g_fabrics.back()->next_key_;
  }
  g_fabrics.push_back(std::move(next));
  Fabric& f = *g_fabrics.back();
  f.options = o;
  f.state_ = o.seed;
  f.functions_ = control_functions();
  f.cut_.resize(o.num_devices, false);
  f.held_.resize(o.num_devices, false);
  return f;
}

Fabric& Fabric::the() { return *g_fabrics.back(); }

u64 Fabric::random() {  // splitmix64
  u64 z = state_ += 0x9e3779b97f4a7c15ull;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

void Fabric::cut_device(u32 device, bool cut) {
  std::lock_guard lock(mutex);
  cut_[device] = cut;
}

void Fabric::push_event(u32 device, u32 type, int port) {
  std::lock_guard lock(mutex);
  raise(device, type, port);
}

void Fabric::raise(u32 device, u32 type, int port) {
  for (Context* c : contexts_) {
    if (c->device != device) continue;
    ibv::AsyncEvent e{};
    e.event_type = type;
    e.element.port_num = port;
    c->waiting.push_back(e);
  }
}

void Fabric::break_queue_pair(u32 number) {
  std::lock_guard lock(mutex);
  flush(*qps_.at(number));
}

u32 Fabric::first_queue_pair(u32 device) const {
  std::lock_guard lock(mutex);
  for (const auto& [number, qp] : qps_)
    if (device_of(qp->base.context) == device) return number;
  return 0;
}

void Fabric::invalidate(u32 rkey) {
  std::lock_guard lock(mutex);
  regions_.erase(rkey);
}

void Fabric::hold_completions(u32 device, bool hold) {
  std::lock_guard lock(mutex);
  held_[device] = hold;
}

void Fabric::hold_back_receives(bool hold) {
  std::lock_guard lock(mutex);
  hold_ = hold;
}

const Region* Fabric::covering(u32 key, u64 address, u64 bytes) const {
  const auto it = regions_.find(key);
  if (it == regions_.end()) return nullptr;
  const ibv::Mr& mr = *it->second.mr;
  const u64 base = reinterpret_cast<u64>(mr.addr);
  return address >= base && bytes <= mr.length && address - base <= mr.length - bytes ? &it->second : nullptr;
}

void Fabric::put(const Region& region, u32 device, u64 at, const void* from, u64 bytes) {
  if (!region.device || !options.device_lags) {
    std::memcpy(reinterpret_cast<void*>(at), from, bytes);
    return;
  }
  const u8* const first = static_cast<const u8*>(from);
  hidden_.push_back({device, at, std::vector<u8>(first, first + bytes)});
}

void Fabric::show(u32 device) {
  std::erase_if(hidden_, [device](const Hidden& h) {
    if (h.device == device) std::memcpy(reinterpret_cast<void*>(h.at), h.bytes.data(), h.bytes.size());
    return h.device == device;
  });
}

void Fabric::push(Cq& cq, const ibv::Wc& wc) {
  if (cq.entries.size() >= cq.capacity && !cq.overrun) {
    ++overruns_;
    cq.overrun = options.overruns_end;
    if (cq.overrun) raise(device_of(cq.base.context), ibv::kEventCqErr, 0);
  }
  if (!cq.overrun) cq.entries.push_back(wc);
}

void Fabric::post(Qp& qp, Wr wr) {
  wr.psn = qp.next_psn;
  qp.next_psn = (qp.next_psn + 1) & 0xffffff;
  signalled_ += (wr.flags & ibv::kSendSignaled) != 0;
  if ((wr.flags & ibv::kSendInline) != 0) {
    ++inlined_;
    wr.inlined.assign(reinterpret_cast<const u8*>(wr.local), reinterpret_cast<const u8*>(wr.local) + wr.bytes);
  }
  qp.queue.push_back(std::move(wr));
  if (qp.base.state == ibv::kQpsErr) flush(qp);
}

bool Fabric::take_receive(Qp& qp) {
  u32& left = qp.base.srq != nullptr ? static_cast<Srq*>(qp.base.srq)->posted : qp.posted_receives;
  if (left == 0 || hold_) return false;
  --left;
  return true;
}

// Everything still queued is answered with a flush, as the error state does.
void Fabric::flush(Qp& qp) {
  qp.base.state = ibv::kQpsErr;
  qp.failed_once = true;
  answer_with_flush(qp);
}

void Fabric::answer_with_flush(Qp& qp) {
  for (const Wr& wr : qp.queue)
    push(*static_cast<Cq*>(reinterpret_cast<ibv::CqEx*>(qp.base.send_cq)), completion(qp, wr, ibv::kWcWrFlushErr));
  qp.queue.clear();
  if (qp.base.srq != nullptr) return;
  for (; qp.posted_receives != 0; --qp.posted_receives) {
    ibv::Wc wc{};
    wc.status = ibv::kWcWrFlushErr;
    wc.qp_num = qp.base.qp_num;
    push(*static_cast<Cq*>(reinterpret_cast<ibv::CqEx*>(qp.base.recv_cq)), wc);
  }
}

// The oldest work request that was not delivered fails; what was delivered before it succeeds first. On a datagram queue
// pair only the one fails.
void Fabric::fail(Qp& qp, const Wr& wr, u32 status) {
  if (qp.base.qp_type == ibv::kQptDriver) {
    push(*static_cast<Cq*>(reinterpret_cast<ibv::CqEx*>(qp.base.send_cq)), completion(qp, wr, status));
    std::erase_if(qp.queue, [&wr](const Wr& w) { return &w == &wr; });
    return;
  }
  while (!qp.queue.empty() && qp.queue.front().delivered) retire(qp);
  if (!qp.queue.empty()) {
    push(*static_cast<Cq*>(reinterpret_cast<ibv::CqEx*>(qp.base.send_cq)), completion(qp, qp.queue.front(), status));
    qp.queue.pop_front();
  }
  flush(qp);
}

void Fabric::retire(Qp& qp) {
  auto wr = std::find_if(qp.queue.begin(), qp.queue.end(), [](const Wr& w) { return w.delivered; });
  if (wr == qp.queue.end()) return;
  if ((wr->flags & ibv::kSendSignaled) != 0)
    push(*static_cast<Cq*>(reinterpret_cast<ibv::CqEx*>(qp.base.send_cq)), completion(qp, *wr, ibv::kWcSuccess));
  qp.queue.erase(wr);
}

// Nobody answers. A reliable queue pair's packet goes out again when its timeout has passed, and no sooner.
void Fabric::miss(Qp& qp, Wr& wr) {
  const u64 now = now_ns();
  const bool timed = options.retry_ns == 0 && qp.base.qp_type != ibv::kQptDriver;
  const u64 period = timed ? 4096ull << qp.timeout : 0;
  if (wr.first_try_ns == 0) wr.first_try_ns = now;
  wr.next_try_ns = now + period;
  if (now - wr.first_try_ns <= (timed ? (qp.retries + 1) * period : options.retry_ns)) return;
  ++unanswered_;
  fail(qp, wr, ibv::kWcRetryExcErr);
}

void Fabric::deliver(Qp& qp, Wr& wr) {
  if (wr.next_try_ns > now_ns()) return;
  if (wr.broken || (options.vendor == kBroadcom && !wr.inlined.empty())) return fail(qp, wr, ibv::kWcLocQpOpErr);
  const auto found = qps_.find(wr.dest_qpn);
  Qp* to = found == qps_.end() ? nullptr : found->second;
  const bool srd = qp.base.qp_type == ibv::kQptDriver;
  const bool reachable = to != nullptr && (to->base.state == ibv::kQpsRtr || to->base.state == ibv::kQpsRts) &&
                         !cut_[device_of(qp.base.context)] && !cut_[device_of(to->base.context)] &&
                         (srd ? to->qkey == wr.qkey : to->dest_qpn == qp.base.qp_num);
  const u32 ahead = reachable && !srd ? (wr.psn - to->expected_psn) & 0xffffff : 0;
  if (!reachable || (ahead != 0 && ahead < 0x800000)) {  // no answer, or one that asks for an earlier packet
    miss(qp, wr);
    return;
  }
  if (ahead != 0) {  // a duplicate: acknowledged, not executed
    wr.delivered = true;
    return;
  }
  const bool read = wr.opcode == ibv::kWrRdmaRead;
  // EFA's devices refuse RDMA from whom they have no handle for, and do not say who has sent.
  const u32 sender = device_of(qp.base.context);
  const bool known = !srd || knows(to->base.pd, sender);
  if (!known && wr.opcode != ibv::kWrSendWithImm) return fail(qp, wr, ibv::kWcRemOpErr);
  // SRD describes a source to the device even where it has no bytes.
  if ((wr.bytes != 0 || srd) && wr.inlined.empty() && covering(wr.lkey, wr.local, wr.bytes) == nullptr)
    return fail(qp, wr, ibv::kWcLocProtErr);
  const Region* const there = wr.bytes == 0 ? nullptr : covering(wr.rkey, wr.remote, wr.bytes);
  const u32 needed = read ? ibv::kAccessRemoteRead : ibv::kAccessRemoteWrite;
  const bool allowed = there != nullptr && (there->access & needed) != 0 && (srd || (to->access & needed) != 0) &&
                       !(read && options.refuse_reads);
  if (wr.bytes != 0 && !allowed) {
    if (!srd && to != &qp) flush(*to);
    return fail(qp, wr, ibv::kWcRemAccessErr);
  }
  const bool write = wr.opcode != ibv::kWrSendWithImm;
  const bool told = wr.opcode != ibv::kWrRdmaWrite && !read;
  // An EFA device refuses a peer's queue pair that was made with other features than its own.
  if (srd && write && qp.unsolicited != to->unsolicited) return fail(qp, wr, ibv::kWcRemOpErr);
  if (told && !(write && to->unsolicited) && !take_receive(*to)) {
    ++not_ready_;
    if (qp.rnr_retries != kForEver && wr.not_ready++ >= qp.rnr_retries) fail(qp, wr, ibv::kWcRnrRetryExcErr);
    return;
  }
  const u32 receiver = device_of(to->base.context);
  if (read) {
    ++reads_;
    show(receiver);
    std::memcpy(reinterpret_cast<void*>(wr.local), reinterpret_cast<const void*>(wr.remote), wr.bytes);
  } else if (wr.bytes != 0) {
    const void* from = wr.inlined.empty() ? reinterpret_cast<const void*>(wr.local) : wr.inlined.data();
    put(*there, receiver, wr.remote, from, wr.bytes);
  }
  if (!srd) to->expected_psn = (to->expected_psn + 1) & 0xffffff;
  wr.delivered = true;
  if (!told) return;
  ibv::Wc wc{};
  wc.opcode = write ? u32{ibv::kWcRecvRdmaWithImm} : u32{ibv::kWcRecv};
  wc.imm_data = wr.imm;
  wc.wc_flags = ibv::kWcWithImm;
  wc.byte_len = static_cast<u32>(wr.bytes);
  wc.qp_num = to->base.qp_num;
  wc.src_qp = qp.base.qp_num;
  wc.slid = static_cast<u16>(known ? sender + 1 : 0xffff);  // the receiver's handle for that device
  push(*static_cast<Cq*>(reinterpret_cast<ibv::CqEx*>(to->base.recv_cq)), wc);
}

// A few steps of randomly chosen queue pairs: a message arrives, or the completion of one that has arrived shows.
void Fabric::progress() {
  if (qps_.empty()) return;
  std::vector<Qp*> busy;
  for (auto& [number, qp] : qps_) {
    if (!qp->queue.empty() && qp->base.state == ibv::kQpsRts) busy.push_back(qp);
  }
  for (int i = 0; i < options.steps && !busy.empty(); ++i) {
    Qp& qp = *busy[random() % busy.size()];
    if (qp.queue.empty() || qp.base.state != ibv::kQpsRts) continue;
    if (random() % 3 == 0) {
      if (!held_[device_of(qp.base.context)]) retire(qp);
      continue;
    }
    const bool srd = qp.base.qp_type == ibv::kQptDriver;
    if (srd) {
      Wr& wr = qp.queue[random() % qp.queue.size()];
      if (!wr.delivered) deliver(qp, wr);
      continue;
    }
    const auto wr = std::find_if(qp.queue.begin(), qp.queue.end(), [](const Wr& w) { return !w.delivered; });
    if (wr != qp.queue.end()) deliver(qp, *wr);
  }
}

bool Fabric::polls_nothing(const Cq& cq) {
  progress();
  for (auto& [number, qp] : qps_)
    if (options.old_broadcom && qp->failed_once && qp->base.context == cq.base.context) answer_with_flush(*qp);
  return held_[device_of(cq.base.context)];
}

u32 device_of(const ibv::Context* context) {
  for (const Context* c : Fabric::the().contexts_)
    if (&c->verbs.context == context) return c->device;
  return 0;
}

}  // namespace fake

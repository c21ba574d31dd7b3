// What the hardware does: takes requests in the order that its kind of queue pair keeps, moves bytes, writes completions.
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "providers/native/device.h"

namespace box {
namespace {

constexpr u64 kFileBytes = 64ull << 30;  // sparse
constexpr u64 kPage = 4096;
constexpr u32 kAtOnce = 64;
constexpr u8 kForEver = 7;  // retries
constexpr u32 kNumbers = 1 << 24;  // of packets
constexpr auto kReceiverNotReady = std::chrono::milliseconds(1);
constexpr auto kNeverReady = std::chrono::seconds(2);

bool waited(const Pair& p, Clock::duration time) {
  return p.waits_since != Clock::time_point{} && Clock::now() - p.waits_since > time;
}

// InfiniBand's 4.096 us * 2^timeout, each time that it is sent.
Clock::duration retry_time(const Pair& p) {
  return std::chrono::nanoseconds(4096ll << std::min<u8>(p.timeout, 20)) * (p.retries + 1);
}

}  // namespace

Clock::time_point Clock::now() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return time_point(std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec));
}

std::mutex& mutex() {
  static std::mutex m;
  return m;
}

std::vector<std::unique_ptr<Device>>& devices() {
  static auto& d = *new std::vector<std::unique_ptr<Device>>;
  return d;
}

Device* device_of(const Gid& gid) {
  for (auto& d : devices())
    if (d->gid() == gid) return d.get();
  return nullptr;
}

namespace {

struct Event {
  u64 element;
  u32 type, reserved;
};

}  // namespace

void send_event(const int* pipe, u64 element, u32 type) {
  const Event event{element, type, 0};
  if (pipe[1] >= 0 && write(pipe[1], &event, sizeof(event)) != sizeof(event))
    find(Rule::kUnknown, "an event was not taken");
}

u32 take_back_events(const int* pipe, u64 element) {
  int bytes = 0;
  if (pipe[0] < 0 || ioctl(pipe[0], FIONREAD, &bytes) != 0) return 0;
  u32 taken = 0;
  for (; bytes >= static_cast<int>(sizeof(Event)); bytes -= static_cast<int>(sizeof(Event))) {
    Event e{};
    if (read(pipe[0], &e, sizeof(e)) != sizeof(e)) break;
    if (e.element == element)
      ++taken;
    else
      send_event(pipe, e.element, e.type);
  }
  return taken;
}

Device::Device(std::unique_ptr<Provider> provider, u32 index)
    : provider_(std::move(provider)), index_(index), file_(memfd_create("device", MFD_CLOEXEC)), random_(index + 1) {
  name_ = identity().device + std::to_string(index);
  // Link-local, or 10.0.0.x as an IPv4 address in IPv6, as a driver with Ethernet makes it.
  if (identity().link_layer == ibv::kLinkEthernet)
    gid_ = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, static_cast<u8>(index + 1)};
  else
    gid_ = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, 0, static_cast<u8>(index + 1)};
  if (file_ < 0 || ftruncate(file_, kFileBytes) != 0) throw std::runtime_error("box: no memory for a device");
  void* m = mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, 0);
  if (m == MAP_FAILED) throw std::runtime_error("box: a device's memory cannot be mapped");
  memory_ = static_cast<u8*>(m);
}

Device::~Device() {
  munmap(memory_, kFileBytes);
  close(file_);
}

u64 Device::allocate(u64 bytes) {
  const u64 offset = used_;
  used_ += uccl::align_up(bytes, kPage);
  return offset;
}

std::string Device::at(const Pair& p) const { return name_ + " queue pair " + std::to_string(p.number) + ": "; }

u8* Device::translate(u32 key, u64 address, u64 bytes, u32 pd, u32 access) {
  const auto found = registrations.find(key);
  if (found == registrations.end()) return nullptr;
  const Memory& m = found->second;
  if (m.pd != pd || (m.access & access) != access) return nullptr;
  if (address < m.iova || bytes > m.bytes || address - m.iova > m.bytes - bytes) return nullptr;
  return m.at + (address - m.iova);
}

bool Device::gather(Pair& p, Request& r, std::vector<u8>& bytes) {
  if (r.is_inline) {
    bytes = r.inside;
    if (r.inside.size() <= p.cap.max_inline_data) return true;
    find(Rule::kInline, at(p) + std::to_string(r.inside.size()) + " bytes inside of a request, granted were " +
                            std::to_string(p.cap.max_inline_data));
    return false;
  }
  const u32 access = r.kind == Request::Kind::kRead ? u32{ibv::kAccessLocalWrite} : 0u;
  for (const Piece& s : r.pieces) {
    if (s.bytes == 0 && !identity().keys_of_nothing) continue;
    const u8* source = translate(s.key, s.address, s.bytes, p.pd, access);
    if (source == nullptr) {
      find(Rule::kLocalKey, at(p) + "key " + std::to_string(s.key) + " does not hold " + std::to_string(s.bytes) +
                                " bytes at " + std::to_string(s.address));
      return false;
    }
    if (r.kind != Request::Kind::kRead) bytes.insert(bytes.end(), source, source + s.bytes);
  }
  return true;
}

// Null: `status` says why; success there: it may still appear.
Pair* Device::find_target(Pair& p, const Request& r, Device*& there, u32& status) {
  status = ibv::kWcSuccess;
  if (!identity().datagrams) {
    there = device_of(p.peer);
    if (there == nullptr) return nullptr;
    const auto to = there->pairs.find(p.peer_number);
    const bool ready = to != there->pairs.end() &&
                       (to->second->state == ibv::kQpsRtr || to->second->state == ibv::kQpsRts) &&
                       to->second->peer_number == p.number && to->second->peer == gid_;
    return ready ? to->second.get() : nullptr;
  }
  const auto handle = handles.find(r.handle);
  if (handle == handles.end()) {
    find(Rule::kDescriptor, at(p) + "no address handle " + std::to_string(r.handle));
    status = ibv::kWcLocQpOpErr;
    return nullptr;
  }
  there = device_of(handle->second.gid);
  const auto to = there == nullptr ? std::map<u32, std::shared_ptr<Pair>>::iterator{} : there->pairs.find(r.queue_pair);
  if (there == nullptr || to == there->pairs.end() || to->second->state != ibv::kQpsRts) {
    status = ibv::kWcRemInvRdReqErr;
    return nullptr;
  }
  const bool known = std::any_of(there->handles.begin(), there->handles.end(),
                                 [&](const auto& h) { return h.second.gid == gid_ && h.second.pd == to->second->pd; });
  if (!known && r.kind != Request::Kind::kSend) status = ibv::kWcRemOpErr;
  if (to->second->qkey != r.qkey) {
    find(Rule::kDescriptor, at(p) + "another queue key than its peer's");
    status = ibv::kWcRespTimeoutErr;
  }
  return status == ibv::kWcSuccess ? to->second.get() : nullptr;
}

Receive* Device::next_receive(Pair& p) {
  auto& from = p.shared != nullptr ? p.shared->receives : p.receives;
  return from.empty() ? nullptr : &from.front();
}

void Device::pop_receive(Pair& p) { (p.shared != nullptr ? p.shared->receives : p.receives).pop_front(); }

void Device::push(Pair& p, Queue& q, const Completion& c) {
  if (q.overrun) return;
  if (provider_->unread(*this, q) >= q.entries) {
    find(Rule::kOverrun, name_ + " completion queue " + std::to_string(q.handle) + " of " + std::to_string(q.entries) +
                             " entries is full");
    q.overrun = true;
    ++q.events_reported;
    send_event(q.events.data(), q.user_handle, ibv::kEventCqErr);
    return;
  }
  provider_->complete(*this, q, p, c);
  ++q.written;
}

void Device::finish(Pair& p, const Request& r, u32 status, u64 bytes) {
  if (status == ibv::kWcSuccess && !r.signalled) return;
  Completion c;
  c.status = status;
  c.kind = r.kind;
  c.bytes = bytes;
  c.token = r.token;
  push(p, *p.sends_to, c);
}

void Device::break_off(Pair& p) {
  if (identity().datagrams) return;
  p.state = ibv::kQpsErr;
}

void flush_pair(Device&, Pair& p) {
  p.requests.clear();
  p.receives.clear();
  p.waits_since = {};
}

Device::Done Device::deliver(Pair& from, Request& r, Device& there, Pair& to) {
  const u32 behind = identity().datagrams ? 0 : (to.expected_number - from.next_number) % kNumbers;
  if (behind >= kNumbers / 2) return give_up(from, r);  // asked for what came before it, for ever
  if (behind != 0) {  // it had arrived: acknowledged, and not executed again
    from.next_number = (from.next_number + 1) % kNumbers;
    finish(from, r, ibv::kWcSuccess, r.bytes);
    return Done::kYes;
  }
  const bool send = r.kind == Request::Kind::kSend;
  const bool unsolicited = there.provider_->takes_unsolicited(to) && !send;
  Receive* receive = (send || r.has_immediate) && !unsolicited ? there.next_receive(to) : nullptr;
  if ((send || r.has_immediate) && !unsolicited && receive == nullptr) {
    if (from.rnr_retries != kForEver && waited(from, kReceiverNotReady * (from.rnr_retries + 1))) {
      finish(from, r, ibv::kWcRnrRetryExcErr);
      break_off(from);
      return Done::kYes;
    }
    if (waited(from, kNeverReady) && !to.had_receives) {
      find(Rule::kReceive, there.at(to) + "a message waits, and no receive ever reached the device");
      to.had_receives = true;  // said once
    }
    return Done::kWait;
  }
  std::vector<u8> bytes;
  if (!gather(from, r, bytes)) {
    finish(from, r, r.is_inline ? ibv::kWcLocLenErr : ibv::kWcLocProtErr);
    break_off(from);
    return Done::kYes;
  }
  if (!send && (r.bytes != 0 || identity().keys_of_nothing)) {
    const u32 access = r.kind == Request::Kind::kRead ? ibv::kAccessRemoteRead : ibv::kAccessRemoteWrite;
    u8* target = there.translate(r.rkey, r.remote, r.bytes, to.pd, access);
    const bool allowed = identity().datagrams || (to.access & access) != 0;
    if (target == nullptr || !allowed) {
      find(Rule::kRemoteKey, at(from) + "key " + std::to_string(r.rkey) + " of " + there.name() + " does not allow " +
                                 std::to_string(r.bytes) + " bytes at " + std::to_string(r.remote));
      finish(from, r, ibv::kWcRemAccessErr);
      break_off(from);
      there.break_off(to);
      return Done::kYes;
    }
    if (r.kind == Request::Kind::kRead) {
      for (const Piece& s : r.pieces) {
        std::memcpy(translate(s.key, s.address, s.bytes, from.pd, ibv::kAccessLocalWrite), target, s.bytes);
        target += s.bytes;
      }
    } else {
      std::memcpy(target, bytes.data(), bytes.size());
    }
  }
  if (receive != nullptr || (unsolicited && r.has_immediate)) {
    Completion c;
    c.of_receive = true;
    c.unsolicited = unsolicited;
    c.kind = r.kind;
    c.has_immediate = r.has_immediate;
    c.immediate = r.immediate;
    c.bytes = r.bytes;
    c.source_queue_pair = from.number;
    c.source_handle = 0xffff;
    c.source = gid_;
    for (const auto& [number, handle] : there.handles)
      if (handle.gid == gid_ && handle.pd == to.pd) c.source_handle = number;
    if (receive != nullptr) {
      c.token = receive->token;
      if (!there.scatter(to, *receive, send ? bytes : std::vector<u8>{})) c.status = ibv::kWcLocProtErr;
      there.pop_receive(to);
    }
    there.push(to, *to.receives_to, c);
  }
  from.next_number = (from.next_number + 1) % kNumbers;
  to.expected_number = (to.expected_number + 1) % kNumbers;
  finish(from, r, ibv::kWcSuccess, r.bytes);
  return Done::kYes;
}

// Nobody answers.
Device::Done Device::give_up(Pair& p, const Request& r) {
  if (!waited(p, retry_time(p))) return Done::kWait;
  finish(p, r, ibv::kWcRetryExcErr);
  break_off(p);
  return Done::kYes;
}

// Into a receive's memory. The keys of an entry are looked at even when no byte comes.
bool Device::scatter(Pair& p, const Receive& receive, const std::vector<u8>& bytes) {
  std::size_t done = 0;
  for (const Piece& s : receive.pieces) {
    if (s.bytes == 0 && !identity().keys_of_nothing) continue;
    u8* target = translate(s.key, s.address, s.bytes, p.pd, ibv::kAccessLocalWrite);
    if (target == nullptr) {
      find(Rule::kReceive, at(p) + "a receive's key " + std::to_string(s.key) + " does not hold " +
                               std::to_string(s.bytes) + " bytes at " + std::to_string(s.address));
      return false;
    }
    const std::size_t n = std::min<std::size_t>(s.bytes, bytes.size() - done);
    std::memcpy(target, bytes.data() + done, n);
    done += n;
  }
  return done == bytes.size();
}

Device::Done Device::execute(Pair& p, Request& r) {
  if (p.waits_since == Clock::time_point{}) p.waits_since = Clock::now();
  Device* there = nullptr;
  u32 status = ibv::kWcSuccess;
  if (r.broken) {
    finish(p, r, ibv::kWcLocQpOpErr);
    break_off(p);
    return Done::kYes;
  }
  Pair* to = find_target(p, r, there, status);
  if (to != nullptr) return deliver(p, r, *there, *to);
  if (status == ibv::kWcSuccess) return give_up(p, r);
  finish(p, r, status);
  break_off(p);
  return Done::kYes;
}

bool Device::work(Pair& p) {
  provider_->fetch(*this, p);
  p.had_receives |= !p.receives.empty() || (p.shared != nullptr && !p.shared->receives.empty());
  if (p.state == ibv::kQpsErr && identity().library_flushes) {
    if (!std::exchange(p.ended, true)) provider_->ended(*this, p);
    flush_pair(*this, p);
    return false;
  }
  if (p.state == ibv::kQpsErr) {
    const bool any = !p.requests.empty() || !p.receives.empty();
    for (; !p.requests.empty(); p.requests.pop_front()) finish(p, p.requests.front(), ibv::kWcWrFlushErr);
    for (; !p.receives.empty(); p.receives.pop_front()) {
      Completion c;
      c.status = ibv::kWcWrFlushErr;
      c.of_receive = true;
      c.token = p.receives.front().token;
      push(p, *p.receives_to, c);
    }
    return any;
  }
  if (p.state != ibv::kQpsRts) {
    if (p.requests.empty()) return false;
    find(Rule::kState, at(p) + "a request in state " + std::to_string(p.state));
    p.requests.clear();
    return true;
  }
  bool any = false;
  for (u32 i = 0; i < kAtOnce && !p.requests.empty() && p.state == ibv::kQpsRts; ++i) {
    const auto at = identity().datagrams ? static_cast<std::ptrdiff_t>(random_() % p.requests.size()) : 0;
    if (execute(p, p.requests[static_cast<std::size_t>(at)]) == Done::kWait) break;
    p.requests.erase(p.requests.begin() + at);
    p.waits_since = {};
    any = true;
  }
  return any;
}

bool Device::turn() {
  bool any = false;
  for (auto& [handle, s] : shared) provider_->fetch(*this, *s);
  for (auto& [number, p] : pairs) any |= work(*p);
  return any;
}

}  // namespace box

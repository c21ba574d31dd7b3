// The measuring loops: post, ring, poll, as the engine does, with a deadline.
#include "transport/probe.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>

namespace uccl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr u32 kWindow = 256;
constexpr std::size_t kBatch = 16;  // writes a doorbell

TransportSettings transport_settings(const ProbeSettings& p, const Segment& memory) {
  TransportSettings s;
  s.rank = p.rank;
  s.num_ranks = 2;
  s.session = p.session;
  s.secret = p.secret;
  s.fabric = p.fabric;
  s.ip.interface_address = p.interface_address;
  s.max_in_flight = kWindow;
  s.connect_timeout_ns = p.connect_timeout_ns;
  s.local.add(Span{0, memory.bytes(), static_cast<u8*>(memory.data())});
  s.shared_memory.span_fds = {memory.fd()};
  return s;
}

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

// The deadline of one measurement. Between polls that bring nothing it lets others run.
class TransportProbe::Watch {
 public:
  Watch(u64 timeout_ns, std::string what)
      : begin_(Clock::now()), deadline_(begin_ + std::chrono::nanoseconds(timeout_ns)), what_(std::move(what)) {}
  double elapsed() const { return seconds(Clock::now() - begin_); }
  void idle() {
    if (++idle_ % 64 != 0) return;
    std::this_thread::yield();
    if (Clock::now() > deadline_) throw std::runtime_error(what_ + ": not finished in time");
  }
  [[noreturn]] void lost(const PeerEvent& e, const std::string& family) const {
    throw std::runtime_error(what_ + ": the peer was lost: " + explain_code(family, e.code));
  }

 private:
  Clock::time_point begin_, deadline_;
  std::string what_;
  u32 idle_ = 0;
};

TransportProbe::TransportProbe(const ProbeSettings& settings)
    : settings_(settings),
      memory_(Segment::create("uccl_ep_probe", 2 * kSlots * std::max<u64>(64, settings.most_bytes))),
      transport_(make_transport(settings.family, transport_settings(settings, *memory_))) {}

void TransportProbe::poll(Watch& watch) {
  Lane& lane = transport_->lane(0);
  u64 wr_ids[64];
  Arrival arrivals[64];
  PeerEvent event;
  const std::size_t n = lane.poll_arrivals(arrivals), done = lane.poll_completions(wr_ids);
  arrived_ += n;
  if (n + done != 0) return;
  if (lane.poll_events(std::span(&event, 1)) != 0) watch.lost(event, settings_.family);
  watch.idle();
}

void TransportProbe::write(u64 bytes, u64 slot, u32 immediate, Watch& watch) {
  const u64 half = memory_->bytes() / 2;
  const u8* source = static_cast<const u8*>(memory_->data()) + slot * bytes;
  const WriteRequest r{1 - settings_.rank, immediate, source, half + slot * bytes, bytes, 0};
  while (transport_->lane(0).post(std::span(&r, 1)) == 0) {
    transport_->lane(0).flush();
    poll(watch);
  }
}

void TransportProbe::fill(u64 bytes, u8 value) { std::memset(memory_->data(), value, kSlots * bytes); }

void TransportProbe::check(u64 bytes, u64 slots, u8 value) const {
  const u8* half = static_cast<const u8*>(memory_->data()) + memory_->bytes() / 2;
  const auto wrong = [value](u8 b) { return b != value; };
  if (std::any_of(half, half + slots * bytes, wrong)) throw std::runtime_error("wrong bytes have arrived");
}

double TransportProbe::stream(u64 bytes, u32 count) {
  if (bytes > settings_.most_bytes) throw std::invalid_argument("a write longer than most_bytes");
  Watch watch(settings_.timeout_ns, settings_.family + ", " + std::to_string(bytes) + " bytes");
  const u8 value = ++turn_;
  const u64 target = arrived_;
  if (settings_.rank == 1) {
    while (arrived_ - target < count) poll(watch);
    check(bytes, std::min<u64>(count, kSlots), value);
    write(0, 0, 1, watch);
    transport_->lane(0).flush();
    return watch.elapsed();
  }
  fill(bytes, value);
  const double begin = watch.elapsed();
  for (u32 i = 0; i < count; ++i) {
    write(bytes, i % kSlots, i, watch);
    if (i % kBatch != kBatch - 1) continue;
    transport_->lane(0).flush();
    poll(watch);
  }
  transport_->lane(0).flush();
  // Not for completions: the other side may have returned, and then nobody there sends an acknowledgement any more.
  while (arrived_ == target) poll(watch);
  return watch.elapsed() - begin;
}

double TransportProbe::round_trips(u64 bytes, u32 count) {
  if (bytes > settings_.most_bytes) throw std::invalid_argument("a write longer than most_bytes");
  Watch watch(settings_.timeout_ns, settings_.family + ", round trips of " + std::to_string(bytes) + " bytes");
  const u8 value = ++turn_;
  const u64 target = arrived_;
  fill(bytes, value);
  const double begin = watch.elapsed();
  for (u32 i = 0; i < count; ++i) {
    if (settings_.rank == 1) {
      while (arrived_ - target <= i) poll(watch);
    }
    write(bytes, 0, i, watch);
    transport_->lane(0).flush();
    if (settings_.rank == 0) {
      while (arrived_ - target <= i) poll(watch);
    }
  }
  const double end = watch.elapsed();
  check(bytes, count == 0 ? 0 : 1, value);
  return end - begin;
}

}  // namespace uccl

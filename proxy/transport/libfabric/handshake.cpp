// Greets every peer on every lane until all have answered or the time is over. A greeting that could not be delivered
// is written again: the peer may not have opened its endpoint yet.
#include "transport/libfabric/handshake.h"

#include <stdexcept>
#include <thread>

#include "transport/libfabric/codes.h"

namespace uccl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kRetryAfter = std::chrono::milliseconds(20);
constexpr std::size_t kMaxNamedReasons = 4;

}  // namespace

LibfabricHandshake::LibfabricHandshake(const TransportSettings& settings,
                                       std::vector<std::unique_ptr<LibfabricLane>>& lanes, std::vector<u32> peers)
    : settings_(settings), lanes_(lanes), nonce_(new_nonce()) {
  for (u32 lane = 0; lane < lanes_.size(); ++lane) {
    for (const u32 peer : peers) {
      Contact c;
      c.peer = peer;
      c.lane = lane;
      contacts_.push_back(c);
    }
  }
}

void LibfabricHandshake::run() {
  const auto deadline = Clock::now() + std::chrono::nanoseconds(settings_.connect_timeout_ns);
  for (;;) {
    for (auto& lane : lanes_) lane->work();
    bool all = true, any = false;
    for (Contact& c : contacts_) {
      if (c.done) continue;
      any |= step(c);
      all &= c.done;
    }
    if (all) return;
    if (Clock::now() >= deadline) give_up();
    if (!any) std::this_thread::sleep_for(kBetweenLooks);  // peers that share the core greet meanwhile
  }
}

// True when something was heard.
bool LibfabricHandshake::step(Contact& c) {
  const bool heard = c.heard, answered = c.answered;
  keep_sending(c, GreetingKind::kHello);
  hear_hello(c);
  if (c.heard) {
    keep_sending(c, GreetingKind::kAnswer);
    hear_answer(c);
  }
  const LibfabricLane& lane = *lanes_[c.lane];
  c.done = c.heard && c.answered && lane.record(c.peer, GreetingKind::kAnswer) == LibfabricLane::Record::kSent;
  return heard != c.heard || answered != c.answered;
}

void LibfabricHandshake::keep_sending(Contact& c, GreetingKind kind) {
  switch (lanes_[c.lane]->record(c.peer, kind)) {
    case LibfabricLane::Record::kIdle: send(c, kind); break;
    case LibfabricLane::Record::kFailed:
      c.reason = "a greeting could not be delivered: " + libfabric_code_text(lanes_[c.lane]->record_error(c.peer));
      if (c.retry_at == Clock::time_point{}) c.retry_at = Clock::now() + kRetryAfter;
      if (Clock::now() < c.retry_at) break;
      c.retry_at = {};
      ++counters_.retries;
      send(c, kind);
      break;
    case LibfabricLane::Record::kOnItsWay:
    case LibfabricLane::Record::kSent: break;
  }
}

Greeting LibfabricHandshake::blank(const Contact& c, GreetingKind kind) const {
  Greeting g{};
  g.magic = kGreetingMagic;
  g.version = kGreetingVersion;
  g.kind = static_cast<u16>(kind);
  g.session = settings_.session;
  g.source = settings_.rank;
  g.destination = c.peer;
  g.lane = c.lane;
  g.num_ranks = settings_.num_ranks;
  g.num_lanes = settings_.num_lanes;
  g.nonce = nonce_;
  return g;
}

void LibfabricHandshake::send(Contact& c, GreetingKind kind) {
  Greeting g = blank(c, kind);
  if (kind == GreetingKind::kHello) g.tag = lanes_[c.lane]->tag_for(c.peer);
  if (kind == GreetingKind::kAnswer) g.echo = c.their_nonce;
  seal(g, settings_.secret);
  lanes_[c.lane]->send_record(c.peer, g);
}

// Whether a greeting in the peer's slot is the peer's; says why not, and counts what is nobody's.
bool LibfabricHandshake::is_for_us(Contact& c, const Greeting& g, GreetingKind kind) {
  if (g.magic == 0) return false;
  if (!is_genuine(g, settings_.secret, settings_.session, kind)) {
    c.reason = "its greeting is not sealed with this group's secret and session, or is of another version";
    counters_.strangers += c.rejected_seal != g.seal;
    c.rejected_seal = g.seal;
    return false;
  }
  std::string wrong;
  if (g.source != c.peer || g.destination != settings_.rank || g.lane != c.lane) {
    wrong = "greets as rank " + std::to_string(g.source) + " on lane " + std::to_string(g.lane);
  } else if (g.num_ranks != settings_.num_ranks) {
    wrong = "says " + std::to_string(g.num_ranks) + " ranks";
  } else if (g.num_lanes != settings_.num_lanes) {
    wrong = "says " + std::to_string(g.num_lanes) + " lanes";
  }
  if (!wrong.empty()) c.reason = wrong;
  return wrong.empty();
}

void LibfabricHandshake::hear_hello(Contact& c) {
  if (c.heard) return;
  const Greeting g = lanes_[c.lane]->received(c.peer, GreetingKind::kHello);
  if (!is_for_us(c, g, GreetingKind::kHello)) return;
  c.heard = true;
  c.their_nonce = g.nonce;
  c.reason = "it was heard, but has not confirmed that it hears this rank";
  lanes_[c.lane]->set_tag(c.peer, g.tag);
}

void LibfabricHandshake::hear_answer(Contact& c) {
  if (c.answered) return;
  const Greeting g = lanes_[c.lane]->received(c.peer, GreetingKind::kAnswer);
  if (!is_for_us(c, g, GreetingKind::kAnswer)) return;
  c.answered = g.echo == nonce_;
  if (!c.answered) c.reason = "it answers somebody else's greeting";
}

void LibfabricHandshake::give_up() const {
  std::string ranks, reasons;
  std::size_t named = 0;
  u32 last = ~0u;
  for (u32 peer = 0; peer < settings_.num_ranks; ++peer) {
    for (const Contact& c : contacts_) {
      if (c.peer != peer || c.done || last == peer) continue;
      last = peer;
      ranks += " " + std::to_string(peer);
      if (named++ < kMaxNamedReasons) {
        reasons += "; rank " + std::to_string(peer) + " on lane " + std::to_string(c.lane) + ": " + c.reason;
      }
    }
  }
  throw std::runtime_error("libfabric: rank " + std::to_string(settings_.rank) + " could not connect to rank(s)" +
                           ranks + " within " + std::to_string(settings_.connect_timeout_ns / 1000000) + " ms" +
                           reasons);
}

}  // namespace uccl

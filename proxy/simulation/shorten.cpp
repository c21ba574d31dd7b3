// Greedy shortening, and a list of what remains.
#include "simulation/shorten.h"

#include <algorithm>
#include <functional>

#include "wire/immediate.h"

namespace uccl::simulation {
namespace {

constexpr std::size_t kMostLines = 40;

class Shortener {
 public:
  Shortener(const Case& c, u32 most_runs) : most_runs_(most_runs) {
    best_.small = c;
    best_.outcome = run_case(c, true);
    best_.runs = 1;
  }

  // Keeps the change when the run still fails with it.
  bool attempt(const std::function<void(Case*)>& change) {
    if (best_.runs >= most_runs_ || best_.outcome.violation.empty()) return false;
    Case candidate = best_.small;
    change(&candidate);
    ++best_.runs;
    Outcome outcome = run_case(candidate, true);
    if (outcome.violation.empty()) return false;
    best_.small = std::move(candidate);
    best_.outcome = std::move(outcome);
    return true;
  }

  void drop_faults() {
    for (std::size_t i = best_.small.faults.size(); i-- > 0;)
      attempt([i](Case* c) { c->faults.erase(c->faults.begin() + static_cast<std::ptrdiff_t>(i)); });
  }

  void drop_leavings() {
    for (std::size_t i = best_.small.leavings.size(); i-- > 0;)
      attempt([i](Case* c) { c->leavings.erase(c->leavings.begin() + static_cast<std::ptrdiff_t>(i)); });
  }

  void drop_rounds() {
    while (best_.small.rounds > 1 && attempt([](Case* c) { --c->rounds; })) {}
  }

  // Halves of what is still perturbed, then quarters, and so on down to single buckets.
  void calm_network() {
    if (attempt([](Case* c) { c->calm.set(); })) return;
    std::vector<u32> left = buckets();
    for (std::size_t size = (left.size() + 1) / 2; size >= 1; size /= 2) {
      for (std::size_t begin = 0; begin < left.size();) {
        const std::size_t end = std::min(begin + size, left.size());
        const bool dropped = attempt([&](Case* c) {
          for (std::size_t i = begin; i < end; ++i) c->calm.set(left[i]);
        });
        if (dropped)
          left.erase(left.begin() + static_cast<std::ptrdiff_t>(begin),
                     left.begin() + static_cast<std::ptrdiff_t>(end));
        else
          begin = end;
      }
    }
  }

  Shortened take() { return std::move(best_); }

 private:
  std::vector<u32> buckets() const {
    std::vector<u32> found;
    for (u32 b = 0; b < NetworkSettings::kBuckets; ++b) {
      const auto& p = best_.outcome.perturbed;
      if (std::any_of(p.begin(), p.end(), [b](const auto& r) { return r.bucket == b; })) found.push_back(b);
    }
    return found;
  }

  u32 most_runs_;
  Shortened best_;
};

std::string text_of(u32 word) {
  const Immediate i = unpack_immediate(word);
  const std::string stream = std::string(key_direction(i.key) == Direction::kDispatch ? " dispatch" : " combine") +
                             " channel " + std::to_string(key_channel(i.key)) + " position " +
                             std::to_string(key_position(i.key));
  const std::string epoch =
      " phase " + std::to_string(static_cast<u32>(key_phase(i.key))) + " epoch " + std::to_string(key_epoch(i.key));
  switch (i.kind) {
    case ImmediateKind::kArrive: return "arrive" + epoch;
    case ImmediateKind::kExpect: return "expect" + epoch;
    case ImmediateKind::kSequence: return "sequence" + stream;
    case ImmediateKind::kCredit: return "credit" + stream;
    case ImmediateKind::kBarrier: return "barrier " + std::to_string(i.key);
  }
  return "an unknown immediate";
}

std::string us(u64 ns) {
  const u64 tenths = ns / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " us";
}

std::string line(const SimulatedNetwork::Recorded& r) {
  std::string s = "  " + us(r.posted_ns) + "  " + std::to_string(r.source) + " -> " + std::to_string(r.target) +
                  " lane " + std::to_string(r.lane) + " #" + std::to_string(r.position) + " " + text_of(r.immediate) +
                  ":";
  if (r.what.delay_ns != 0) s += " delayed " + us(r.what.delay_ns);
  if (r.what.completion_ns != 0) s += " completed " + us(r.what.completion_ns) + " after it arrived";
  if (r.what.early_bytes != 0) s += " " + std::to_string(r.what.early_bytes) + " bytes early";
  if (r.what.reads_early) s += " source read at once";
  return s + "\n";
}

}  // namespace

Shortened shorten(const Case& c, u32 most_runs) {
  Shortener s(c, most_runs);
  s.attempt([](Case* x) { x->in_turn = true; });
  s.drop_faults();
  s.drop_leavings();
  s.drop_rounds();
  s.attempt([](Case* x) {
    if (!x->world.shrink) x->world.cell_of.clear();  // which belong together
  });
  s.attempt([](Case* x) { x->grid = 1; });
  s.attempt([](Case* x) { x->warps = 1; });
  s.attempt([](Case* x) { x->world.age = 0; });
  s.attempt([](Case* x) { x->profile.bytes_per_us = 0; });
  s.calm_network();
  s.drop_faults();
  return s.take();
}

std::string explain(const Shortened& s) {
  std::string text = s.outcome.violation + "\nshortened in " + std::to_string(s.runs) +
                     " runs to: " + describe(s.small) + "\nsteps " +
                     (s.small.in_turn ? "in turn" : "in the order that the seed draws") + ", " +
                     std::to_string(s.outcome.perturbed.size()) + " writes treated specially\n";
  for (std::size_t i = 0; i < s.outcome.perturbed.size() && i < kMostLines; ++i) text += line(s.outcome.perturbed[i]);
  if (s.outcome.perturbed.size() > kMostLines)
    text += "  and " + std::to_string(s.outcome.perturbed.size() - kMostLines) + " more\n";
  return text;
}

}  // namespace uccl::simulation

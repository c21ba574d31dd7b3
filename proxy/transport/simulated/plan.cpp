// The profiles by name, and faults as a line of text.
#include "transport/simulated/plan.h"

#include <stdexcept>

namespace uccl {

LinkProfile link_profile(const std::string& name) {
  if (name == "rc")
    return {.name = "rc", .ordered = true, .jitter_ns = 3000, .stragglers = 64, .straggler_ns = 100'000};
  if (name == "srd")
    return {.name = "srd",
            .jitter_ns = 20'000,
            .stragglers = 12,
            .straggler_ns = 300'000,
            .late_completions = 16,
            .late_completion_ns = 200'000};
  throw std::invalid_argument("no link profile '" + name + "'; there are: rc, srd");
}

std::string describe(const FaultPlan& p) {
  const auto us = [](u64 ns) { return std::to_string(ns / 1000) + " us"; };
  const std::string link = std::to_string(p.source) + " -> " + std::to_string(p.target);
  switch (p.kind) {
    case FaultPlanKind::kStall: return "stall of " + link + " from " + us(p.begin_ns) + " to " + us(p.end_ns);
    case FaultPlanKind::kLinkLoss:
      return "link " + std::to_string(p.source) + " <-> " + std::to_string(p.target) + " lost at " + us(p.begin_ns) +
             ", told after " + us(p.notice_ns);
    case FaultPlanKind::kHalfOpen: return "half-open: " + link + " swallows everything from " + us(p.begin_ns);
    case FaultPlanKind::kDeath:
      return "death of rank " + std::to_string(p.source) + " at " + us(p.begin_ns) + ", told after " + us(p.notice_ns);
    case FaultPlanKind::kSlow:
      return "rank " + std::to_string(p.source) + " slow (a turn in " + us(p.period_ns) + ") from " + us(p.begin_ns) +
             " to " + us(p.end_ns);
  }
  return "unknown fault";
}

}  // namespace uccl

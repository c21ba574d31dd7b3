// What was found wrong, kept until a test asks.
#include "providers/native/findings.h"

#include <map>
#include <mutex>
#include <utility>

namespace box {
namespace {

constexpr unsigned kKept = 8;

struct Kept {
  std::mutex mutex;
  std::vector<std::string> texts;
  std::map<Rule, unsigned> counts;
};
Kept& kept() {
  static Kept& k = *new Kept;
  return k;
}

}  // namespace

const char* name(Rule rule) {
  static constexpr const char* kNames[] = {"receive",    "local key", "remote key", "descriptor", "inline",
                                           "queue full", "overrun",   "state",      "objects",    "unknown"};
  return kNames[static_cast<int>(rule)];
}

void find(Rule rule, std::string what) {
  Kept& k = kept();
  const std::lock_guard lock(k.mutex);
  if (++k.counts[rule] <= kKept) k.texts.push_back(std::string(name(rule)) + ": " + std::move(what));
}

std::vector<std::string> take_findings() {
  Kept& k = kept();
  const std::lock_guard lock(k.mutex);
  k.counts.clear();
  return std::exchange(k.texts, {});
}

}  // namespace box

// What the box found wrong in what a driver wrote to its device. A test ends with none, or with those that it provoked.
#pragma once
#include <string>
#include <vector>

namespace box {

enum class Rule {
  kReceive,  // a receive names memory that is not registered, or no receive ever reached the device
  kLocalKey,  // a request's source: no such key, another protection domain, or outside of its registration
  kRemoteKey,  // a write's target: likewise, or without the right to be written
  kDescriptor,  // bits that the device's format does not allow
  kInline,  // more bytes inside of a request than the device granted
  kQueueFull,  // more requests than the queue holds
  kOverrun,  // a completion queue with no room for a completion
  kState,  // a request on a queue pair that is not ready for it
  kObjects,  // objects left when a device is closed, or used while others depend on them
  kUnknown,  // a command that the box does not answer
};
const char* name(Rule rule);

void find(Rule rule, std::string what);
// Everything found since the last call, "rule: what" each; a rule's first eight.
std::vector<std::string> take_findings();

}  // namespace box

// What is fuzzed: one function per parser, which throws check::Failure when a promise is broken. Any bytes may come in.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "wire/types.h"

namespace uccl::fuzz {

using Input = std::span<const u8>;

void tcp_frames(Input input);  // a proven peer's stream of frames, cut anywhere
void tcp_handshake(Input input);  // strangers and friends at the door
void arrivals(Input input);  // immediates and headers into a worker
void addresses(Input input);  // the text forms of addresses
void memory(Input input);  // words of memory that other ranks write, in calls of whole worlds

struct Target {
  const char* name;
  void (*run)(Input);
  std::vector<std::vector<u8>> (*seeds)();  // well-formed inputs to begin with
};
const std::vector<Target>& targets();

// Units of work so far (frames, connections, immediates, texts), for reports.
u64 work_done();
void count_work(u64 n);

std::vector<std::vector<u8>> tcp_frames_seeds();
std::vector<std::vector<u8>> tcp_handshake_seeds();
std::vector<std::vector<u8>> arrivals_seeds();
std::vector<std::vector<u8>> addresses_seeds();
std::vector<std::vector<u8>> memory_seeds();

}  // namespace uccl::fuzz

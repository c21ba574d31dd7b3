// What every transport family must keep, as functions over a family. test_transport.cpp runs them over all of them.
//
// A write's size, source, destination and immediate follow from (sender, receiver, lane, number), so that a receiver
// knows what it must find without being told.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "memory/segment.h"
#include "transport/transport.h"

namespace contract {

using uccl::u32;
using uccl::u64;
using uccl::u8;

struct Family {
  std::string name;
  std::function<std::unique_ptr<uccl::Transport>(const uccl::TransportSettings&)> make;
  bool sender_checks_bounds = false;  // an impossible offset is the sender's event, not the receiver's
};

struct Shape {
  u32 num_ranks = 2;
  u32 num_lanes = 1;
  u32 max_in_flight = 64;
  u64 region_bytes = 1 << 20;
  u64 connect_timeout_ns = 20ull * 1000 * 1000 * 1000;
};

// Ranks in this process, connected, each with one segment at offset `kBase` of its flat space.
struct Group {
  static constexpr u64 kBase = 4096;
  Group(const Family& family, const Shape& shape);
  u8* memory(u32 rank) { return static_cast<u8*>(segments[rank]->data()); }
  uccl::Lane& lane(u32 rank, u32 index = 0) { return transports[rank]->lane(index); }

  Shape shape;
  std::vector<std::shared_ptr<uccl::Segment>> segments;
  std::vector<std::unique_ptr<uccl::Transport>> transports;
};

uccl::TransportSettings settings_for(const Shape& shape, u32 rank, const uccl::Segment& segment);
// Runs connect() of every transport at once; returns what each threw ("" = nothing).
std::vector<std::string> connect_all(std::vector<std::unique_ptr<uccl::Transport>>& transports);

u64 mix(u64 a, u64 b);         // a hash
const u8* random_bytes();      // kRandomBytes of them, always the same
inline constexpr u64 kRandomBytes = 1 << 21;
// Memory to write from that lives as long as the process: families that drive a NIC register it (and random_bytes()).
u8* source_bytes();
inline constexpr u64 kSourceBytes = (1 << 24) + 4096;

// Polls both ends of a pair until `done`; false after ten seconds of this thread's work, or fifty by the clock.
bool poll_until(const std::function<bool()>& done);

// The checks. Each throws check::Failure.
void random_writes(const Family&, const Shape&, u32 writes_per_pair, u64 max_bytes, u64 seed);
void zero_bytes(const Family&);
void largest_write(const Family&);
void full_queue(const Family&);
void lanes_do_not_mix(const Family&);
void close_peer(const Family&);
void peer_destroyed(const Family&);
void last_words(const Family&);
void out_of_bounds(const Family&);
void refused_requests(const Family&);
void connect_times_out(const Family&);
void connect_twice(const Family&);
void stranger_rank(const Family&);

}  // namespace contract

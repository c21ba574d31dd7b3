// Measures a transport between two processes: writes one after the other as fast as they go, and single ones there and
// back. Only transport.h's contract is used, so every family is measured alike. Nothing here is used by the engine.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "memory/segment.h"
#include "transport/transport.h"

namespace uccl {

struct ProbeSettings {
  std::string family;
  FabricSettings fabric;          // NICs, provider, ...
  std::string interface_address;  // see IpSettings
  u32 rank = 0;                  // 0 or 1
  u64 session = 0;
  std::string secret;            // 32 bytes
  u64 most_bytes = 1 << 20;      // the longest write that will be measured
  u64 connect_timeout_ns = 30ull * 1000 * 1000 * 1000;
  u64 timeout_ns = 30ull * 1000 * 1000 * 1000;  // of each measurement
};

class TransportProbe {
 public:
  // Throws what make_transport throws.
  explicit TransportProbe(const ProbeSettings& settings);
  std::string local_address() { return transport_->local_address(); }
  void connect(const std::vector<std::string>& addresses) { transport_->connect(addresses); }
  std::vector<Note> notes() const { return transport_->notes(); }

  // Both ranks call it with the same arguments; rank 0 writes `count` times `bytes` to rank 1, which answers when all
  // have arrived and what lies in its memory is right. Seconds until that answer (rank 0). Throws std::runtime_error
  // when something is wrong, or not there in time.
  double stream(u64 bytes, u32 count);
  // The same with one write of `bytes` there and one back, `count` times; seconds for all.
  double round_trips(u64 bytes, u32 count);

 private:
  static constexpr u64 kSlots = 64;

  class Watch;
  void poll(Watch& watch);
  void write(u64 bytes, u64 slot, u32 immediate, Watch& watch);
  void fill(u64 bytes, u8 value);
  void check(u64 bytes, u64 slots, u8 value) const;

  ProbeSettings settings_;
  std::shared_ptr<Segment> memory_;  // what is written from, then what is written into
  std::unique_ptr<Transport> transport_;
  u64 arrived_ = 0;
  u8 turn_ = 0;  // differs from call to call, so that what an earlier one wrote is wrong
};

}  // namespace uccl

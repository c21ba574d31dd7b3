// The contract between the engine and a network family.
//
// What is asked of a network: a write is delivered reliably, and 32 bits reach the receiver after the write's data is
// visible there. Nothing else: writes may arrive and complete in any order. A GPU's memory is further away than the host's:
// what a NIC wrote there is visible once it is flushed, by the lane (FabricSettings::flush_by_read) or by the engine
// (EngineSettings::flush), where the GPU has no order of its own (uccl_ep/fabric/visibility.py chooses).
//
// A Transport belongs to one rank. It has lanes; a lane is used by exactly one worker thread, and lane i of a rank
// exchanges only with lane i of its peers. Set-up (`local_address`, `connect`) is the control path: it may allocate,
// block until its deadline, and throw. Everything in Lane is the data path: no allocation, no lock held across
// threads, no exception, no log line.
#pragma once
#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "memory/address_space.h"
#include "transport/fabric.h"
#include "wire/types.h"

namespace uccl {

struct WriteRequest {
  u32 peer = 0;  // destination rank
  u32 immediate = 0;  // delivered once, after the data is visible
  const u8* source = nullptr;  // stays valid and unchanged until the completion
  u64 remote_offset = 0;  // in the peer's flat offset space
  u64 bytes = 0;  // may be 0: the immediate alone
  u64 wr_id = 0;  // comes back in the completion
};

struct Arrival {
  u32 immediate;
  u32 peer;  // who sent it, as the transport knows it; the engine refuses an immediate that claims another source
};

enum class PeerFault : u32 { kLost = 1, kProtocol = 2, kNetwork = 3 };

struct PeerEvent {
  u32 peer;
  PeerFault fault;
  int code;  // errno or a status of the family, 0 when there is none
};

// What the lane has counted since it was made. Plain words written by the lane's own thread, read racily by others.
struct LaneCounters {
  u64 writes = 0, write_bytes = 0, arrivals = 0, arrival_bytes = 0, refused = 0, system_calls = 0;
};

// What one queue pair has carried of a lane's requests, counted by the lane's own thread.
struct QueueCounters {
  u32 lane = 0, peer = 0, nic = 0;  // nic: index into FabricSettings::nics
  u32 number = 0;  // the network's own, as its tools print it
  u64 writes = 0, write_bytes = 0;
};

class Lane {
 public:
  virtual ~Lane() = default;

  // Takes as many of `requests`, from the front, as it has room for; returns how many. A taken request is completed
  // exactly once by `poll_completions`, unless its peer is lost. Requests to a lost or closed peer are taken and
  // dropped. Never blocks.
  virtual std::size_t post(std::span<const WriteRequest> requests) = 0;

  // Rings the doorbell: everything posted so far is on its way after this.
  virtual void flush() = 0;

  // Tokens of writes that are complete: data and immediate have reached the receiver. In any order.
  virtual std::size_t poll_completions(std::span<u64> wr_ids) = 0;

  // Immediates whose data is visible. In any order. This call may itself move data (software families).
  virtual std::size_t poll_arrivals(std::span<Arrival> out) = 0;

  // Peers whose connection ended or misbehaved, each reported once.
  virtual std::size_t poll_events(std::span<PeerEvent> out) = 0;

  // Stops exchanging with a peer: its requests are dropped from now on and nothing of its memory is touched again.
  virtual void close_peer(u32 peer) = 0;

  virtual const LaneCounters& counters() const = 0;
};

// Each of these is read by the families that its comment names, beside TransportSettings' own fields.
struct SharedMemorySettings {  // shared_memory
  // The memfd that holds local.spans()[i] from its byte 0 on, -1: it cannot be mapped, and peers' writes are refused. They
  // stay open until every peer has connected.
  std::vector<int> span_fds;
};
struct IpSettings {  // tcp, and libfabric's providers on IP
  std::string interface_address;  // the one address to listen on, "" = 127.0.0.1
};
struct InProcessSettings {  // loopback, simulated
  u64 shuffle_seed = 0;  // a random order is derived from this; 0 = as posted
};

struct TransportSettings {
  u32 rank = 0;
  u32 num_ranks = 1;
  u32 num_lanes = 1;
  u64 session = 0;  // one number per Buffer group, the same on all ranks
  std::string secret;  // 32 bytes, the same on all ranks; whoever lacks it is dropped
  AddressSpace local;  // where incoming writes may land; everything else is refused
  u32 max_in_flight = 256;  // writes per peer and lane that may be open; sizes every queue
  u64 connect_timeout_ns = 30ull * 1000 * 1000 * 1000;
  // Ranks that connect() will have no address of: those of this rank's node, and the absent. Families with a connection
  // a peer make none for them.
  std::vector<u32> unreached;

  InProcessSettings in_process;
  SharedMemorySettings shared_memory;
  IpSettings ip;
  FabricSettings fabric;  // verbs, efa, libfabric

  bool reaches(u32 peer) const {
    return peer != rank && std::find(unreached.begin(), unreached.end(), peer) == unreached.end();
  }
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual const char* family() const = 0;
  // What peers need to reach this rank; opaque bytes that travel in the handshake blob.
  virtual std::string local_address() = 0;
  // `addresses[r]` is rank r's local_address(), or "" for a rank that is not reached by this transport (this rank
  // itself, ranks of the same node). Returns when both ways of every connection have been proven. Throws
  // std::runtime_error naming the rank, what was tried and what happened.
  virtual void connect(const std::vector<std::string>& addresses) = 0;
  virtual Lane& lane(u32 index) = 0;
  // Lets requests have their sources in more of the late span (FabricSettings::late_span). While the lanes work; one
  // call at a time. Throws std::runtime_error when a NIC does not take it; then no NIC has it.
  virtual void admit(const Admission& wanted) { (void)wanted; }
  // What was chosen at run time and why, for people: memory registration, queue pairs, device features.
  virtual std::vector<Note> notes() const { return {}; }
  // By queue pair, in families that have them; readable while the lanes work.
  virtual std::vector<QueueCounters> queue_counters() const { return {}; }
};

// family: "libfabric" | "loopback" | "shared_memory" | "simulated" | "tcp" | ... Throws std::invalid_argument that lists
// the families.
std::unique_ptr<Transport> make_transport(const std::string& family, const TransportSettings& settings);

// | the error of a GPU's driver that was to make visible what NICs have written (EngineSettings::flush). No family has
// codes as high.
inline constexpr int kFlushFailed = 0x20000;

// A PeerEvent's code says which of this rank's NICs it was, where the family knows: its index + 1 from this bit on.
inline constexpr int kNicShift = 24;
constexpr int on_nic(int code, u32 nic) { return code | static_cast<int>(std::min(nic + 1, 127u)) << kNicShift; }
constexpr int without_nic(int code) { return code < 0 ? code : code & ((1 << kNicShift) - 1); }

// A PeerEvent's code, or a flush's, in words: the NIC of `nics` (FabricSettings::nics, as people know them), what happened
// and what it usually means; "" for 0.
std::string explain_code(const std::string& family, int code, const std::vector<std::string>& nics = {});

}  // namespace uccl

// One rank's proxy from plain settings: maps the segments by descriptor, makes the transport and the engine. The same
// object serves inside the rank's process and in a process of its own. In a child of fork() its end has no effect.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/faults.h"
#include "engine/process_watch.h"
#include "memory/home.h"
#include "memory/segment.h"
#include "transport/transport.h"

namespace uccl {

struct SpanSettings {
  u64 offset = 0, bytes = 0;
  int fd = -1;  // -1: a device's memory, which nothing here may touch
  std::vector<int> dmabuf_fds;  // when the bytes are a device's: what a NIC registers them by, first (fabric.h)
  u64 address = 0;  // when they are: where they are in this process; 0: this process does not have them, or not yet
};

struct ProxySettings {
  u32 rank = 0, num_ranks = 1, num_workers = 1;
  std::vector<SpanSettings> spans;  // the rank's flat offset space
  int late_span = -1;  // which of them admit() is for; -1: none
  u64 control_offset = 0;  // where in it the control segment is
  u32 num_channels = 1;
  int rings_fd = -1;
  u32 num_rings = 1, ring_capacity = 1024;
  int counters_fd = -1;
  int events_fd = -1;  // the flight recorder's rings (event_segment_bytes); -1: nothing is recorded
  u32 event_capacity = 0;  // events of each, a power of two
  bool trace = false;  // record every command
  std::string family;
  u64 session = 0;
  std::string secret, interface_address;
  u32 max_in_flight = 64;
  u64 max_in_flight_bytes = 8ull << 20;
  u64 max_in_flight_bytes_all = 0;  // of all workers together; 0 = no bound
  bool nap_when_idle = true;
  u64 shuffle_seed = 0;
  u64 connect_timeout_ns = 30ull * 1000 * 1000 * 1000;
  std::vector<int> cpus, near_cpus;
  bool losses_are_absences = false;
  FabricSettings fabric;
  // Addresses of CUDA's cuFlushGPUDirectRDMAWrites and cuCtxSetCurrent, and of the context whose memory NICs write; 0:
  // nothing is flushed so.
  u64 flush_call = 0, context_call = 0, context = 0;
  std::vector<u32> unreached;  // ranks that connect() will have no address of
};

// Counters segment: num_workers WorkerCounters, then num_ranks PeerCounters.
u64 counters_bytes(u32 num_workers, u32 num_ranks);

// Events segment: an event ring (diag/event_ring.h) a worker, each from a cache line on.
constexpr u64 event_stride(u32 capacity) { return align_up(event_ring_bytes(capacity), 64); }

// Addresses that name a device's bytes where no CPU can see them: unique in this process, and a fault if touched.
class Reservation {
 public:
  explicit Reservation(u64 bytes);
  Reservation(Reservation&& other) noexcept;
  ~Reservation();
  u8* base() const { return reinterpret_cast<u8*>(align_up(reinterpret_cast<u64>(base_), kAlign)); }

 private:
  static constexpr u64 kAlign = 2 << 20;  // of device memory, so that NICs may translate it in large pages
  void* base_;
  u64 bytes_;
};

class ProxyHost {
 public:
  explicit ProxyHost(ProxySettings settings);
  ~ProxyHost();

  std::string local_address();
  // addresses[r] "" = not a peer of the transport; peer_bytes[r] its flat space; peer_pids[r] 0 = not watched.
  void connect(const std::vector<std::string>& addresses, const std::vector<u64>& peer_bytes,
               const std::vector<int>& peer_pids);
  void start();
  void stop(u64 drain_ns);
  void dismiss_peer(u32 peer);
  void admit(const Admission& wanted);  // see Transport::admit; once connected
  std::vector<Note> notes() const;
  std::vector<QueueCounters> queue_counters() const;

 private:
  u8* place(const SpanSettings& span, bool late);
  static int flush_device(void* settings);

  ProxySettings settings_;
  std::vector<Reservation> reservations_;
  std::vector<std::shared_ptr<Segment>> segments_;
  std::shared_ptr<Segment> rings_, counters_, events_;
  AddressSpace local_;
  HomePtr<Transport> transport_;  // until it is connected and the engine has it
  std::vector<Note> notes_;  // what it said by then
  std::unique_ptr<Engine> engine_;
};

// Watches a proxy that is a process of its own, for the rank that started it: when it ends, the rank's waits end with a
// fault that names the rank itself as lost. `control` outlives the guard.
class ProxyGuard {
 public:
  ProxyGuard(int pid, u8* control, u32 rank);
  void stop() { watch_->stop(); }  // before the proxy is told to end

 private:
  Faults faults_;
  HomePtr<ProcessWatch> watch_;
};

}  // namespace uccl

// A fabric in memory behind the table of libibverbs, for tests without a device. Reliable queue pairs keep their order
// and their packet numbers; between queue pairs everything is delivered, and completed, in a random order and late.
// Progress is made inside poll_cq, by whoever polls. One fabric a process, guarded by one mutex.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "transport/verbs/library.h"

namespace fake {

using namespace uccl;

struct Options {
  u64 seed = 1;
  int steps = 12;  // of progress a poll
  u32 num_devices = 1;              // "fake0", "fake1", ...
  bool extended = true;             // ibv_wr_*, extended polling
  u32 vendor = 0x02c9;              // of all devices: Mellanox; kBroadcom and kIntel have rules of their own
  int max_srq = 1000, max_srq_wr = 1 << 15, max_qp = 100000, max_qp_wr = 1 << 14, max_cqe = 1 << 20;
  bool old_intel = false, old_broadcom = false;
  u32 max_inline = 256;
  u32 max_message = 1u << 30;
  std::vector<u32> link_layers;     // by device; missing: Ethernet
  std::vector<u32> mtus;            // by device, ibv::Mtu; missing: 4096 bytes
  int dmabuf_errno = 0, address_errno = 0,
      plain_errno = 0;  // what a registration beyond a page fails with, 0: it works
  u64 largest_registration = ~0ull;
  u64 retry_ns = 20'000'000;  // until a peer that does not answer counts as gone; 0: as the queue pair was told
  bool device_lags = false;  // what is written to a dma-buf is seen once the same NIC has read from one
  bool refuse_reads = false;  // of the fabric's memory
  bool overruns_end = true;  // a completion queue that has been full; else only counted
};

// Its provider finishes only the last request between ibv_wr_start and ibv_wr_complete, and its device refuses inline data.
// An old one flushes for ever what is posted to a queue pair that has failed once.
inline constexpr u32 kBroadcom = 0x14e4;
// Its provider does not know what has arrived between ibv_start_poll and ibv_end_poll; an old one does not anywhere.
inline constexpr u32 kIntel = 0x8086;

struct Wr {
  u64 wr_id;
  u32 opcode, flags, imm, rkey, lkey, dest_qpn, psn, qkey;
  u64 remote, local, bytes;
  std::vector<u8> inlined;
  bool delivered = false;
  bool broken = false;  // what the device finds in its queue is no request
  u32 not_ready = 0;    // how often its receiver had no receive
  u64 first_try_ns = 0, next_try_ns = 0;
};
struct Cq : ibv::CqEx {
  std::deque<ibv::Wc> entries;
  ibv::Wc current;
  u32 capacity;
  bool overrun;  // it had no room once, and takes nothing any more
  u32 sessions;  // of posting, begun and not complete, on queue pairs that report here
};
struct Srq : ibv::Srq {
  u32 posted, capacity;
};
struct Context {
  ibv::VerbsContext verbs;
  u32 device;
  int events[2];
  std::deque<ibv::AsyncEvent> waiting;
};
struct Qp : ibv::QpEx {
  std::deque<Wr> queue;
  std::vector<Wr> building;
  u32 dest_qpn, next_psn, expected_psn, posted_receives, depth, max_inline, qkey, access, timeout, retries, rnr_retries;
  u32 flow_label;  // of its packets
  bool unsolicited, failed_once;
};

struct Region {
  ibv::Mr* mr;
  u64 access;
  bool device;  // a dma-buf's
};
struct Hidden {  // bytes on their way from a NIC into a GPU
  u32 device;
  u64 at;
  std::vector<u8> bytes;
};

class Fabric {
 public:
  // Starts anew; objects of an earlier fabric may still be destroyed.
  static Fabric& begin(const Options& options);
  static Fabric& the();
  const ibv::Functions& functions() const { return functions_; }

  // What tests do to it.
  void cut_device(u32 device, bool cut);  // its packets are lost, both ways
  void push_event(u32 device, u32 type, int port);
  void break_queue_pair(u32 number);  // moves it to the error state, as an event of its own
  void invalidate(u32 rkey);
  void hold_completions(u32 device, bool hold);  // those there see none, and what they have sent is not acknowledged
  void hold_back_receives(bool hold);  // nobody's receives are found: receiver not ready
  u32 num_overruns() const { return overruns_; }
  u32 num_not_ready() const { return not_ready_; }
  u32 num_doorbells() const { return doorbells_; }
  u32 num_deadlocks() const {
    return deadlocks_;
  }  // completions asked for inside of a session of posting: libefa waits
  u32 num_signalled() const { return signalled_; }
  u32 num_inlined() const { return inlined_; }
  u32 num_reads() const { return reads_; }
  u32 num_moved_to_error() const {  // by who owns the queue pair
    std::lock_guard lock(mutex);
    return moved_to_error_;
  }
  u32 num_unanswered() const {  // by a peer that is not there, until no retry was left
    std::lock_guard lock(mutex);
    return unanswered_;
  }
  u32 num_registrations() const { return static_cast<u32>(regions_.size()); }
  u32 first_queue_pair(u32 device) const;  // the lowest number there
  u32 num_queue_pairs() const { return static_cast<u32>(qps_.size()); }
  u64 last_access() const { return last_access_; }

  // For the C functions. All are called with the mutex held.
  mutable std::mutex mutex;
  Options options;
  void progress();
  void deliver(Qp& qp, Wr& wr);
  void retire(Qp& qp);
  void miss(Qp& qp, Wr& wr);
  void fail(Qp& qp, const Wr& wr, u32 status);
  void flush(Qp& qp);
  void answer_with_flush(Qp& qp);
  bool polls_nothing(const Cq& cq);  // makes progress first
  void push(Cq& cq, const ibv::Wc& wc);
  void raise(u32 device, u32 type, int port);
  void post(Qp& qp, Wr wr);
  bool take_receive(Qp& qp);
  // Efa's provider tells the device nothing of a receive without memory, and returns no error; bnxt_re's firmware wants some
  // in shared queues.
  bool is_receive(const ibv::RecvWr& wr) const {
    return wr.num_sge == 1 && covering(wr.sg_list->lkey, wr.sg_list->addr, wr.sg_list->length) != nullptr;
  }
  const Region* covering(u32 key, u64 address, u64 bytes) const;  // null: not registered
  void put(const Region& region, u32 device, u64 at, const void* from, u64 bytes);
  void show(u32 device);
  bool knows(const ibv::Pd* pd, u32 device) const { return handles_.count({pd, device + 1}) != 0; }
  u64 random();
  std::map<u32, Qp*> qps_;
  std::map<u32, Region> regions_;
  std::vector<Hidden> hidden_;
  struct Dmabuf {
    int fd;
    u64 offset;
  };
  std::vector<Dmabuf> dmabufs_;  // that were registered, in their order
  std::multiset<std::pair<const ibv::Pd*, u32>> handles_;  // address handles: whose, and of which device
  std::vector<Context*> contexts_;
  std::vector<bool> cut_, held_;
  u32 next_number_ = 100, next_key_ = 1000;
  u32 overruns_ = 0, not_ready_ = 0, doorbells_ = 0, signalled_ = 0, inlined_ = 0, reads_ = 0, deadlocks_ = 0;
  u32 moved_to_error_ = 0, unanswered_ = 0;
  u64 last_access_ = 0;
  const void* last_address_ = nullptr;  // of reg_mr_iova2

 private:
  ibv::Functions functions_;
  u64 state_ = 1;
  bool hold_ = false;
};

// The C functions of objects, for tables of other libraries (efadv).
ibv::Qp* make_queue_pair(ibv::Context* context, ibv::Pd* pd, const ibv::QpInitAttr& attr);
ibv::CqEx* make_completion_queue(ibv::Context* context, u32 entries);
inline Qp* of(ibv::Qp* qp) { return static_cast<Qp*>(reinterpret_cast<ibv::QpEx*>(qp)); }
u32 device_of(const ibv::Context* context);
ibv::Functions control_functions();  // fake_verbs_control.cpp
void install_extended(Context& context);
void install_polling(Cq& cq);  // fake_verbs_data.cpp
void install_posting(Qp& qp);
void install_posting(ibv::ContextOps& ops);

}  // namespace fake

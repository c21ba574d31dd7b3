// One connection: a window of writes on their way out, a parser of what comes in. Any read or write may end at any
// byte. Used by its lane's thread only; allocates nothing after construction.
#pragma once
#include <sys/uio.h>

#include <vector>

#include "transport/tcp/framing.h"
#include "transport/tcp/socket.h"
#include "transport/transport.h"

namespace uccl {

inline constexpr std::size_t kTcpStagingBytes = 64 << 10;  // read per system call when frames are small

// What a connection borrows from its lane while it receives.
struct TcpInbox {
  explicit TcpInbox(const AddressSpace& space)
      : local(space), staging(kTcpStagingBytes), ready(kTcpStagingBytes / sizeof(FrameHeader) + 2) {}
  bool empty() const { return head == tail; }
  // Never full: a connection receives only while the inbox is empty, and one read completes at most this many frames.
  void push(Arrival a) { ready[tail++] = a; }

  const AddressSpace& local;
  std::vector<u8> staging;
  std::vector<Arrival> ready;  // from `head` to `tail`; rewound when empty
  std::size_t head = 0, tail = 0;
};

enum class TcpStatus {
  kDrained,   // nothing more for now
  kMore,      // call again
  kLost,      // `code` says why: an errno, or what the peer's goodbye said
  kProtocol,  // the peer sent what no correct peer sends
};

class TcpConnection {
 public:
  // `window`: writes that may be open here; `peer_window`: the same of the peer.
  TcpConnection(u32 peer, Socket socket, u32 window, u32 peer_window, const TcpTuning& tuning);
  TcpConnection(const TcpConnection&) = delete;
  TcpConnection& operator=(const TcpConnection&) = delete;

  u32 peer() const { return peer_; }
  int fd() const { return socket_.fd(); }

  bool has_room() const { return posted_ - reported_ < window_; }
  void push(const WriteRequest& request);  // only when has_room()
  // Acknowledged writes whose wr_ids have not been taken.
  bool has_completions() const { return acked_ != reported_; }
  u64 take_completion() { return slot(reported_++).wr_id; }  // only when has_completions()

  // Sends until everything is sent, the socket is full (blocked()), or it fails (broken(): receive() will say so).
  void send(LaneCounters& counters);
  bool broken() const { return broken_ != 0; }
  bool blocked() const { return blocked_; }
  void unblock() { blocked_ = false; }

  // One read from the socket, and everything that follows from it.
  TcpStatus receive(TcpInbox& inbox, LaneCounters& counters, int* code);
  // The peer has shut its side: receive() must be called until it returns kLost.
  void expect_end() { ending_ = true; }
  // Drains the error queue after EPOLLERR.
  void drain_error_queue(LaneCounters& counters);

  // Acknowledgements travel with writes; one is sent on its own when `poll_ack` says so: when the peer's window or a
  // quarter of a megabyte would otherwise wait, or when the last poll brought nothing more.
  bool ack_due() const { return received_ != ack_sent_; }
  bool poll_ack();
  void want_ack() {  // the next send() acknowledges
    control_wanted_ = true;
    unacked_bytes_ = 0;
  }

  // Says goodbye if the stream is between two frames, and closes. Never blocks.
  void close(u32 farewell, LaneCounters& counters);

 private:
  struct Slot {
    FrameHeader header;
    const u8* source;
    u64 wr_id;
  };
  static constexpr int kMaxIovecs = 64;
  struct Batch {
    iovec parts[kMaxIovecs];
    int num_parts = 0;
    u64 slots_end = 0;  // slots before this one are in the batch
    u64 bytes = 0;
    bool control = false;  // control_ is the last part, or the first when it was begun earlier
    void add(const void* base, u64 n) {
      parts[num_parts++] = {const_cast<void*>(base), n};
      bytes += n;
    }
    void cut(u64 limit);  // to at most so many bytes
  };

  Slot& slot(u64 number) { return slots_[number & (slots_.size() - 1)]; }
  void fill(Batch& batch);
  void account(const Batch& batch, u64 sent);
  bool may_skip_copy(const Batch& batch) const;
  TcpStatus parse(TcpInbox& inbox, LaneCounters& counters, const u8* data, std::size_t bytes, int* code);
  TcpStatus begin_frame(TcpInbox& inbox, LaneCounters& counters, int* code);
  void finish_write(TcpInbox& inbox, LaneCounters& counters);
  bool take_ack(u32 acked);

  const u32 peer_;
  Socket socket_;
  const u32 peer_window_;
  const u64 zerocopy_bytes_, max_send_bytes_;
  bool zerocopy_;

  // Out. Writes are numbered from 0: reported <= acked <= sent <= posted <= reported + window.
  const u32 window_;
  std::vector<Slot> slots_;  // a power of two of at least window_
  u64 posted_ = 0, sent_ = 0, acked_ = 0, reported_ = 0;
  u64 slot_offset_ = 0;  // bytes of write `sent_` that are in the socket; then control_offset_ is 0
  FrameHeader control_{};
  u64 control_offset_ = 0;  // bytes of control_ that are in the socket
  bool control_wanted_ = false;
  bool blocked_ = false;
  int broken_ = 0;  // errno of a send that failed

  // In.
  u64 received_ = 0;   // writes applied
  u64 ack_sent_ = 0;   // of these, acknowledged
  u64 unacked_bytes_ = 0;
  bool quiet_ = true;  // nothing was received since the last poll_ack
  bool ending_ = false;
  FrameHeader header_{};
  std::size_t header_have_ = 0;
  u8* payload_ = nullptr;  // where the rest of the current payload goes
  u64 payload_left_ = 0;
  u64 last_payload_ = 0;   // decides how much to read besides a payload
};

}  // namespace uccl

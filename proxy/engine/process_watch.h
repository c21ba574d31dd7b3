// Tells when a peer's process on this host ends. A thread of its own that blocks in poll() on pidfds, so the worker
// loop pays nothing and a death is known within milliseconds. Where pidfd_open is not permitted (old kernels, old
// container profiles) it reads /proc/<pid>/stat every 100 ms instead.
#pragma once
#include <poll.h>

#include <functional>
#include <thread>
#include <vector>

#include "wire/types.h"

namespace uccl {

class ProcessWatch {
 public:
  using OnExit = std::function<void(u32 peer)>;
  static constexpr int kPeriodMs = 100;  // without pidfd

  // pids[r] is rank r's process, 0 = not watched. `on_exit` is called once per peer, from the watch's thread.
  ProcessWatch(std::vector<int> pids, OnExit on_exit, bool use_pidfd = true);
  ~ProcessWatch();  // stops
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  void start();  // throws std::system_error; a process that is already gone is reported, not thrown
  void stop();   // idempotent

 private:
  struct Watched {
    u32 peer;
    int pid;
    int fd;           // pidfd, or -1: polled through /proc
    u64 started;      // start time in /proc, tells a reused pid from the process that was meant
    bool ended;
  };
  void open_all();
  void list_polled();
  void run();
  void check(Watched& w, bool signalled);

  std::vector<int> pids_;
  OnExit on_exit_;
  bool use_pidfd_;
  std::vector<Watched> watched_;
  std::vector<pollfd> polled_;  // of each in watched_, then wake_fd_; made by start(): the thread allocates nothing
  int wake_fd_ = -1;
  std::thread thread_;
};

}  // namespace uccl

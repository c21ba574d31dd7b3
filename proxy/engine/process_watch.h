// Tells when a peer's process on this host ends. All watches of this process share one thread, which blocks in poll() on
// one pidfd a process, so the worker loop pays nothing and a death is known within milliseconds. Where pidfd_open is not
// permitted (old kernels, old container profiles) it reads /proc/<pid>/stat every 100 ms instead.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "wire/types.h"

namespace uccl {

class ProcessWatch {
 public:
  using OnExit = std::function<void(u32 peer)>;
  static constexpr int kPeriodMs = 100;  // without pidfd

  // pids[r] is rank r's process, 0 = not watched. `on_exit` is called once per peer, from the shared thread; it must not
  // block, nor start or stop a watch.
  ProcessWatch(std::vector<int> pids, OnExit on_exit, bool use_pidfd = true);
  ~ProcessWatch();  // stops
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  void start();  // throws std::system_error; a process that is already gone is reported, not thrown
  void stop();  // idempotent; no call of on_exit is under way afterwards

 private:
  friend class WatchThread;
  struct Watched {
    u32 peer;
    std::shared_ptr<struct WatchedProcess> process;
  };

  std::vector<int> pids_;
  OnExit on_exit_;
  bool use_pidfd_;
  std::vector<Watched> watched_;
};

}  // namespace uccl

// pidfds and an eventfd in one poll(); see process_watch.h.
#include "engine/process_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <system_error>
#include <utility>

#include "memory/start_thread.h"

namespace uccl {
namespace {

int open_pidfd(int pid) {
#ifdef SYS_pidfd_open
  return static_cast<int>(syscall(SYS_pidfd_open, pid, 0u));
#else
  (void)pid;
  errno = ENOSYS;
  return -1;
#endif
}

constexpr u64 kUnseen = ~0ull;

// Whether there is such a process, whatever may be known of it.
bool exists(int pid) { return kill(pid, 0) == 0 || errno != ESRCH; }

// The process's start time in clock ticks; 0 when it has ended (a zombie has); kUnseen when it lives and /proc does not
// show it (hidepid, no descriptor left): its zombie is then taken for alive.
u64 start_time(int pid) {
  char path[64], text[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return exists(pid) ? kUnseen : 0;
  const ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return 0;
  text[n] = 0;
  const char* field = strrchr(text, ')');  // the name may hold anything, so count fields from its end
  if (!field || field[1] != ' ' || field[2] == 'Z' || field[2] == 'X') return 0;
  field += 2;  // field 3, the state; the start time is field 22
  for (int i = 3; i < 22 && field; ++i) {
    field = strchr(field, ' ');
    if (field) ++field;
  }
  return field ? strtoull(field, nullptr, 10) : 0;
}

}  // namespace

ProcessWatch::ProcessWatch(std::vector<int> pids, OnExit on_exit, bool use_pidfd)
    : pids_(std::move(pids)), on_exit_(std::move(on_exit)), use_pidfd_(use_pidfd) {}

ProcessWatch::~ProcessWatch() { stop(); }

void ProcessWatch::open_all() {
  for (u32 peer = 0; peer < pids_.size(); ++peer) {
    if (pids_[peer] <= 0) continue;
    Watched w{peer, pids_[peer], -1, 0, false};
    if (use_pidfd_) w.fd = open_pidfd(w.pid);
    if (w.fd < 0) w.started = start_time(w.pid);  // 0 when it is already gone: the first check reports it
    watched_.push_back(w);
  }
}

void ProcessWatch::list_polled() {
  polled_.clear();
  polled_.reserve(watched_.size() + 1);
  for (const Watched& w : watched_) polled_.push_back({w.fd, POLLIN, 0});
  polled_.push_back({wake_fd_, POLLIN, 0});
}

void ProcessWatch::start() {
  if (thread_.joinable()) return;
  open_all();
  if (watched_.empty()) return;
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd for the process watch");
  list_polled();
  thread_ = start_thread("the process watch", [this] { run(); });
  pthread_setname_np(thread_.native_handle(), "uccl-watch");
}

void ProcessWatch::stop() {
  if (thread_.joinable()) {
    const u64 one = 1;
    // An eventfd that nobody reads cannot refuse a 1; whatever it says, the join below needs the wake-up only once.
    [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof one);
    thread_.join();
  }
  if (wake_fd_ >= 0) close(wake_fd_);
  wake_fd_ = -1;
  for (Watched& w : watched_)
    if (w.fd >= 0) close(w.fd);
  watched_.clear();
}

void ProcessWatch::check(Watched& w, bool signalled) {
  if (w.ended) return;
  if (w.fd < 0) {
    const u64 now = start_time(w.pid);
    if (w.started == kUnseen) w.started = now;
    signalled = now == 0 || (now != kUnseen && now != w.started);
  }
  if (!signalled) return;
  w.ended = true;
  on_exit_(w.peer);
}

void ProcessWatch::run() {
  bool periodic = false;
  for (const Watched& w : watched_) periodic |= w.fd < 0;
  for (;;) {
    for (std::size_t i = 0; i < watched_.size(); ++i) {
      check(watched_[i], polled_[i].revents != 0);
      if (watched_[i].ended) polled_[i].fd = -1;  // poll() ignores it: an ended process stays readable for ever
    }
    if (polled_.back().revents != 0) return;
    if (poll(polled_.data(), polled_.size(), periodic ? kPeriodMs : -1) < 0 && errno != EINTR) return;
  }
}

}  // namespace uccl

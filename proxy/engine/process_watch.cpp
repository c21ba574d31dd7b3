// pidfds and an eventfd in one poll(); see process_watch.h.
#include "engine/process_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "memory/home.h"
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

struct WatchedProcess {
  WatchedProcess(int p, bool use_pidfd) : pid(p), fd(use_pidfd ? open_pidfd(p) : -1) {
    if (fd < 0) started = start_time(pid);  // 0 when it is already gone: the first look reports it
  }
  ~WatchedProcess() {
    if (fd >= 0) close(fd);
  }
  WatchedProcess(const WatchedProcess&) = delete;
  WatchedProcess& operator=(const WatchedProcess&) = delete;

  // Whether it has ended; `signalled`: its pidfd says so.
  bool has_ended(bool signalled) {
    if (fd >= 0) return signalled;
    const u64 now = start_time(pid);
    if (started == kUnseen) started = now;
    return now == 0 || (now != kUnseen && now != started);
  }
  bool has_ended() {
    pollfd one{fd, POLLIN, 0};
    return has_ended(fd >= 0 && poll(&one, 1, 0) == 1);
  }

  const int pid, fd;  // fd: pidfd, or -1: looked at through /proc
  u64 started = 0;    // start time in /proc, tells a reused pid from the process that was meant
  bool told = false;  // that it has ended
};

// The thread of this process, from its first watch to its last.
class WatchThread {
 public:
  static WatchThread& the();
  void add(ProcessWatch* watch);     // throws std::system_error
  void remove(ProcessWatch* watch);  // of one that is not there: nothing

 private:
  struct Plan {  // what one poll() waits for: each process, then wake_fd_
    std::vector<std::shared_ptr<WatchedProcess>> processes;
    std::vector<pollfd> polled;
  };
  std::shared_ptr<WatchedProcess> find(int pid, bool use_pidfd);
  void make_plan();
  void wake();
  void run();
  bool look();
  void tell(const WatchedProcess& process);

  std::mutex control_;  // add and remove, to their ends
  std::mutex mutex_;    // what follows; held while on_exit is called
  std::vector<ProcessWatch*> watches_;
  Plan plan_, next_;  // plan_ is the thread's own; it takes next_ when it is woken, so it allocates nothing
  bool planned_ = false, stopping_ = false;
  int wake_fd_ = -1;
  std::thread thread_;
};

WatchThread& WatchThread::the() {
  static Home home;
  static WatchThread* the = new WatchThread();  // for ever: watches may outlive whatever ends with the process
  if (!home.here()) {  // a child of fork() has no such thread
    home = Home();
    the = new WatchThread();
  }
  return *the;
}

std::shared_ptr<WatchedProcess> WatchThread::find(int pid, bool use_pidfd) {
  for (const ProcessWatch* watch : watches_)
    for (const ProcessWatch::Watched& w : watch->watched_)
      if (w.process->pid == pid && (w.process->fd >= 0) == use_pidfd && !w.process->has_ended()) return w.process;
  return std::make_shared<WatchedProcess>(pid, use_pidfd);
}

void WatchThread::make_plan() {
  next_ = Plan();
  for (const ProcessWatch* watch : watches_)
    for (const ProcessWatch::Watched& w : watch->watched_)
      if (std::find(next_.processes.begin(), next_.processes.end(), w.process) == next_.processes.end())
        next_.processes.push_back(w.process);
  for (const auto& process : next_.processes) next_.polled.push_back({process->fd, POLLIN, 0});
  next_.polled.push_back({wake_fd_, POLLIN, 0});
  planned_ = true;
}

void WatchThread::wake() {
  const u64 one = 1;
  // It cannot refuse a 1 before 2^64 of them; whatever it says, one that is there wakes the thread.
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof one);
}

void WatchThread::add(ProcessWatch* watch) {
  const std::lock_guard<std::mutex> control(control_);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (u32 peer = 0; peer < watch->pids_.size(); ++peer)
      if (watch->pids_[peer] > 0) watch->watched_.push_back({peer, find(watch->pids_[peer], watch->use_pidfd_)});
    if (watch->watched_.empty()) return;
    if (wake_fd_ < 0) wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd for the process watch");
    watches_.push_back(watch);
    make_plan();
  }
  wake();
  if (thread_.joinable()) return;
  stopping_ = false;
  try {
    thread_ = start_thread("the process watch", [this] { run(); });
  } catch (...) {
    watches_.clear();
    close(std::exchange(wake_fd_, -1));
    throw;
  }
  pthread_setname_np(thread_.native_handle(), "uccl-watch");
}

void WatchThread::remove(ProcessWatch* watch) {
  const std::lock_guard<std::mutex> control(control_);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::erase(watches_, watch) != 0) {
      make_plan();
      stopping_ = watches_.empty();
      wake();
    }
    watch->watched_.clear();
  }
  if (!stopping_ || !thread_.joinable()) return;
  thread_.join();
  plan_ = next_ = Plan();
  close(std::exchange(wake_fd_, -1));
}

void WatchThread::tell(const WatchedProcess& process) {
  for (ProcessWatch* watch : watches_)
    for (const ProcessWatch::Watched& w : watch->watched_)
      if (w.process.get() == &process) watch->on_exit_(w.peer);
}

// Takes in what poll() has found, and the next plan. Returns whether some process can only be looked at by the clock.
bool WatchThread::look() {
  bool by_clock = false;
  for (std::size_t i = 0; i < plan_.processes.size(); ++i) {
    WatchedProcess& process = *plan_.processes[i];
    if (!process.told && process.has_ended(plan_.polled[i].revents != 0)) {
      process.told = true;
      tell(process);
    }
    if (process.told) plan_.polled[i].fd = -1;  // poll() ignores it: an ended process stays readable for ever
    by_clock |= process.fd < 0 && !process.told;
  }
  return by_clock;
}

void WatchThread::run() {
  for (;;) {
    bool by_clock;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return;
      by_clock = look();
      if (std::exchange(planned_, false)) {
        u64 rings;
        [[maybe_unused]] const ssize_t heard = read(wake_fd_, &rings, sizeof rings);
        std::swap(plan_, next_);
        next_.processes.clear();
        by_clock = look();
      }
    }
    if (poll(plan_.polled.data(), plan_.polled.size(), by_clock ? ProcessWatch::kPeriodMs : -1) < 0 && errno != EINTR)
      return;
  }
}

ProcessWatch::ProcessWatch(std::vector<int> pids, OnExit on_exit, bool use_pidfd)
    : pids_(std::move(pids)), on_exit_(std::move(on_exit)), use_pidfd_(use_pidfd) {}

ProcessWatch::~ProcessWatch() { stop(); }

void ProcessWatch::start() {
  if (watched_.empty()) WatchThread::the().add(this);
}

void ProcessWatch::stop() {
  if (!watched_.empty()) WatchThread::the().remove(this);
}

}  // namespace uccl

// See stream.h.
#include "kernels/host/stream.h"

#include <algorithm>
#include <cfenv>
#include <chrono>
#include <utility>

namespace uccl::simt {
namespace {

// Within its life, what kernels compute does not depend on the thread: rounding to nearest, denormals kept.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&before_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t before_;
};

}  // namespace

bool Event::query() const {
  if (!state_) return true;
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->happened;
}

bool Event::wait(u64 timeout_ns) const {
  if (!state_) return true;
  const auto happened = [this] { return state_->happened; };
  // Longer than any run, and small enough that now + timeout does not overflow.
  const auto timeout = std::chrono::nanoseconds(std::min<u64>(timeout_ns, 1ull << 60));
  std::unique_lock<std::mutex> lock(state_->mutex);
  if (!state_->changed.wait_for(lock, timeout, happened)) return false;
  if (state_->error) std::rethrow_exception(state_->error);
  return true;
}

Stream::Stream(bool deferred) : deferred_(deferred), thread_([this] { run(); }) {}

Stream::~Stream() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  due_.notify_one();
  thread_.join();
}

void Stream::push(Item item, bool due) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    items_.push_back(std::move(item));
    ++pushed_;
    if (!due) return;
    due_until_ = pushed_;
  }
  due_.notify_one();
}

void Stream::enqueue(std::function<void()> work) { push(Item{std::move(work), nullptr}, !deferred_); }

Event Stream::record() {
  Event event;
  event.state_ = std::make_shared<Event::State>();
  push(Item{nullptr, event.state_}, true);
  return event;
}

void Stream::wait(Event event) {
  enqueue([event = std::move(event)] { event.wait(~0ull); });
}

void Stream::finish() {
  std::unique_lock<std::mutex> lock(mutex_);
  run_all(&lock);
  if (error_) std::rethrow_exception(error_);
}

void Stream::synchronize() {
  std::unique_lock<std::mutex> lock(mutex_);
  run_all(&lock);
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Stream::execute(Item* item) {
  std::exception_ptr error;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    error = error_;
  }
  if (item->event) {
    {
      std::lock_guard<std::mutex> lock(item->event->mutex);
      item->event->error = error;
      item->event->happened = true;
    }
    item->event->changed.notify_all();
    return;
  }
  if (error) return;
  try {
    const DefaultFloatEnvironment environment;
    item->work();
    item->work = nullptr;  // what it holds ends before anybody is told that it has run
  } catch (...) {
    std::lock_guard<std::mutex> lock(mutex_);
    error_ = std::current_exception();
  }
}

// Runs the first item, which nobody else does: none is running.
void Stream::run_next(std::unique_lock<std::mutex>* lock) {
  Item item = std::move(items_.front());
  items_.pop_front();
  running_ = true;
  lock->unlock();
  execute(&item);
  lock->lock();
  running_ = false;
  ++ended_;
  if (ended_ < due_until_) due_.notify_one();
  ended_one_.notify_all();
}

// Returns when everything that had been queued by now has run, here or on another thread.
void Stream::run_all(std::unique_lock<std::mutex>* lock) {
  const u64 until = pushed_;
  while (ended_ < until) {
    if (running_)
      ended_one_.wait(*lock);
    else
      run_next(lock);
  }
}

void Stream::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    due_.wait(lock, [this] { return !running_ && (closing_ || ended_ < due_until_); });
    if (items_.empty()) return;
    run_next(&lock);
  }
}

}  // namespace uccl::simt

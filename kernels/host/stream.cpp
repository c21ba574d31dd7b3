// See stream.h.
#include "kernels/host/stream.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace uccl::simt {

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

Stream::Stream() : thread_([this] { run(); }) {}

Stream::~Stream() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  queued_.notify_one();
  thread_.join();
}

void Stream::push(Item item) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    items_.push_back(std::move(item));
  }
  queued_.notify_one();
}

void Stream::enqueue(std::function<void()> work) { push(Item{std::move(work), nullptr}); }

Event Stream::record() {
  Event event;
  event.state_ = std::make_shared<Event::State>();
  push(Item{nullptr, event.state_});
  return event;
}

void Stream::wait(Event event) {
  enqueue([event = std::move(event)] { event.wait(~0ull); });
}

void Stream::synchronize() {
  const Event reached = record();
  try {
    reached.wait(~0ull);
  } catch (...) {
    std::lock_guard<std::mutex> lock(mutex_);
    error_ = nullptr;
    throw;
  }
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
    item->work();
  } catch (...) {
    std::lock_guard<std::mutex> lock(mutex_);
    error_ = std::current_exception();
  }
}

void Stream::run() {
  for (;;) {
    Item item;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      queued_.wait(lock, [this] { return closing_ || !items_.empty(); });
      if (items_.empty()) return;
      item = std::move(items_.front());
      items_.pop_front();
    }
    execute(&item);
  }
}

}  // namespace uccl::simt

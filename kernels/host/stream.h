// The CPU's stand-in for a CUDA stream: a queue of functions that run in order, and events between queues. The stream's
// own thread runs them, unless the caller waits for all of them: then it runs what is left itself, which spares it two
// changes of threads and caches that know nothing of its tensors. Nothing polls; waits are condition variables.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "wire/types.h"

namespace uccl::simt {

// A point in a stream. Copies are the same event; a default-made one has happened.
class Event {
 public:
  Event() = default;
  bool query() const;  // has happened; never throws
  // True once it has happened, false after `timeout_ns`. Rethrows what the stream's functions before it threw.
  bool wait(u64 timeout_ns) const;

 private:
  friend class Stream;
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool happened = false;
    std::exception_ptr error;
  };
  std::shared_ptr<State> state_;
};

// A function that throws ends its stream as a fault ends a CUDA stream: what is queued after it is skipped (events
// still happen, with the error), until synchronize() has rethrown it. Waiting for another stream's failed event fails
// this one too. Functions see the default floating point environment, whatever the caller's is: denormals are kept.
class Stream {
 public:
  // With `deferred`, functions begin when somebody asks for their end: by record, finish or synchronize, or at ours.
  explicit Stream(bool deferred = false);
  ~Stream();  // runs what is queued, then ends the thread; an unclaimed error is dropped
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void enqueue(std::function<void()> work);
  Event record();
  void wait(Event event);  // what is queued from now on runs after `event`
  void finish();  // returns when all that is queued has run; rethrows the first error, which stays
  void synchronize();  // the same, but the error is claimed: the stream works again

 private:
  struct Item {
    std::function<void()> work;
    std::shared_ptr<Event::State> event;  // to be marked instead
  };
  void push(Item item, bool due);
  void run();
  void run_next(std::unique_lock<std::mutex>* lock);
  void run_all(std::unique_lock<std::mutex>* lock);
  void execute(Item* item);

  const bool deferred_;
  std::mutex mutex_;
  std::condition_variable due_, ended_one_;  // for the stream's thread, and for callers
  std::deque<Item> items_;
  u64 pushed_ = 0, ended_ = 0;  // items; these and the rest under mutex_
  u64 due_until_ = 0;  // so many of the pushed ones do not wait for a caller to run them
  bool running_ = false;  // one of them, on some thread
  bool closing_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace uccl::simt

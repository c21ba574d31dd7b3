// The CPU's stand-in for a CUDA stream: a queue of functions that one thread runs in order, and events between queues.
// Nothing polls; waits are condition variables.
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
// this one too.
class Stream {
 public:
  Stream();
  ~Stream();  // runs what is queued, then ends the thread; an unclaimed error is dropped
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void enqueue(std::function<void()> work);
  Event record();
  void wait(Event event);  // what is queued from now on runs after `event`
  void synchronize();      // blocks the caller until all that is queued has run; rethrows the first error, once

 private:
  struct Item {
    std::function<void()> work;
    std::shared_ptr<Event::State> event;  // to be marked instead
  };
  void push(Item item);
  void run();
  void execute(Item* item);

  std::mutex mutex_;
  std::condition_variable queued_;
  std::deque<Item> items_;
  bool closing_ = false;
  std::exception_ptr error_;  // under mutex_
  std::thread thread_;
};

}  // namespace uccl::simt

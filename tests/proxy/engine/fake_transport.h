// A transport that does what the test says: it records what is posted, and delivers arrivals, completions and events
// in the order in which the test hands them in. Nothing allocates after construction, so that the engine's promise not
// to can be measured; a mutex lets a test script it while worker threads run.
#pragma once
#include <algorithm>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "transport/transport.h"

namespace uccl::testing {

// First in, first out, of a fixed most.
template <class T>
class Script {
 public:
  explicit Script(std::size_t most) { items_.reserve(most); }
  void add(const T& item) {
    if (items_.size() == items_.capacity()) throw std::length_error("fake transport: script is full");
    items_.push_back(item);
  }
  std::size_t take(std::span<T> out) {
    const std::size_t n = std::min(out.size(), items_.size() - next_);
    std::copy_n(items_.begin() + static_cast<std::ptrdiff_t>(next_), n, out.begin());
    next_ += n;
    if (next_ == items_.size()) items_.clear(), next_ = 0;
    return n;
  }

 private:
  std::vector<T> items_;
  std::size_t next_ = 0;
};

class FakeLane : public Lane {
 public:
  static constexpr std::size_t kMost = 1 << 16;
  FakeLane() : completions_(kMost), arrivals_(kMost), events_(64) {
    posted_.reserve(kMost);
    closed_.reserve(4096);
  }

  // The engine's side.
  std::size_t post(std::span<const WriteRequest> requests) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::size_t taken = 0;
    for (const WriteRequest& r : requests) {
      if (is_closed(r.peer)) {
        ++dropped_;
      } else {
        if (room_ == 0 || posted_.size() == kMost) break;
        --room_;
        posted_.push_back(r);
        if (echo_) completions_.add(r.wr_id);
      }
      ++taken;
    }
    return taken;
  }
  void flush() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    flushed_ = posted_.size();
  }
  std::size_t poll_completions(std::span<u64> wr_ids) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return completions_.take(wr_ids);
  }
  std::size_t poll_arrivals(std::span<Arrival> out) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return arrivals_.take(out);
  }
  std::size_t poll_events(std::span<PeerEvent> out) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return events_.take(out);
  }
  void close_peer(u32 peer) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_.push_back(peer);
  }
  const LaneCounters& counters() const override { return counters_; }

  // The test's side.
  void complete(u64 wr_id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    completions_.add(wr_id);
  }
  void deliver(u32 immediate, u32 peer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    arrivals_.add({immediate, peer});
  }
  void report(PeerEvent event) {
    const std::lock_guard<std::mutex> lock(mutex_);
    events_.add(event);
  }
  void set_room(std::size_t writes) {  // how many more writes the lane takes
    const std::lock_guard<std::mutex> lock(mutex_);
    room_ = writes;
  }
  void set_echo(bool echo) {  // complete every write as it is posted
    const std::lock_guard<std::mutex> lock(mutex_);
    echo_ = echo;
  }
  std::vector<WriteRequest> posted() const {  // whatever the doorbell has been rung for
    const std::lock_guard<std::mutex> lock(mutex_);
    return {posted_.begin(), posted_.begin() + static_cast<std::ptrdiff_t>(flushed_)};
  }
  std::size_t num_unflushed() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return posted_.size() - flushed_;
  }
  std::vector<u32> closed() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return closed_;
  }
  u64 dropped() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return dropped_;
  }
  std::vector<WriteRequest> take_posted() {  // what was flushed since the last call
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto end = posted_.begin() + static_cast<std::ptrdiff_t>(flushed_);
    const std::vector<WriteRequest> taken(posted_.begin(), end);
    posted_.erase(posted_.begin(), end);
    flushed_ = 0;
    return taken;
  }
  void forget_posted() {
    const std::lock_guard<std::mutex> lock(mutex_);
    posted_.clear();
    flushed_ = 0;
  }

 private:
  bool is_closed(u32 peer) const { return std::find(closed_.begin(), closed_.end(), peer) != closed_.end(); }

  mutable std::mutex mutex_;
  std::vector<WriteRequest> posted_;
  std::vector<u32> closed_;
  Script<u64> completions_;
  Script<Arrival> arrivals_;
  Script<PeerEvent> events_;
  std::size_t room_ = ~std::size_t{0}, flushed_ = 0;
  u64 dropped_ = 0;
  bool echo_ = false;
  LaneCounters counters_;
};

class FakeTransport : public Transport {
 public:
  explicit FakeTransport(u32 num_lanes) {
    for (u32 i = 0; i < num_lanes; ++i) lanes_.push_back(std::make_unique<FakeLane>());
  }
  const char* family() const override { return "fake"; }
  std::string local_address() override { return "fake"; }
  void connect(const std::vector<std::string>&) override {}
  Lane& lane(u32 index) override { return *lanes_.at(index); }
  FakeLane& fake(u32 index) { return *lanes_.at(index); }

 private:
  std::vector<std::unique_ptr<FakeLane>> lanes_;
};

}  // namespace uccl::testing

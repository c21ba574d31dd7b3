// What is on its way out of a lane: operations from a pool, queues of them by peer, and the peers that want attention.
// Nothing here allocates after construction. Used by the lane's own thread only.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "transport/peer_ring.h"
#include "transport/transport.h"

namespace uccl {

// One request, or one record for a mailbox. Its address is what the provider gets as context, so it stays where it is
// until the last piece has completed.
struct Operation {
  u64 provider_context[8];  // the provider's while a piece is on its way (fi_context2); first, so that it is aligned
  const u8* source;
  u64 remote_address, key;
  u64 bytes, given;  // `given` of them have been handed to the provider
  u64 wr_id;
  u32 immediate, peer;
  u32 next;         // in a queue or in the list of free ones
  u32 pieces_open;  // handed to the provider and not yet completed
  u16 record;       // GreetingKind of a record; 0: a request
  bool complete_given;  // the last piece, with the immediate, is with the provider
  bool dropped;         // its peer is gone: freed when the last piece completes, and not reported
};

inline constexpr u32 kNoOperation = ~0u;

// Memory is taken lazily from the system: a pool for 4,096 peers costs what is used of it.
class OperationPool {
 public:
  explicit OperationPool(u32 capacity)
      : operations_(static_cast<Operation*>(std::calloc(capacity, sizeof(Operation)))), capacity_(capacity) {
    if (!operations_) throw std::bad_alloc();
  }
  u32 free() const { return capacity_ - used_; }
  u32 used() const { return used_; }
  Operation& operator[](u32 i) { return operations_.get()[i]; }
  u32 index(const Operation* o) const { return static_cast<u32>(o - operations_.get()); }
  bool owns(const void* p) const {
    const auto* o = static_cast<const Operation*>(p);
    return o >= operations_.get() && o < operations_.get() + high_;
  }
  u32 take() {  // kNoOperation when none is free; all but `provider_context` is zero
    u32 i = free_list_;
    if (i != kNoOperation)
      free_list_ = (*this)[i].next;
    else if (high_ < capacity_)
      i = high_++;
    else
      return kNoOperation;
    ++used_;
    (*this)[i] = Operation{};
    (*this)[i].next = kNoOperation;
    return i;
  }
  void give_back(u32 i) {
    (*this)[i].next = free_list_;
    free_list_ = i;
    --used_;
  }

 private:
  struct Free {
    void operator()(Operation* p) const { std::free(p); }
  };
  std::unique_ptr<Operation[], Free> operations_;
  u32 capacity_, used_ = 0, high_ = 0;  // operations from high_ on were never touched
  u32 free_list_ = kNoOperation;
};

// A first-in first-out list through Operation::next.
struct OperationQueue {
  u32 head = kNoOperation, tail = kNoOperation;
  bool empty() const { return head == kNoOperation; }
  void push(OperationPool& pool, u32 i) {
    pool[i].next = kNoOperation;
    if (empty())
      head = i;
    else
      pool[tail].next = i;
    tail = i;
  }
  void push_front(OperationPool& pool, u32 i) {
    pool[i].next = head;
    if (empty()) tail = i;
    head = i;
  }
  u32 pop(OperationPool& pool) {
    const u32 i = head;
    head = pool[i].next;
    return i;
  }
};

// Arrivals between the completion queue and the caller. Bounded: who reads the queue asks for room first.
class ArrivalBuffer {
 public:
  explicit ArrivalBuffer(u32 capacity) : slots_(capacity) {}
  std::size_t room() const { return slots_.size() - size_; }
  bool empty() const { return size_ == 0; }
  void push(Arrival a) { slots_[(head_ + size_++) % slots_.size()] = a; }  // only when room() != 0
  Arrival pop() {
    const Arrival a = slots_[head_];
    head_ = (head_ + 1) % slots_.size();
    --size_;
    return a;
  }
  // Control path: room for at least so many more, in the same order.
  void make_room(std::size_t wanted) {
    if (room() >= wanted) return;
    std::vector<Arrival> larger(2 * slots_.size() + wanted);
    const std::size_t n = size_;
    for (std::size_t i = 0; i < n; ++i) larger[i] = pop();
    slots_ = std::move(larger);
    head_ = 0;
    size_ = n;
  }

 private:
  std::vector<Arrival> slots_;
  std::size_t head_ = 0, size_ = 0;
};

}  // namespace uccl

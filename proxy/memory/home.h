// The process that something was made in. A child of fork() has the memory of its parent and none of its threads: what
// waits for such a thread there waits for ever, and what ends a connection there ends it for the parent too.
#pragma once
#include <memory>
#include <utility>

#include "wire/types.h"

namespace uccl {

class Home {
 public:
  bool here() const { return forks_ == forks(); }  // false in every child that fork() has made since

 private:
  static u64 forks();  // on the way from the first process to this one, since this library was loaded
  u64 forks_ = forks();
};

// A deleter that leaves what it is given as it is, in a process that did not make it.
struct DeleteAtHome {
  Home home;
  template <class T>
  void operator()(T* p) const {
    if (home.here()) delete p;
  }
};

// Owns what has threads, locks or connections of this process.
template <class T>
using HomePtr = std::unique_ptr<T, DeleteAtHome>;

template <class T, class... Args>
HomePtr<T> make_at_home(Args&&... args) {
  return HomePtr<T>(new T(std::forward<Args>(args)...));
}

}  // namespace uccl

// Streams and events as Python holds them: in a child of fork(), which lacks the streams' threads, every use of them
// throws, and their ends are without effect.
#pragma once
#include <stdexcept>
#include <utility>

#include "kernels/host/stream.h"
#include "memory/home.h"

namespace uccl {

template <class T>
class AtHome {
 public:
  explicit AtHome(T* value) : value_(value) {}
  T& get() const {
    if (!value_.get_deleter().home.here())
      throw std::logic_error("a stream and its events belong to the process that made them");
    return *value_;
  }

 private:
  HomePtr<T> value_;
};

using HostStream = AtHome<simt::Stream>;
using HostEvent = AtHome<simt::Event>;

}  // namespace uccl

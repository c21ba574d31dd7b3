// Whether a NIC registers a dma-buf: tried with a small one, since neither its driver nor libibverbs says so.
#pragma once
#include <string>

#include "transport/verbs/library.h"

namespace uccl {

struct DmabufTrial {
  int fd = -1;
  u64 bytes = 0, address = 0;  // where the bytes are for the device that exported them
};

// Why the device refuses; empty: it takes it. Nothing stays open or registered.
std::string why_no_dmabuf(const ibv::Functions& functions, const std::string& device, const DmabufTrial& trial);

}  // namespace uccl

// The kernel's side of /dev/infiniband/uverbs*: commands as libibverbs sends them through ioctl().
#pragma once
#include "providers/native/device.h"

struct ib_uverbs_ioctl_hdr;

namespace box {

struct Context {  // an open file
  Device* device = nullptr;
  std::array<int, 2> events{-1, -1};  // asynchronous ones: the library's end, ours
};

// 0 or an errno, as the kernel says it.
int answer_ioctl(Context& context, ib_uverbs_ioctl_hdr* header);
// Says which objects the program left, as they would keep memory pinned, and takes them away.
void close_context(Context& context);

}  // namespace box

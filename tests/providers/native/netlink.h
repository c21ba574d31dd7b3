// What the kernel says of RDMA devices through netlink. libibverbs asks there first, and finds the newest drivers by it only.
#pragma once

namespace box {

// Forgets a socket of it that is closed.
void close_netlink(int fd);

}  // namespace box

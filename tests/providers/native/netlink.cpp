// Answers of three kinds: the devices, the file of one, and whether memory is copied when a process forks.
#include "providers/native/netlink.h"

#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>
#include <sys/socket.h>

#include "providers/native/box.h"
#include "providers/native/device.h"
#include "providers/native/next.h"

namespace {

using namespace box;

struct Socket {
  sockaddr_nl local{};
  std::deque<std::vector<u8>> answers;
};
std::mutex sockets_mutex;

std::map<int, Socket>& sockets() {
  static auto& s = *new std::map<int, Socket>;
  return s;
}

// With the mutex held.
Socket* socket_of(int fd) {
  const auto found = sockets().find(fd);
  return found == sockets().end() ? nullptr : &found->second;
}

class Answer {
 public:
  Answer(const nlmsghdr& asked, u32 type, u32 flags = 0) : bytes_(NLMSG_HDRLEN) {
    header_ = {0, static_cast<u16>(type), static_cast<u16>(flags), asked.nlmsg_seq, asked.nlmsg_pid};
  }
  void add(u32 attribute, const void* value, std::size_t size) {
    const nlattr head{static_cast<u16>(NLA_HDRLEN + size), static_cast<u16>(attribute)};
    append(&head, sizeof(head));
    append(value, size);
    bytes_.resize(NLMSG_ALIGN(bytes_.size()));
  }
  template <class T>
  void add(u32 attribute, T value) {
    add(attribute, &value, sizeof(value));
  }
  void add(u32 attribute, const std::string& text) { add(attribute, text.c_str(), text.size() + 1); }
  template <class T>
  void append(const T* value, std::size_t size) {
    const auto* from = reinterpret_cast<const u8*>(value);
    bytes_.insert(bytes_.end(), from, from + size);
  }
  std::vector<u8> finish() {
    header_.nlmsg_len = static_cast<u32>(bytes_.size());
    std::memcpy(bytes_.data(), &header_, sizeof(header_));
    return bytes_;
  }

 private:
  nlmsghdr header_;
  std::vector<u8> bytes_;
};

// An attribute of a request; ~0: it has none.
u32 number_in(const nlmsghdr& asked, u32 attribute) {
  const auto* bytes = reinterpret_cast<const u8*>(&asked);
  for (u32 at = NLMSG_HDRLEN; at + NLA_HDRLEN <= asked.nlmsg_len;) {
    nlattr head;
    std::memcpy(&head, bytes + at, sizeof(head));
    u32 value = 0;
    std::memcpy(&value, bytes + at + NLA_HDRLEN, sizeof(value));
    if (head.nla_type == attribute) return value;
    at += std::max<u32>(NLMSG_ALIGN(head.nla_len), NLA_HDRLEN);
  }
  return ~0u;
}

void answer(const nlmsghdr& asked, std::deque<std::vector<u8>>& to) {
  const u32 type = asked.nlmsg_type;
  if (type == RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET)) {
    for (const auto& d : devices()) {
      Answer a(asked, type, NLM_F_MULTI);
      a.add(RDMA_NLDEV_ATTR_DEV_INDEX, d->index());
      a.add(RDMA_NLDEV_ATTR_DEV_NAME, d->name());
      a.add(RDMA_NLDEV_ATTR_PORT_INDEX, 1u);
      a.add(RDMA_NLDEV_ATTR_NODE_GUID, u64{0x0100} + d->index());
      a.add(RDMA_NLDEV_ATTR_DEV_NODE_TYPE, static_cast<u8>(d->identity().node_type));
      to.push_back(a.finish());
    }
    Answer end(asked, NLMSG_DONE, NLM_F_MULTI);
    const int none = 0;
    end.append(&none, sizeof(none));
    return to.push_back(end.finish());
  }
  const u32 index = number_in(asked, RDMA_NLDEV_ATTR_DEV_INDEX);
  if (type == RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET_CHARDEV) && index < devices().size()) {
    const Identity& id = devices()[index]->identity();
    Answer a(asked, type);
    a.add(RDMA_NLDEV_ATTR_CHARDEV, u64{kMajor} << 8 | (kFirstMinor + index));
    a.add(RDMA_NLDEV_ATTR_CHARDEV_ABI, u64{id.abi});
    a.add(RDMA_NLDEV_ATTR_CHARDEV_NAME, "uverbs" + std::to_string(index));
    a.add(RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID, id.driver);
    return to.push_back(a.finish());
  }
  if (type == RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_SYS_GET)) {
    Answer a(asked, type);
    a.add(RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK, u8{1});
    return to.push_back(a.finish());
  }
  Answer refused(asked, NLMSG_ERROR);
  const nlmsgerr error{-EOPNOTSUPP, asked};
  refused.append(&error, sizeof(error));
  to.push_back(refused.finish());
}

}  // namespace

void box::close_netlink(int fd) {
  const std::lock_guard lock(sockets_mutex);
  sockets().erase(fd);
}

// A socket of another kind stands for it, whose number and options are as good.
EXPORTED int socket(int domain, int type, int protocol) noexcept {
  NEXT(socket);
  if (domain != AF_NETLINK || protocol != NETLINK_RDMA) return real(domain, type, protocol);
  const int fd = real(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const std::lock_guard lock(sockets_mutex);
  if (fd >= 0) sockets()[fd].local.nl_family = AF_NETLINK;
  return fd;
}

EXPORTED int bind(int fd, const sockaddr* address, socklen_t bytes) noexcept {
  NEXT(bind);
  {
    const std::lock_guard lock(sockets_mutex);
    if (Socket* s = socket_of(fd); s != nullptr) {
      std::memcpy(&s->local, address, std::min<std::size_t>(bytes, sizeof(s->local)));
      return 0;
    }
  }
  return real(fd, address, bytes);
}

EXPORTED int getsockname(int fd, sockaddr* address, socklen_t* bytes) noexcept {
  NEXT(getsockname);
  {
    const std::lock_guard lock(sockets_mutex);
    if (const Socket* s = socket_of(fd); s != nullptr) {
      std::memcpy(address, &s->local, std::min<std::size_t>(*bytes, sizeof(s->local)));
      *bytes = sizeof(s->local);
      return 0;
    }
  }
  return real(fd, address, bytes);
}

EXPORTED ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  NEXT(sendmsg);
  {
    const std::lock_guard lock(sockets_mutex);
    if (Socket* s = socket_of(fd); s != nullptr) {
      const iovec& all = message->msg_iov[0];  // libnl sends a request in one piece
      answer(*static_cast<const nlmsghdr*>(all.iov_base), s->answers);
      return static_cast<ssize_t>(all.iov_len);
    }
  }
  return real(fd, message, flags);
}

EXPORTED ssize_t recvmsg(int fd, msghdr* message, int flags) {
  NEXT(recvmsg);
  {
    const std::lock_guard lock(sockets_mutex);
    if (Socket* s = socket_of(fd); s != nullptr) {
      if (s->answers.empty()) return 0;
      const std::vector<u8> next = std::move(s->answers.front());
      s->answers.pop_front();
      const std::size_t bytes = std::min(next.size(), message->msg_iov[0].iov_len);
      std::memcpy(message->msg_iov[0].iov_base, next.data(), bytes);
      sockaddr_nl kernel{};
      kernel.nl_family = AF_NETLINK;
      std::memcpy(message->msg_name, &kernel, std::min<std::size_t>(message->msg_namelen, sizeof(kernel)));
      message->msg_namelen = sizeof(kernel);
      message->msg_controllen = 0;
      message->msg_flags = 0;
      return static_cast<ssize_t>(bytes);
    }
  }
  return real(fd, message, flags);
}

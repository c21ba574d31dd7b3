// Functions of the C library as libibverbs and its providers call them: a program's own come before the C library's, so
// what is asked of /dev/infiniband/uverbs* comes here, and everything else goes on.
#include <dirent.h>
#include <fcntl.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <map>

#include "providers/native/box.h"
#include "providers/native/commands.h"
#include "providers/native/doorbell.h"
#include "providers/native/netlink.h"
#include "providers/native/next.h"

namespace {

using namespace box;

constexpr char kFolder[] = "/dev/infiniband/uverbs";

// Never destroyed, like the devices: libfabric closes its own behind the program's end.
std::map<int, Context>& files() {
  static auto& f = *new std::map<int, Context>;
  return f;
}
std::mutex& files_mutex() {
  static std::mutex m;
  return m;
}

Context* context_of(int fd) {
  const std::lock_guard lock(files_mutex());
  const auto found = files().find(fd);
  return found == files().end() ? nullptr : &found->second;
}

Device* named(const char* path) {
  if (path == nullptr || std::strncmp(path, kFolder, sizeof(kFolder) - 1) != 0) return nullptr;
  const std::size_t index = static_cast<std::size_t>(std::atoi(path + sizeof(kFolder) - 1));
  return index < devices().size() ? devices()[index].get() : nullptr;
}

void describe(const Device& d, struct stat* s) {
  s->st_mode = S_IFCHR | 0666;
  s->st_rdev = makedev(kMajor, kFirstMinor + d.index());
}

int refuse(int error) {
  if (error == 0) return 0;
  errno = error;
  return -1;
}

}  // namespace

EXPORTED int open(const char* path, int flags, ...) {
  NEXT(open);
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : mode_t{0};
  va_end(arguments);
  Device* d = named(path);
  if (d == nullptr) return real(path, flags, mode);
  const int fd = fcntl(d->file(), F_DUPFD_CLOEXEC, 0);
  const std::lock_guard lock(files_mutex());
  if (fd >= 0) files()[fd].device = d;
  return fd;
}

EXPORTED int close(int fd) {
  NEXT(close);
  Context gone;
  {
    const std::lock_guard lock(files_mutex());
    if (const auto found = files().find(fd); found != files().end()) {
      gone = found->second;
      files().erase(found);
    }
  }
  if (gone.device != nullptr) close_context(gone);
  close_netlink(fd);
  return real(fd);
}

EXPORTED int stat(const char* path, struct stat* s) noexcept {
  NEXT(stat);
  const Device* d = named(path);
  if (d == nullptr) return real(path, s);
  *s = {};
  describe(*d, s);
  return 0;
}

EXPORTED int fstat(int fd, struct stat* s) noexcept {
  NEXT(fstat);
  const int result = real(fd, s);
  if (const Context* c = context_of(fd); result == 0 && c != nullptr) describe(*c->device, s);
  return result;
}

EXPORTED int ioctl(int fd, unsigned long request, ...) noexcept {
  NEXT(ioctl);
  va_list arguments;
  va_start(arguments, request);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  Context* c = request == RDMA_VERBS_IOCTL ? context_of(fd) : nullptr;
  return c == nullptr ? real(fd, request, argument)
                      : refuse(answer_ioctl(*c, static_cast<ib_uverbs_ioctl_hdr*>(argument)));
}

EXPORTED void* mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  NEXT(mmap);
  Context* c = fd < 0 ? nullptr : context_of(fd);
  if (c == nullptr) return real(address, bytes, protection, flags, fd, offset);
  const std::lock_guard lock(mutex());
  const long long at = c->device->provider().mapped(*c->device, static_cast<u64>(offset), bytes);
  if (at < 0) {
    errno = EINVAL;
    return MAP_FAILED;
  }
  void* made = real(address, bytes, protection | PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);
  if (made != MAP_FAILED && c->device->provider().is_register(static_cast<u64>(offset))) watch(made, bytes, *c->device);
  return made;
}

EXPORTED int munmap(void* address, size_t bytes) noexcept {
  NEXT(munmap);
  forget(address);
  return real(address, bytes);
}

// The list of drivers to load: only the one that is tried is named, by an environment variable.
EXPORTED DIR* opendir(const char* path) {
  NEXT(opendir);
  return real(std::strcmp(path, "/etc/libibverbs.d") == 0 ? empty_folder() : path);
}

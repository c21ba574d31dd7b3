// Shared segments: a memfd that is sealed against shrinking, so no peer can turn a mapped page into a bus error.
#include "memory/segment.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <set>
#include <stdexcept>
#include <system_error>

namespace uccl {
namespace {

// A descriptor until it is handed to the Segment that then owns it.
struct Descriptor {
  int fd;
  explicit Descriptor(int f) : fd(f) {}
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int release() {
    const int f = fd;
    fd = -1;
    return f;
  }
};

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

std::size_t whole_pages(std::size_t bytes, const std::string& what) {
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  if (bytes == 0 || bytes > static_cast<std::size_t>(-1) / 2) {
    fail(EINVAL, what + ": " + std::to_string(bytes) + " bytes cannot be mapped");
  }
  return (bytes + page - 1) / page * page;
}

constexpr std::size_t kReserved = std::size_t{1} << 32;  // from here on mostly address space

void* map_shared(int fd, std::size_t bytes, const std::string& what) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) fail(errno, what + ": mmap of " + std::to_string(bytes) + " bytes");
  // A core dump reads shared pages that were never written too, and so takes memory for all that is only reserved.
  if (bytes >= kReserved) madvise(data, bytes, MADV_DONTDUMP);
  return data;
}

void demand_size(int fd, std::size_t bytes, const std::string& what) {
  struct stat s{};
  if (fstat(fd, &s) != 0) fail(errno, what + ": fstat");
  if (!S_ISREG(s.st_mode)) throw std::runtime_error(what + " is not a memory file");
  if (static_cast<std::size_t>(s.st_size) < bytes) {
    throw std::runtime_error(what + " has " + std::to_string(s.st_size) + " bytes, " + std::to_string(bytes) +
                             " are needed");
  }
}

}  // namespace

// All segments of this process. A fork waits until nobody changes the set, so that its child finds it whole.
struct Mapped {
  std::mutex mutex;
  std::set<Segment*> segments;

  Mapped() {
    pthread_atfork([] { Segment::mapped().mutex.lock(); }, [] { Segment::mapped().mutex.unlock(); }, part_all);
  }
  static void part_all() {
    Mapped& all = Segment::mapped();
    for (Segment* segment : all.segments) segment->part();
    all.mutex.unlock();
  }
};

Mapped& Segment::mapped() {
  static Mapped& all = *new Mapped();  // for ever: segments may outlive whatever ends with the process
  return all;
}

Segment::Segment(int fd, void* data, std::size_t bytes) : fd_(fd), data_(data), bytes_(bytes) {
  const std::lock_guard<std::mutex> lock(mapped().mutex);
  mapped().segments.insert(this);
}

// The child's pages become private where they are. Where the system does not promise memory for that, they can still be
// read: a write then ends the child, and is no write to the parent's rows.
void Segment::part() {
  if (!shared_) return;  // since an earlier fork: what was written since would be lost
  shared_ = false;
  const int flags = MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED;
  if (fd_ < 0 ? copy() : mmap(data_, bytes_, PROT_READ | PROT_WRITE, flags, fd_, 0) != MAP_FAILED) return;
  mprotect(data_, bytes_, PROT_READ);
}

// What is only mapped has no descriptor to map it anew with: words that ranks share are copied, rows are too many.
bool Segment::copy() {
  if (bytes_ > kCopied) return false;
  void* const own = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (own == MAP_FAILED) return false;
  std::memcpy(own, data_, bytes_);
  return mremap(own, bytes_, bytes_, MREMAP_MAYMOVE | MREMAP_FIXED, data_) != MAP_FAILED;
}

std::shared_ptr<Segment> Segment::create(const std::string& name, std::size_t bytes) {
  const std::string what = "segment " + name;
  const std::size_t size = whole_pages(bytes, what);
  Descriptor d(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (d.fd < 0) fail(errno, what + ": memfd_create");
  if (ftruncate(d.fd, static_cast<off_t>(size)) != 0) fail(errno, what + ": ftruncate to " + std::to_string(size));
  if (fcntl(d.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) fail(errno, what + ": F_ADD_SEALS");
  void* data = map_shared(d.fd, size, what);
  return std::shared_ptr<Segment>(new Segment(d.release(), data, size));
}

std::shared_ptr<Segment> Segment::open(int pid, int fd, std::size_t bytes) {
  const std::string what = "segment of pid " + std::to_string(pid) + " fd " + std::to_string(fd);
  const std::size_t size = whole_pages(bytes, what);
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  // O_NONBLOCK: the number may by now name a pipe, whose open would wait for a writer.
  Descriptor d(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (d.fd < 0) fail(errno, what + ": open " + path);
  demand_size(d.fd, bytes, what);
  const int seals = fcntl(d.fd, F_GET_SEALS);
  if (seals < 0 || !(seals & F_SEAL_SHRINK)) {
    throw std::runtime_error(what + " is not sealed against shrinking: its owner could cut the mapping off");
  }
  return std::shared_ptr<Segment>(new Segment(-1, map_shared(d.fd, size, what), size));
}

std::shared_ptr<Segment> Segment::map(int fd, std::size_t bytes) {
  const std::string what = "segment fd " + std::to_string(fd);
  const std::size_t size = whole_pages(bytes, what);
  if (fd >= 0) {
    const std::lock_guard<std::mutex> lock(mapped().mutex);
    for (Segment* own : mapped().segments)
      if (own->fd_ == fd && own->bytes_ >= size)
        if (std::shared_ptr<Segment> alive = own->weak_from_this().lock()) return alive;
  }
  demand_size(fd, bytes, what);
  return std::shared_ptr<Segment>(new Segment(-1, map_shared(fd, size, what), size));
}

std::shared_ptr<Segment> Segment::adopt(int fd, std::size_t bytes) {
  const std::string what = "inherited segment fd " + std::to_string(fd);
  Descriptor d(fd);
  const std::size_t size = whole_pages(bytes, what);
  demand_size(d.fd, bytes, what);
  void* data = map_shared(d.fd, size, what);
  return std::shared_ptr<Segment>(new Segment(d.release(), data, size));
}

bool Segment::give_back(std::size_t offset, std::size_t bytes) {
  if (fd_ < 0 || offset > bytes_ || bytes > bytes_ - offset || !home_.here()) return false;
  return fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                   static_cast<off_t>(bytes)) == 0;
}

bool Segment::prefer_node(u32 node) {
  constexpr int kPreferred = 1;  // MPOL_PREFERRED; <linux/mempolicy.h> is not everywhere
  constexpr unsigned long kBits = 8 * sizeof(unsigned long);
  unsigned long nodes[16] = {};
  if (node >= 16 * kBits - 1) return false;
  nodes[node / kBits] = 1ul << node % kBits;
  return syscall(SYS_mbind, data_, bytes_, kPreferred, nodes, 16 * kBits, 0u) == 0;
}

Segment::~Segment() {
  {
    const std::lock_guard<std::mutex> lock(mapped().mutex);
    mapped().segments.erase(this);
  }
  munmap(data_, bytes_);
  if (fd_ >= 0) close(fd_);
}

}  // namespace uccl

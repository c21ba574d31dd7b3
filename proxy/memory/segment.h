// A span of memory that other processes can map: a memfd, so nothing is left behind whatever kills its owner. In a child
// of fork() what was mapped before becomes the child's own as it writes to it: nobody else sees what it writes. What is
// only mapped, since it is another's, is copied for the child up to kCopied bytes; larger ones it can read.
#pragma once
#include <cstddef>
#include <memory>
#include <string>

#include "memory/home.h"
#include "wire/types.h"

namespace uccl {

class Segment : public std::enable_shared_from_this<Segment> {
 public:
  static constexpr std::size_t kCopied = std::size_t{1} << 20;
  // A new zeroed segment of `bytes` (rounded up to pages). Throws std::system_error.
  static std::shared_ptr<Segment> create(const std::string& name, std::size_t bytes);
  // Maps a segment of a process on this host and in this pid namespace, through /proc/<pid>/fd/<fd>, and keeps no
  // descriptor of it. Throws std::system_error naming pid, fd and errno; std::runtime_error when it is smaller.
  static std::shared_ptr<Segment> open(int pid, int fd, std::size_t bytes);
  // Maps what a descriptor stands for, which stays the caller's. The segment of this process that owns it, if there is one.
  static std::shared_ptr<Segment> map(int fd, std::size_t bytes);
  // Maps an inherited descriptor (takes ownership of it).
  static std::shared_ptr<Segment> adopt(int fd, std::size_t bytes);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // Gives whole pages within [offset, offset + bytes) back to the system; they read as zeros again. False: it refused,
  // it is only mapped, or this is a child of fork(), whose parent uses them.
  bool give_back(std::size_t offset, std::size_t bytes);

  // Pages that are first used from now on come from this NUMA node while it has some, whoever uses them. False: the
  // system refuses, or there is no such node.
  bool prefer_node(u32 node);

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  int fd() const { return fd_; }  // -1: it is only mapped

 private:
  Segment(int fd, void* data, std::size_t bytes);
  static struct Mapped& mapped();
  void part();  // in a child of fork()
  bool copy();  // likewise

  int fd_;
  void* data_;
  std::size_t bytes_;
  Home home_;
  bool shared_ = true;  // with other processes
  friend struct Mapped;
};

}  // namespace uccl

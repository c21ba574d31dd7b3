// Segments: shared through /proc, sealed, refused when they are not what they should be; gone with their last holder.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <system_error>

#include "memory/segment.h"
#include "native/check.h"
#include "wire/types.h"

namespace {

using uccl::Segment;

std::string error_of(int pid, int fd, std::size_t bytes, int* code = nullptr) {
  try {
    Segment::open(pid, fd, bytes);
  } catch (const std::system_error& e) {
    if (code) *code = e.code().value();
    return e.what();
  } catch (const std::runtime_error& e) {
    if (code) *code = 0;
    return e.what();
  }
  return "";
}

}  // namespace

// Where the system has no such notion, or forbids it, nothing is different.
TEST(memory_segment_prefers_a_numa_node_where_there_is_one) {
  const auto segment = Segment::create("near", 1 << 16);
  const bool granted = segment->prefer_node(0);
  int policy = -1;
  unsigned long nodes[16] = {};
  constexpr unsigned long kOfAddress = 2;  // MPOL_F_ADDR
  const bool known = syscall(SYS_get_mempolicy, &policy, nodes, 16 * 64, segment->data(), kOfAddress) == 0;
  if (granted && known) {
    CHECK_EQ(policy, 1);  // MPOL_PREFERRED
    CHECK_EQ(nodes[0], 1ul);
  }
  std::memset(segment->data(), 7, segment->bytes());
  CHECK(!segment->prefer_node(1 << 20));
  CHECK(!segment->prefer_node(1023));
}

TEST(memory_segment_is_zeroed_and_whole_pages) {
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  for (const std::size_t bytes : {std::size_t{1}, page - 1, page, page + 1, 17 * page + 5}) {
    auto s = Segment::create("test", bytes);
    CHECK_EQ(s->bytes() % page, 0u);
    CHECK(s->bytes() >= bytes && s->bytes() < bytes + page);
    const auto* p = static_cast<const unsigned char*>(s->data());
    for (std::size_t i = 0; i < s->bytes(); ++i) CHECK_EQ(static_cast<int>(p[i]), 0);
  }
  CHECK_THROWS(std::system_error, Segment::create("test", 0));
  CHECK_THROWS(std::system_error, Segment::create("test", ~std::size_t{0}));
}

TEST(memory_segment_is_shared_by_two_mappings) {
  auto a = Segment::create("test", 10000);
  auto b = Segment::open(getpid(), a->fd(), 10000);
  CHECK(a->data() != b->data());
  std::strcpy(static_cast<char*>(a->data()) + 9000, "seen");
  CHECK_EQ(std::string(static_cast<char*>(b->data()) + 9000), std::string("seen"));
  a.reset();  // the other mapping lives on
  CHECK_EQ(std::string(static_cast<char*>(b->data()) + 9000), std::string("seen"));
}

TEST(memory_segment_is_shared_with_another_process) {
  auto a = Segment::create("test", 4096);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    try {
      auto b = Segment::open(parent, a->fd(), 4096);
      std::strcpy(static_cast<char*>(b->data()), "from the child");
      _exit(0);
    } catch (...) { _exit(1); }
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK_EQ(std::string(static_cast<char*>(a->data())), std::string("from the child"));
}

TEST(memory_segment_cannot_be_resized) {
  auto a = Segment::create("test", 8192);
  for (const off_t size : {off_t{0}, off_t{4096}, off_t{1 << 20}}) { CHECK_EQ(ftruncate(a->fd(), size), -1); }
}

TEST(memory_segment_closes_on_exec) {
  auto a = Segment::create("test", 4096);
  CHECK(fcntl(a->fd(), F_GETFD) & FD_CLOEXEC);
}

TEST(memory_segment_open_refuses_and_names_what_it_tried) {
  int code = 0;
  std::string e = error_of(getpid(), 9999, 4096, &code);
  CHECK(e.find("fd 9999") != std::string::npos && e.find(std::to_string(getpid())) != std::string::npos);
  CHECK_EQ(code, ENOENT);
  auto a = Segment::create("test", 4096);
  e = error_of(getpid(), a->fd(), 4097);
  CHECK(e.find("4096") != std::string::npos && e.find("4097") != std::string::npos);
  CHECK(!error_of(getpid(), a->fd(), 0).empty());
  int ends[2];
  CHECK_EQ(pipe(ends), 0);
  CHECK(!error_of(getpid(), ends[0], 4096).empty());  // and does not wait for a writer
  close(ends[0]);
  close(ends[1]);
  const int unsealed = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK_EQ(ftruncate(unsealed, 4096), 0);
  e = error_of(getpid(), unsealed, 4096);
  CHECK(e.find("sealed") != std::string::npos);
  close(unsealed);
}

TEST(memory_segment_adopts_a_descriptor) {
  auto a = Segment::create("test", 4096);
  std::strcpy(static_cast<char*>(a->data()), "kept");
  const int fd = dup(a->fd());
  {
    auto b = Segment::adopt(fd, 4096);
    CHECK_EQ(std::string(static_cast<char*>(b->data())), std::string("kept"));
    CHECK_EQ(b->fd(), fd);
  }
  CHECK_EQ(fcntl(fd, F_GETFD), -1);  // owned, so closed with it
  const int small = dup(a->fd());
  CHECK_THROWS(std::runtime_error, Segment::adopt(small, 5000));
  CHECK_EQ(fcntl(small, F_GETFD), -1);
}

TEST(memory_segment_maps_nothing_twice_that_its_process_owns) {
  auto a = Segment::create("test", 4096);
  CHECK(Segment::map(a->fd(), 4096) == a);
  const int copy = dup(a->fd());
  CHECK(Segment::map(copy, 4096) != a);  // the same memory, but another's to close
  close(copy);
}

TEST(memory_segment_that_is_only_mapped_has_no_descriptor) {
  auto a = Segment::create("test", 2 * 4096);
  const int copy = dup(a->fd()), next = dup(copy);
  close(next);
  const std::shared_ptr<Segment> mapped[] = {Segment::map(copy, 4097), Segment::open(getpid(), copy, 4097)};
  const int after = dup(copy);
  close(after);
  CHECK_EQ(after, next);
  for (const auto& b : mapped) {
    CHECK_EQ(b->fd(), -1);
    CHECK_EQ(b->bytes(), 2u * 4096);
    CHECK(!b->give_back(0, 4096));
  }
  std::strcpy(static_cast<char*>(mapped[0]->data()), "seen");
  CHECK_EQ(std::string(static_cast<char*>(mapped[1]->data())), std::string("seen"));
  CHECK_THROWS(std::runtime_error, Segment::map(copy, 3 * 4096));
  close(copy);
  CHECK_THROWS(std::system_error, Segment::map(9999, 4096));
}

// A child's write to another's memory is none: what is small it has copied, what is large it can only read.
TEST(memory_segment_that_is_only_mapped_can_be_read_in_a_child) {
  for (const std::size_t bytes : {std::size_t{4096}, Segment::kCopied + 1}) {
    auto a = Segment::create("test", bytes);
    const int copy = dup(a->fd());
    auto b = Segment::map(copy, bytes);
    close(copy);
    std::strcpy(static_cast<char*>(a->data()), "seen");
    for (const bool writes : {false, true}) {
      const pid_t child = fork();
      if (child == 0) {
        signal(SIGSEGV, SIG_DFL);  // a sanitizer has a handler
        if (std::string(static_cast<char*>(b->data())) != "seen") _exit(1);
        if (writes) static_cast<volatile char*>(b->data())[0] = 'x';
        _exit(std::string(static_cast<char*>(b->data())) == (writes ? "xeen" : "seen") ? 0 : 1);
      }
      int status = 0;
      CHECK_EQ(waitpid(child, &status, 0), child);
      const bool ends = writes && bytes > Segment::kCopied;
      CHECK(ends ? WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV : WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    CHECK_EQ(std::string(static_cast<char*>(a->data())), std::string("seen"));
  }
}

TEST(memory_segment_gives_pages_back) {
  auto a = Segment::create("test", 16 * 4096);
  auto b = Segment::open(getpid(), a->fd(), 16 * 4096);
  char* const bytes = static_cast<char*>(a->data());
  std::memset(bytes, 7, 16 * 4096);
  CHECK(a->give_back(4096, 2 * 4096));
  CHECK_EQ(bytes[4095], 7);
  CHECK_EQ(bytes[4096], 0);
  CHECK_EQ(static_cast<char*>(b->data())[3 * 4096 - 1], 0);  // for whoever maps it
  CHECK_EQ(static_cast<char*>(b->data())[3 * 4096], 7);
  CHECK(!a->give_back(4096, 16 * 4096));  // beyond its end
  CHECK(!a->give_back(17 * 4096, 0));
}

TEST(memory_segment_of_mere_address_space_is_in_no_core_dump) {
  const auto dumped = [](const Segment& segment) {
    std::ostringstream address;
    address << std::hex << reinterpret_cast<std::uintptr_t>(segment.data()) << "-";
    std::ifstream maps("/proc/self/smaps");
    std::string line;
    while (std::getline(maps, line) && line.rfind(address.str(), 0) != 0) continue;
    while (std::getline(maps, line) && line.rfind("VmFlags:", 0) != 0) continue;
    CHECK(!line.empty());
    return line.find(" dd") == std::string::npos;
  };
  CHECK(dumped(*Segment::create("test", 4096)));
  const auto plain = Segment::create("test", 4096);
  madvise(plain->data(), 4096, MADV_DONTDUMP);
  if (dumped(*plain)) return;  // QEMU's user emulation takes no such advice
  CHECK(!dumped(*Segment::create("test", std::size_t{1} << 33)));
}

TEST(memory_segment_leaves_no_descriptor_behind) {
  const int before = dup(0);
  close(before);
  for (int i = 0; i < 50; ++i) {
    auto a = Segment::create("test", 4096);
    auto b = Segment::open(getpid(), a->fd(), 4096);
    error_of(getpid(), a->fd(), 1 << 20);
  }
  const int after = dup(0);
  close(after);
  CHECK_EQ(after, before);
}

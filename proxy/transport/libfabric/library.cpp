// Finds libfabric's functions by name. Never closed again: its providers leave threads and exit handlers behind.
#include "transport/libfabric/library.h"

#include <dlfcn.h>

#include <algorithm>
#include <stdexcept>

namespace uccl::fi {
namespace {

constexpr char kName[] = "libfabric.so.1";
constexpr char kAdvice[] =
    "; install libfabric 1.12 or newer (Debian, Ubuntu: libfabric1; others: libfabric), or put the folder of one into "
    "LD_LIBRARY_PATH";

template <class F>
void find(void* handle, const char* library, const char* name, F* function) {
  *function = reinterpret_cast<F>(dlsym(handle, name));
  if (*function == nullptr) {
    throw std::runtime_error(std::string("libfabric: ") + library + " has no function " + name + kAdvice);
  }
}

// What became of the one attempt to open the library.
struct Attempt {
  Library found{};
  std::string problem;
};

const Attempt& attempt() {
  static const Attempt once = [] {
    Attempt a;
    try {
      a.found = open_library(kName);
    } catch (const std::runtime_error& e) { a.problem = e.what(); }
    return a;
  }();
  return once;
}

}  // namespace

std::string version_text(u32 version) { return std::to_string(version >> 16) + "." + std::to_string(version & 0xffff); }

Library open_library(const char* name) {
  void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    throw std::runtime_error(std::string("libfabric: cannot open the library: ") + (why ? why : name) + kAdvice);
  }
  Library l{};
  u32 (*release)() = nullptr;
  find(handle, name, "fi_version", &release);
  find(handle, name, "fi_getinfo", &l.getinfo);
  find(handle, name, "fi_freeinfo", &l.freeinfo);
  find(handle, name, "fi_dupinfo", &l.dupinfo);
  find(handle, name, "fi_fabric", &l.open_fabric);
  l.release = release();
  l.api = std::min(l.release, kNewestApi);
  if (l.release < kOldestApi) {
    throw std::runtime_error(std::string("libfabric: ") + name + " is version " + version_text(l.release) +
                             ", at least " + version_text(kOldestApi) + " is needed" + kAdvice);
  }
  return l;
}

const Library& library() {
  if (!attempt().problem.empty()) throw std::runtime_error(attempt().problem);
  return attempt().found;
}

std::string library_problem() { return attempt().problem; }

}  // namespace uccl::fi

// Finding libefa and its functions.
#include "transport/efa/library.h"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace uccl::efadv {
namespace {

constexpr const char* kHint =
    "; install it (Debian and Ubuntu: ibverbs-providers; Amazon's EFA installer brings it: "
    "rdma-core)";

template <class F>
void find(void* handle, const char* file, F*& f, const char* name) {
  f = reinterpret_cast<F*>(dlsym(handle, name));
  if (f == nullptr) throw std::runtime_error(std::string("efa: ") + file + " has no " + name + kHint);
}

}  // namespace

Library::Library(const char* file) {
  void* handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    throw std::runtime_error(std::string("efa: cannot open ") + file + ": " + (why ? why : "unknown error") + kHint);
  }
  find(handle, file, functions_.query_device, "efadv_query_device");
  find(handle, file, functions_.create_qp_ex, "efadv_create_qp_ex");
  find(handle, file, functions_.query_ah, "efadv_query_ah");
}

const Functions& Library::shared() {
  static const Library library;
  return library.functions();
}

}  // namespace uccl::efadv

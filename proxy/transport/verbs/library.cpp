// Finding libibverbs and its functions.
#include "transport/verbs/library.h"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace uccl::ibv {
namespace {

constexpr const char* kHint =
    "; install it (Debian and Ubuntu: libibverbs1 and ibverbs-providers; RHEL and SUSE: libibverbs) or use the tcp "
    "transport";

class Finder {
 public:
  explicit Finder(const char* file) : file_(file), handle_(dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) {
      const char* why = dlerror();
      throw std::runtime_error(std::string("verbs: cannot open ") + file + ": " + (why ? why : "unknown error") +
                               kHint);
    }
  }
  template <class F>
  void must(F*& f, const char* name) {
    may(f, name);
    if (f == nullptr) throw std::runtime_error(std::string("verbs: ") + file_ + " has no " + name + kHint);
  }
  template <class F>
  void may(F*& f, const char* name) {
    f = reinterpret_cast<F*>(dlsym(handle_, name));
  }

 private:
  const char* file_;
  void* handle_;
};

}  // namespace

Library::Library(const char* file) {
  Finder find(file);
  Functions& f = functions_;
  find.must(f.get_device_list, "ibv_get_device_list");
  find.must(f.free_device_list, "ibv_free_device_list");
  find.must(f.get_device_name, "ibv_get_device_name");
  find.must(f.open_device, "ibv_open_device");
  find.must(f.close_device, "ibv_close_device");
  find.must(f.query_device, "ibv_query_device");
  find.must(f.query_port, "ibv_query_port");
  find.must(f.query_gid, "ibv_query_gid");
  find.may(f.query_gid_ex, "_ibv_query_gid_ex");
  find.must(f.alloc_pd, "ibv_alloc_pd");
  find.must(f.dealloc_pd, "ibv_dealloc_pd");
  find.must(f.reg_mr, "ibv_reg_mr");
  find.may(f.reg_mr_iova2, "ibv_reg_mr_iova2");
  find.may(f.reg_dmabuf_mr, "ibv_reg_dmabuf_mr");
  find.must(f.dereg_mr, "ibv_dereg_mr");
  find.must(f.create_cq, "ibv_create_cq");
  find.must(f.destroy_cq, "ibv_destroy_cq");
  find.must(f.create_srq, "ibv_create_srq");
  find.must(f.destroy_srq, "ibv_destroy_srq");
  find.must(f.create_qp, "ibv_create_qp");
  find.may(f.qp_to_qp_ex, "ibv_qp_to_qp_ex");
  find.must(f.modify_qp, "ibv_modify_qp");
  find.must(f.destroy_qp, "ibv_destroy_qp");
  find.must(f.create_ah, "ibv_create_ah");
  find.must(f.destroy_ah, "ibv_destroy_ah");
  find.must(f.get_async_event, "ibv_get_async_event");
  find.must(f.ack_async_event, "ibv_ack_async_event");
}

const Functions& Library::shared() {
  static const Library library;
  return library.functions();
}

}  // namespace uccl::ibv

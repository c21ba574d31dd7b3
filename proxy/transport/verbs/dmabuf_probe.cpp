// The device is opened for the trial alone.
#include "transport/verbs/dmabuf_probe.h"

#include <cerrno>

#include "transport/verbs/errors.h"

namespace uccl {
namespace {

ibv::Context* open_device(const ibv::Functions& f, const std::string& device) {
  int count = 0;
  ibv::Device** list = f.get_device_list(&count);
  ibv::Context* context = nullptr;
  for (int i = 0; list != nullptr && i < count && context == nullptr; ++i) {
    if (f.get_device_name(list[i]) == device) context = f.open_device(list[i]);
  }
  if (list != nullptr) f.free_device_list(list);
  return context;
}

}  // namespace

std::string why_no_dmabuf(const ibv::Functions& f, const std::string& device, const DmabufTrial& trial) {
  if (f.reg_dmabuf_mr == nullptr) return "libibverbs is older than rdma-core 34 and registers none";
  errno = 0;
  ibv::Context* context = open_device(f, device);
  if (context == nullptr) return "it cannot be opened: " + verbs_errno(errno != 0 ? errno : ENODEV);
  std::string why;
  errno = 0;
  ibv::Pd* pd = f.alloc_pd(context);
  ibv::Mr* mr = pd == nullptr ? nullptr
                              : f.reg_dmabuf_mr(pd, 0, trial.bytes, trial.address, trial.fd,
                                                ibv::kAccessLocalWrite | ibv::kAccessRemoteWrite);
  if (mr == nullptr) why = (pd == nullptr ? "ibv_alloc_pd: " : "ibv_reg_dmabuf_mr: ") + verbs_errno(errno);
  if (mr != nullptr) f.dereg_mr(mr);
  if (pd != nullptr) f.dealloc_pd(pd);
  f.close_device(context);
  return why;
}

}  // namespace uccl

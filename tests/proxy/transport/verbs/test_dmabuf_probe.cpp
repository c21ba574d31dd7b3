// A trial says why, and leaves nothing behind.
#include <cerrno>

#include "native/check.h"
#include "proxy/transport/verbs/fake_verbs.h"
#include "transport/verbs/dmabuf_probe.h"

using namespace uccl;

TEST(transport_verbs_dmabuf_probe_says_why_not) {
  fake::Options o;
  fake::Fabric* f = &fake::Fabric::begin(o);
  const DmabufTrial trial{9, 2 << 20, 1ull << 40};
  CHECK_EQ(why_no_dmabuf(f->functions(), "fake0", trial), std::string());
  CHECK_EQ(f->dmabufs_.size(), 1u);
  CHECK_EQ(f->dmabufs_[0].fd, 9);
  CHECK(why_no_dmabuf(f->functions(), "mlx5_9", trial).find("cannot be opened") == 3);
  o.dmabuf_errno = EOPNOTSUPP;
  f = &fake::Fabric::begin(o);
  CHECK(why_no_dmabuf(f->functions(), "fake0", trial).find("ibv_reg_dmabuf_mr: Operation not supported") == 0);
  ibv::Functions old = f->functions();
  old.reg_dmabuf_mr = nullptr;
  CHECK(why_no_dmabuf(old, "fake0", trial).find("older than rdma-core 34") != std::string::npos);
  CHECK_EQ(f->num_registrations(), 0u);
  CHECK(f->contexts_.empty());
}

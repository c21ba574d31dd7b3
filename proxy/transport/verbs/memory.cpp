// Registration: each way in turn, every failure kept for people to read.
#include "transport/verbs/memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>

#include "transport/verbs/errors.h"

namespace uccl {
namespace {

// Whether this CPU can read the byte, without a fault when it cannot: the kernel is asked to copy it.
bool cpu_reads(const u8* address) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
  const bool read = write(ends[1], address, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return read;
}

std::string hint(int error) {
  if (error == ENOMEM) return "; is the limit of locked memory too low (ulimit -l, or memlock in limits.conf)?";
  if (error == EFAULT) return "; device memory needs a dma-buf or a peer-memory module (nvidia_peermem, ib_peer_mem)";
  return "";
}

}  // namespace

VerbsMemory::VerbsMemory(const VerbsNic& nic, const TransportSettings& settings, const VerbsTuning& tuning,
                         std::vector<Note>& notes)
    : nic_(nic), chunk_bytes_(tuning.chunk_bytes), relaxed_(settings.fabric.relaxed_ordering) {
  if (relaxed_ && nic.functions().reg_mr_iova2 == nullptr) {
    relaxed_ = false;
    notes.push_back({"strict PCIe ordering on " + nic.name(), "libibverbs is too old to ask for relaxed ordering"});
  } else {
    notes.push_back({std::string(relaxed_ ? "relaxed" : "strict") + " PCIe ordering on " + nic.name(),
                     relaxed_ ? "asked for; the kernel leaves it out where the NIC has none" : "as asked"});
  }
  try {
    const auto& spans = settings.local.spans();
    for (std::size_t i = 0; i < spans.size(); ++i) {
      static const std::vector<int> kNone;
      const auto& dmabufs = i < settings.fabric.span_dmabuf_fds.size() ? settings.fabric.span_dmabuf_fds[i] : kNone;
      // Queue pairs of peers refuse reads; only our own of flush.h allows them.
      const unsigned reads =
          settings.fabric.flushed_span == static_cast<int>(i) ? unsigned{ibv::kAccessRemoteRead} : 0u;
      register_span({spans[i], dmabufs, ibv::kAccessLocalWrite | ibv::kAccessRemoteWrite | reads}, notes);
    }
  } catch (...) {
    release();
    throw;
  }
}

VerbsMemory::~VerbsMemory() { release(); }

void VerbsMemory::release() {
  for (Chunks& c : spans_) {
    for (ibv::Mr* mr : c.mrs) nic_.functions().dereg_mr(mr);
  }
  spans_.clear();
}

ibv::Mr* VerbsMemory::attempt(Way way, const Asked& asked, u64 offset, u64 bytes) const {
  const ibv::Functions& f = nic_.functions();
  const unsigned access = asked.access | (relaxed_ ? unsigned{ibv::kAccessRelaxedOrdering} : 0u);
  u8* at = asked.span.base + offset;
  const u64 iova = reinterpret_cast<u64>(at);
  errno = EOPNOTSUPP;
  if (way == Way::kDmaBuf) {
    if (f.reg_dmabuf_mr == nullptr) return nullptr;
    const bool whole = asked.dmabufs.size() == 1;
    const int fd = asked.dmabufs[whole ? 0 : offset / kDmabufBytes];
    return f.reg_dmabuf_mr(nic_.pd(), whole ? offset : offset % kDmabufBytes, bytes, iova, fd,
                           static_cast<int>(access));
  }
  if (way == Way::kAddress) {
    return f.reg_mr_iova2 == nullptr ? nullptr : f.reg_mr_iova2(nic_.pd(), at, bytes, iova, access);
  }
  return f.reg_mr(nic_.pd(), at, bytes, static_cast<int>(asked.access));
}

// All chunks of a span in one way, or none of them; errno says why none.
bool VerbsMemory::register_all(Way way, const Asked& asked, std::vector<ibv::Mr*>& mrs) const {
  for (u64 offset = 0; offset < asked.span.bytes; offset += chunk_bytes_) {
    ibv::Mr* mr = attempt(way, asked, offset, std::min(chunk_bytes_, asked.span.bytes - offset));
    if (mr != nullptr) {
      mrs.push_back(mr);
      continue;
    }
    const int error = errno;
    for (ibv::Mr* done : mrs) nic_.functions().dereg_mr(done);
    mrs.clear();
    errno = error;
    return false;
  }
  return true;
}

void VerbsMemory::register_span(const Asked& asked, std::vector<Note>& notes) {
  const Span& span = asked.span;
  const bool device = !asked.dmabufs.empty();
  static constexpr struct {
    Way way;
    const char* text;
  } kWays[] = {{Way::kDmaBuf, "dma-buf"}, {Way::kAddress, "by address"}, {Way::kPlain, "plain ibv_reg_mr"}};
  const bool readable = span.bytes != 0 && !device && cpu_reads(span.base);
  const char* kind = readable ? "host memory" : "device memory, by a peer-memory module";
  const std::string what = "span at offset " + std::to_string(span.offset) + " (" + std::to_string(span.bytes) +
                           " bytes) with " + nic_.name();
  Chunks chunks{span.base, span.bytes, readable, {}};
  std::string failed;
  for (const auto& w : kWays) {
    if (w.way == Way::kDmaBuf && !device) continue;
    errno = 0;
    if (!register_all(w.way, asked, chunks.mrs)) {
      const int error = errno;
      failed += std::string(failed.empty() ? "" : "; ") + w.text + ": " + verbs_errno(error) + hint(error);
      continue;
    }
    for (const ibv::Mr* mr : chunks.mrs) rkeys_.push_back(mr->rkey);
    const std::string how = w.way == Way::kDmaBuf ? "dma-buf" : std::string(w.text) + ", " + kind;
    notes.push_back({what + " registered: " + how + ", " + std::to_string(chunks.mrs.size()) + " chunk(s)",
                     failed.empty() ? "the first way that was tried" : "after " + failed});
    spans_.push_back(std::move(chunks));
    return;
  }
  throw std::runtime_error("verbs: cannot register the " + what + ": " + failed);
}

VerbsMemory::Piece VerbsMemory::find(const u8* address) const {
  for (const Chunks& c : spans_) {
    if (address < c.base || address >= c.base + c.bytes) continue;
    const u64 offset = static_cast<u64>(address - c.base);
    const u64 chunk = offset / chunk_bytes_;
    return {std::min((chunk + 1) * chunk_bytes_, c.bytes) - offset, c.mrs[chunk]->lkey, c.mrs[chunk]->rkey, c.readable};
  }
  return {};
}

}  // namespace uccl

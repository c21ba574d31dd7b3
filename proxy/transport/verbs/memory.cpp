// Registration: each way in turn, every failure kept for people to read.
#include "transport/verbs/memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>

#include "transport/verbs/address.h"
#include "transport/verbs/errors.h"

namespace uccl {
namespace {

constexpr u64 kLatePage = 1 << 16;  // the largest of any host
const std::vector<int> kNone;

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
      if (settings.fabric.late_span == static_cast<int>(i)) {
        late_ = spans[i];
        continue;
      }
      const auto& dmabufs = i < settings.fabric.span_dmabuf_fds.size() ? settings.fabric.span_dmabuf_fds[i] : kNone;
      // Queue pairs of peers refuse reads; only our own of flush.h allows them.
      const unsigned reads =
          settings.fabric.flushed_span == static_cast<int>(i) ? unsigned{ibv::kAccessRemoteRead} : 0u;
      const bool readable = spans[i].bytes != 0 && dmabufs.empty() && cpu_reads(spans[i].base);
      const unsigned access = ibv::kAccessLocalWrite | ibv::kAccessRemoteWrite | reads;
      spans_.push_back({spans[i].base, spans[i].bytes, readable, {}});
      spans_.back().mrs = register_span({spans[i], dmabufs, access, readable, 0}, notes);
      for (const ibv::Mr* mr : spans_.back().mrs) rkeys_.push_back(mr->rkey);
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
  withdraw(0);  // no lane is left
}

// Takes back all registrations of the late span but the first ones. No request has named a source in them.
void VerbsMemory::withdraw(u32 num_left) {
  const u32 n = num_lates_.exchange(num_left, std::memory_order_relaxed);
  for (u32 i = num_left; i < n; ++i) nic_.functions().dereg_mr(lates_[i].mr);
}

void admit_to_all(const std::vector<std::unique_ptr<VerbsMemory>>& memories, const Admission& wanted) {
  std::vector<u32> before;
  for (const auto& m : memories) before.push_back(m->num_lates_.load(std::memory_order_relaxed));
  try {
    for (const auto& m : memories) m->admit(wanted);
  } catch (...) {
    for (std::size_t i = 0; i < memories.size(); ++i) memories[i]->withdraw(before[i]);
    throw;
  }
}

// The host's memory grows by a quarter at least, so that it is registered in few pieces however often more of it is
// asked for; a device's is registered as it was taken.
void VerbsMemory::admit(const Admission& wanted) {
  const u64 bytes = wanted.bytes;
  const u32 n = num_lates_.load(std::memory_order_relaxed);  // only this function changes it
  const u64 done = n == 0 ? 0 : static_cast<u64>(lates_[n - 1].end - late_.base);
  if (bytes <= done) return;
  if (bytes > late_.bytes) {
    throw std::runtime_error("verbs: " + std::to_string(bytes) + " bytes of a span that has " +
                             std::to_string(late_.bytes));
  }
  const u64 grown = wanted.of_device() ? bytes : align_up(done + done / 4, kLatePage);
  const u64 to = std::min(late_.bytes, std::max(bytes, grown));
  const Span rest{late_.offset + done, to - done, late_.base + done};
  if (n + num_chunks(rest.bytes, chunk_bytes_) > kMostLate)
    throw std::runtime_error("verbs: a span is registered in more than " + std::to_string(kMostLate) + " pieces");
  std::vector<Note> ignored;  // whoever asked for it knows
  const bool readable = !wanted.of_device();
  const std::vector<ibv::Mr*> mrs = register_span({rest, wanted.dmabufs, 0, readable, wanted.address}, ignored);
  for (std::size_t i = 0; i < mrs.size(); ++i)
    lates_[n + i] = {rest.base + std::min(rest.bytes, (i + 1) * chunk_bytes_), mrs[i], readable};
  num_lates_.store(n + static_cast<u32>(mrs.size()), std::memory_order_release);  // pairs with find
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
  u8* const memory = asked.address == 0 ? at : reinterpret_cast<u8*>(asked.address) + offset;
  if (way == Way::kAddress)
    return f.reg_mr_iova2 == nullptr ? nullptr : f.reg_mr_iova2(nic_.pd(), memory, bytes, iova, access);
  if (memory != at) return nullptr;  // this call knows no names
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

// All of a span in the first way that works.
std::vector<ibv::Mr*> VerbsMemory::register_span(const Asked& asked, std::vector<Note>& notes) const {
  const Span& span = asked.span;
  static constexpr struct {
    Way way;
    const char* text;
  } kWays[] = {{Way::kDmaBuf, "dma-buf"}, {Way::kAddress, "by address"}, {Way::kPlain, "plain ibv_reg_mr"}};
  const char* kind = asked.readable ? "host memory" : "device memory, by a peer-memory module";
  const std::string what = "span at offset " + std::to_string(span.offset) + " (" + std::to_string(span.bytes) +
                           " bytes) with " + nic_.name();
  std::vector<ibv::Mr*> mrs;
  std::string failed;
  for (const auto& w : kWays) {
    if (w.way == Way::kDmaBuf && asked.dmabufs.empty()) continue;
    errno = 0;
    if (!register_all(w.way, asked, mrs)) {
      const int error = errno;
      failed += std::string(failed.empty() ? "" : "; ") + w.text + ": " + verbs_errno(error) + hint(error);
      continue;
    }
    const std::string how = w.way == Way::kDmaBuf ? "dma-buf" : std::string(w.text) + ", " + kind;
    notes.push_back({what + " registered: " + how + ", " + std::to_string(mrs.size()) + " chunk(s)",
                     failed.empty() ? "the first way that was tried" : "after " + failed});
    return mrs;
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
  const u32 n = num_lates_.load(std::memory_order_acquire);  // pairs with admit
  for (u32 i = 0; i < n && address >= late_.base; ++i) {
    const Late& l = lates_[i];
    if (address < l.end) return {static_cast<u64>(l.end - address), l.mr->lkey, l.mr->rkey, l.readable};
  }
  return {};
}

}  // namespace uccl

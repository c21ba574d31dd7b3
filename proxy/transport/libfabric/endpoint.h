// A lane's endpoint, its queues and its registered memory: everything that is created through libfabric, freed in the
// order that it allows. The lane sees only RmaPort, which a test can play.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/libfabric/greeting.h"
#include "transport/libfabric/provider.h"

namespace uccl {

struct RmaWrite {
  u64 destination = 0;  // from RmaPort::add
  const u8* source = nullptr;
  u64 bytes = 0;
  u64 remote_address = 0, key = 0;
  u64 data = 0;            // CQ data at the receiver, when `with_data`
  void* context = nullptr;  // comes back in the completion
  bool with_data = false;
  bool confirmed = false;  // completes when it has reached the receiver, where the provider offers that
  bool more = false;       // another write follows at once: the doorbell may wait for it
};

struct RmaEvent {
  void* context = nullptr;  // of the write that completed; null: an arrival, or an error that belongs to no write
  bool arrival = false;
  int error = 0;  // of a write; libfabric's numbers, see codes.h
  u64 data = 0, bytes = 0, source = 0;
};

class RmaPort {
 public:
  virtual ~RmaPort() = default;
  // 0; EAGAIN: not now, poll and try again; anything else: this write cannot be made.
  virtual int write(const RmaWrite& write) = 0;
  // Lets the provider work, and reports at most events.size() of what has happened.
  virtual std::size_t poll(std::span<RmaEvent> events) = 0;
  // Control path. `name` is the peer's endpoint; the destination for its writes. Throws std::runtime_error.
  virtual u64 add(const std::string& name) = 0;
};

template <class T>
struct CloseFid {
  void operator()(T* object) const { object->fid.ops->close(&object->fid); }
};
template <class T>
using FiPointer = std::unique_ptr<T, CloseFid<T>>;

// Regions of one domain, or of one endpoint where the provider wants that.
struct RegisteredMemory {
  struct Region {
    FiPointer<fi::MemoryRegion> region;
    const u8* base;
    u64 bytes;
    RemoteMemory remote;  // as peers address it
    bool holds(const u8* source, u64 size) const {
      const u64 at = static_cast<u64>(source - base);  // far beyond every size when it lies before
      return at <= bytes && size <= bytes - at;
    }
  };
  std::vector<Region> regions;
  // The descriptor of the region that holds [source, source + bytes); false when none does.
  bool describe(const u8* source, u64 bytes, void** descriptor) const;
};

// A span that only sends, registered as far as it is asked for (Transport::admit). A write lies in one registration, so
// each begins where the span does, and reaches twice as far as the one before, which stays for writes that are under way.
class LateMemory {
 public:
  // While lanes describe; one call at a time. Throws std::runtime_error.
  void admit(const ProviderLimits& limits, fi::Domain& domain, const Span& span, u64 bytes);
  bool describe(const u8* source, u64 bytes, void** descriptor) const;

 private:
  std::array<RegisteredMemory::Region, 48> regions_;
  std::atomic<u32> num_{0};
};

// A fabric and a domain; several lanes may share one.
struct LibfabricDomain {
  FiPointer<fi::Fabric> fabric;
  FiPointer<fi::Domain> domain;
  RegisteredMemory spans;  // empty where regions belong to endpoints
  LateMemory late;
};
std::shared_ptr<LibfabricDomain> open_domain(const Provider& provider);
// Registers settings.local but its late span in `domain`, bound to `endpoint` unless it is null. Throws std::runtime_error with the span,
// how it was tried and the error; says in `notes` how each span was registered.
RegisteredMemory register_spans(const Provider& provider, fi::Domain& domain, fi::Endpoint* endpoint,
                                const TransportSettings& settings, std::vector<Note>* notes);

class LibfabricEndpoint final : public RmaPort {
 public:
  LibfabricEndpoint(const Provider& provider, std::shared_ptr<LibfabricDomain> domain,
                    const TransportSettings& settings, std::vector<Note>* notes);

  LibfabricAddress::LaneAddress address() const;
  int write(const RmaWrite& write) override;
  std::size_t poll(std::span<RmaEvent> events) override;
  u64 add(const std::string& name) override;

  // By peer. Peers write into `inbox`; what is written to them comes from `outbox`.
  MailboxSlot* inbox() { return mailbox_.data(); }
  MailboxSlot* outbox() { return mailbox_.data() + mailbox_.size() / 2; }

 private:
  std::size_t poll_error(RmaEvent* event);

  const ProviderLimits limits_;
  std::shared_ptr<LibfabricDomain> domain_;
  std::vector<MailboxSlot> mailbox_;  // inbox, then outbox
  FiPointer<fi::AddressVector> addresses_;
  FiPointer<fi::CompletionQueue> queue_;
  FiPointer<fi::Endpoint> endpoint_;
  RegisteredMemory own_;  // closed first: regions may be bound to the endpoint
};

}  // namespace uccl

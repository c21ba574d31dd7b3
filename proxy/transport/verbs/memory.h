// A rank's spans registered with one NIC, in chunks. Shared by all lanes; unchanged after construction, but for the late
// span, whose registrations follow each other as more of it is asked for.
#pragma once
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "transport/transport.h"
#include "transport/verbs/nic.h"

namespace uccl {

class VerbsMemory {
 public:
  struct Piece {
    u64 bytes = 0;  // registered together from the address asked for on; 0: not registered
    u32 lkey = 0, rkey = 0;
    bool readable = false;  // by the CPU, so that a small payload may be copied into the work request
  };

  // Throws std::runtime_error with every attempt and its errno when a span cannot be registered.
  VerbsMemory(const VerbsNic& nic, const TransportSettings& settings, const VerbsTuning& tuning,
              std::vector<Note>& notes);
  ~VerbsMemory();
  VerbsMemory(const VerbsMemory&) = delete;
  VerbsMemory& operator=(const VerbsMemory&) = delete;

  Piece find(const u8* address) const;
  // Registers more of the late span, for sources only. While lanes call find(); one call at a time. Throws as the
  // constructor does.
  void admit(const Admission& wanted);
  // Of every span's chunks but the late one's, span after span.
  const std::vector<u32>& rkeys() const { return rkeys_; }

 private:
  struct Chunks {
    const u8* base;
    u64 bytes;
    bool readable;
    std::vector<ibv::Mr*> mrs;
  };
  enum class Way { kDmaBuf, kAddress, kPlain };
  struct Asked {  // a span, and what is known of it
    const Span& span;
    const std::vector<int>& dmabufs;  // see FabricSettings::span_dmabuf_fds
    unsigned access;
    bool readable;
    u64 address = 0;  // of a device's memory that the span's addresses only name; 0: it lies where they say
  };
  struct Late {  // a registration of the late span, from the end of the one before
    const u8* end;
    ibv::Mr* mr;
    bool readable;
  };
  static constexpr u32 kMostLate = 128;
  ibv::Mr* attempt(Way way, const Asked& asked, u64 offset, u64 bytes) const;
  bool register_all(Way way, const Asked& asked, std::vector<ibv::Mr*>& mrs) const;
  std::vector<ibv::Mr*> register_span(const Asked& asked, std::vector<Note>& notes) const;
  void withdraw(u32 num_left);
  void release();

  friend void admit_to_all(const std::vector<std::unique_ptr<VerbsMemory>>& memories, const Admission& wanted);
  const VerbsNic& nic_;
  u64 chunk_bytes_;
  bool relaxed_;
  std::vector<Chunks> spans_;
  std::vector<u32> rkeys_;
  Span late_;  // no bytes: there is none
  std::array<Late, kMostLate> lates_{};
  std::atomic<u32> num_lates_{0};
};

// VerbsMemory::admit on every NIC; when one of them throws, on none.
void admit_to_all(const std::vector<std::unique_ptr<VerbsMemory>>& memories, const Admission& wanted);

}  // namespace uccl

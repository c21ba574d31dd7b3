// One end of a connection made with the transports' own pieces, and used against their rules: what the box finds in that,
// and what the driver or the device does not mind, is what rules.cpp looks at.
#pragma once
#include <array>
#include <memory>
#include <vector>

#include "transport/efa/library.h"
#include "transport/verbs/completion_queue.h"
#include "transport/verbs/queue_pair.h"

namespace box {

struct EndShape {
  uccl::u32 entries = 64;  // of its completion queues
  uccl::u32 depth = 32;
  uccl::u32 inline_bytes = 0;
  bool extended = true, shared = false;
};

struct Posted {  // a write of ours
  uccl::u32 bytes = 8, requests = 1;
  bool immediate = false, is_inline = false;
  uccl::u32 lkey = 0, rkey = 0;  // 0: the right one
  bool no_local_key = false;  // really none
  uccl::u64 beyond = 0;  // bytes behind the target
};

class End {
 public:
  End(const std::string& device, bool datagrams, const EndShape& shape);
  ~End();
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  void connect(const End& to);
  void connect_again(const End& to);  // the queue pair is reset first; not with datagrams
  // Posted through ibv_wr_* where there is one, all in one session; 0 or an errno.
  int write(const End& to, const Posted& what);
  int receive(int pieces);
  // The status of the next completion; ~0 when none comes within twenty seconds of devices.
  uccl::u32 status();
  uccl::u32 num_arrived();  // since this was asked
  const uccl::VerbsNic& nic() const { return nic_; }
  uccl::u32 rkey() const { return mr_->rkey; }
  bool is_extended() const { return pair_->is_extended(); }

 private:
  void make_datagram_pair(const EndShape& shape);
  int write_plain(const End& to, const Posted& what);

  std::vector<uccl::Note> notes_;
  uccl::VerbsNic nic_;
  bool datagrams_;
  alignas(4096) std::array<uccl::u8, 4096> memory_{};
  uccl::ibv::Mr* mr_ = nullptr;
  uccl::ibv::Srq* srq_ = nullptr;
  uccl::ibv::Ah* handle_ = nullptr;
  std::unique_ptr<uccl::CompletionQueue> sends_, receives_;
  std::unique_ptr<uccl::QueuePair> pair_;
};

}  // namespace box

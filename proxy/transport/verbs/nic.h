// One port of one RDMA device as a rank uses it: context, protection domain, limits, address. Shared by all lanes; only
// poll_async() changes it after construction, and only lane 0 calls that.
#pragma once
#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "transport/fabric.h"
#include "transport/verbs/library.h"

namespace uccl {

// What tests turn; the defaults are what is used.
struct VerbsTuning {
  u64 chunk_bytes = 1ull << 30;  // of one registration: IOMMUs and dma-buf importers limit longer ones
  u32 inline_bytes = 64;  // payloads up to this many bytes travel inside the work request
  u32 signal_every = 32;  // writes of a queue pair per completion, besides the last before a doorbell
  bool extended = true;  // ibv_wr_* and extended completion polling where the provider has them
  u64 probe_ns = 1'000'000'000;  // a peer we do not write to is asked for a sign of life this often
  u64 greeting_ns = 100'000'000;  // how long a greeting may find nobody at first, until it is sent anew
  u64 farewell_ns = 1'000'000'000;  // how long the end of a lane may wait for what is on its way
};

u32 mtu_bytes(u32 mtu);  // ibv::Mtu -> bytes, 0 when it is none
u32 mtu_of_bytes(u32 bytes);  // the largest ibv::Mtu that is not above `bytes`; 0 below 256

class VerbsNic {
 public:
  // Throws std::runtime_error naming the device and what there is instead. Appends what was chosen to `notes`.
  VerbsNic(const ibv::Functions& functions, const NicSettings& settings, const FabricSettings& fabric,
           std::vector<Note>& notes);
  ~VerbsNic();
  VerbsNic(const VerbsNic&) = delete;
  VerbsNic& operator=(const VerbsNic&) = delete;

  const ibv::Functions& functions() const { return functions_; }
  ibv::Context* context() const { return context_; }
  ibv::Pd* pd() const { return pd_; }
  const ibv::DeviceAttr& limits() const { return device_; }
  const ibv::PortAttr& port() const { return port_; }
  const NicSettings& settings() const { return settings_; }  // its gid_index is the chosen one
  const ibv::Gid& gid() const { return gid_; }
  u32 gid_type() const { return gid_type_; }
  bool uses_gid() const { return settings_.gid_index >= 0; }
  u32 mtu() const { return mtu_; }  // bytes: the port's, or less when the settings ask for less
  // A page of the host's, registered for whatever must name memory and moves none: receives of messages without bytes, which
  // some devices leave out otherwise; sources of zero bytes; targets of bytes that nobody looks at.
  ibv::Sge dummy() const { return {reinterpret_cast<u64>(dummy_), kDummyBytes, dummy_mr_->lkey}; }
  // Whether its provider takes several requests between ibv_wr_start and ibv_wr_complete, whether it tells what has arrived
  // through ibv_start_poll, whether its device takes payloads inside of requests, whether queue pairs share their
  // receives, and whether one that has failed can be used again for sure: by vendor, since none of them says.
  bool chains_extended() const;
  bool polls_extended() const;
  bool takes_inline() const;
  bool shares_receives() const;
  bool surely_resets() const;
  // How often a queue pair's packet is sent again: as asked, or what its provider still counts.
  u32 retries(const FabricSettings& fabric) const {
    return is_soft() ? std::min(fabric.retries, kMostCountedBySoftRoce) : fabric.retries;
  }
  bool is_soft() const { return device_.vendor_id == kSoftRoceVendor; }
  std::string name() const { return settings_.device + ":" + std::to_string(settings_.port); }

  // Takes the device's asynchronous events; never blocks.
  void poll_async();
  // A code of errors.h once the device has failed, else 0. Acquire: pairs with the release in poll_async.
  int fault() const { return fault_.load(std::memory_order_acquire); }
  bool link_down() const { return link_down_.load(std::memory_order_acquire); }  // pairs with poll_async

 private:
  static constexpr u32 kDummyBytes = 4096, kSoftRoceVendor = 0xffffff;
  static constexpr u32 kMostCountedBySoftRoce = 6;  // it repeats for ever with 7
  void open_device();
  void register_dummy();
  void choose_gid(std::vector<Note>& notes);
  void read_port(const FabricSettings& fabric, std::vector<Note>& notes);
  void note_on_demand_paging(std::vector<Note>& notes) const;
  void release();

  const ibv::Functions& functions_;
  NicSettings settings_;
  ibv::Context* context_ = nullptr;
  ibv::Pd* pd_ = nullptr;
  ibv::DeviceAttr device_{};
  ibv::PortAttr port_{};
  ibv::Gid gid_{};
  u32 gid_type_ = ibv::kGidIb;
  u32 mtu_ = 0;
  void* dummy_ = nullptr;
  ibv::Mr* dummy_mr_ = nullptr;
  bool async_ready_ = false;
  std::atomic<int> fault_{0};
  std::atomic<bool> link_down_{false};
};

}  // namespace uccl

// Opening a device, choosing its GID, and listening to its asynchronous events.
#include "transport/verbs/nic.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "transport/verbs/errors.h"

namespace uccl {
namespace {

constexpr u32 kMaxEventsAtOnce = 16;
constexpr u32 kMellanoxVendor = 0x02c9, kBroadcomVendor = 0x14e4, kIntelVendor = 0x8086;

std::string gid_text(const ibv::Gid& gid) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string s;
  for (int i = 0; i < 16; ++i) {
    if (i != 0 && i % 2 == 0) s += ':';
    s += kHex[gid.raw[i] >> 4];
    s += kHex[gid.raw[i] & 15];
  }
  return s;
}

bool is_ipv4(const ibv::Gid& gid) {
  static constexpr u8 kPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, kPrefix, sizeof(kPrefix)) == 0;
}

const char* gid_type_text(u32 type) {
  return type == ibv::kGidRoceV2 ? "RoCE v2" : type == ibv::kGidRoceV1 ? "RoCE v1" : "InfiniBand";
}

}  // namespace

u32 mtu_bytes(u32 mtu) { return mtu < ibv::kMtu256 || mtu > ibv::kMtu4096 ? 0 : 128u << mtu; }

u32 mtu_of_bytes(u32 bytes) {
  u32 mtu = 0;
  while (mtu < ibv::kMtu4096 && mtu_bytes(mtu + 1) <= bytes) ++mtu;
  return mtu;
}

VerbsNic::VerbsNic(const ibv::Functions& functions, const NicSettings& settings, const FabricSettings& fabric,
                   std::vector<Note>& notes)
    : functions_(functions), settings_(settings) {
  try {
    open_device();
    register_dummy();
    read_port(fabric, notes);
    choose_gid(notes);
    note_on_demand_paging(notes);
  } catch (...) {
    release();
    throw;
  }
}

VerbsNic::~VerbsNic() { release(); }

void VerbsNic::release() {
  if (dummy_mr_ != nullptr) functions_.dereg_mr(dummy_mr_);
  std::free(dummy_);
  if (pd_ != nullptr) functions_.dealloc_pd(pd_);
  if (context_ != nullptr) functions_.close_device(context_);
}

void VerbsNic::open_device() {
  int count = 0;
  ibv::Device** list = functions_.get_device_list(&count);
  std::string names;
  int error = 0;
  for (int i = 0; list != nullptr && i < count; ++i) {
    const std::string name = functions_.get_device_name(list[i]);
    names += (names.empty() ? "" : ", ") + name;
    if (name != settings_.device) continue;
    errno = 0;
    context_ = functions_.open_device(list[i]);
    error = errno;
    break;
  }
  if (list != nullptr) functions_.free_device_list(list);
  if (context_ == nullptr) {
    throw std::runtime_error(
        "verbs: RDMA device '" + settings_.device + "' " +
        (error != 0 ? "cannot be opened: " + verbs_errno(error) + "; may this user open /dev/infiniband/uverbs*?"
                    : "is not here; there are: " + (names.empty() ? "none" : names)));
  }
  if (const int e = functions_.query_device(context_, &device_); e != 0) {
    throw std::runtime_error("verbs: " + settings_.device + ": ibv_query_device: " + verbs_errno(e));
  }
  errno = 0;
  pd_ = functions_.alloc_pd(context_);
  if (pd_ == nullptr) throw std::runtime_error("verbs: " + settings_.device + ": ibv_alloc_pd: " + verbs_errno(errno));
  const int flags = fcntl(context_->async_fd, F_GETFL);
  async_ready_ = flags >= 0 && fcntl(context_->async_fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

// bnxt_re (since rdma-core 56) writes the head of the last request only, and its queue pair dies of the first; the others
// are not known to be right. Soft-RoCE's is tested (tests/rdma).
bool VerbsNic::chains_extended() const { return device_.vendor_id == kMellanoxVendor || is_soft(); }
// irdma (rdma-core 44 to 65) reads a receive's operation as if it were a request's there, where an E810 puts the packet's:
// every write that arrives is IBV_WC_SEND. ibv_poll_cq is right (seen over the drivers themselves: tests/providers).
bool VerbsNic::polls_extended() const { return device_.vendor_id != kIntelVendor; }
bool VerbsNic::takes_inline() const { return device_.vendor_id != kBroadcomVendor; }
// bnxt_re of rdma-core 44 to 56 at least looks for receives of its own in a queue pair that has failed, and ends the process
// when there are none (seen over the drivers themselves: tests/providers).
bool VerbsNic::shares_receives() const { return device_.max_srq > 0 && device_.vendor_id != kBroadcomVendor; }
// bnxt_re of rdma-core 46 and before (Debian 12 has 44) keeps a queue pair that has failed among those whose requests it
// flushes: when it has been reset and connected, whatever is posted there is flushed at the next poll, although it is sent
// (seen over the driver itself: tests/providers).
bool VerbsNic::surely_resets() const { return device_.vendor_id != kBroadcomVendor; }

void VerbsNic::register_dummy() {
  dummy_ = std::aligned_alloc(kDummyBytes, kDummyBytes);
  errno = 0;
  if (dummy_ != nullptr) dummy_mr_ = functions_.reg_mr(pd_, dummy_, kDummyBytes, ibv::kAccessLocalWrite);
  if (dummy_mr_ == nullptr)
    throw std::runtime_error("verbs: " + name() + ": registering " + std::to_string(kDummyBytes) +
                             " bytes of host memory: " + verbs_errno(errno) + " (ulimit -l?)");
}

void VerbsNic::read_port(const FabricSettings& fabric, std::vector<Note>& notes) {
  if (settings_.port < 1 || settings_.port > device_.phys_port_cnt) {
    throw std::runtime_error("verbs: " + settings_.device + " has no port " + std::to_string(settings_.port) +
                             "; it has 1 to " + std::to_string(device_.phys_port_cnt));
  }
  const u8 port = static_cast<u8>(settings_.port);
  ibv::VerbsContext* v = ibv::extended(context_, &ibv::VerbsContext::query_port);
  const int e = v != nullptr ? v->query_port(context_, port, &port_, sizeof(port_))
                             : functions_.query_port(context_, port, &port_);
  if (e != 0) throw std::runtime_error("verbs: " + name() + ": ibv_query_port: " + verbs_errno(e));
  if (port_.state != ibv::kPortActive) {
    throw std::runtime_error("verbs: " + name() + " is not active (state " + std::to_string(port_.state) +
                             "); look at its link (`ip link`, `rdma link`), or name another NIC");
  }
  const u32 active = mtu_bytes(port_.active_mtu);
  mtu_ = fabric.mtu == 0 ? active : fabric.mtu;
  if (mtu_bytes(mtu_of_bytes(mtu_)) != mtu_ || mtu_ > active) {
    throw std::runtime_error("verbs: an MTU of " + std::to_string(mtu_) + " bytes was asked for; " + name() +
                             " allows 256, 512, 1024, 2048, 4096 up to its " + std::to_string(active));
  }
  notes.push_back({"NIC " + name(), "MTU " + std::to_string(mtu_) + (fabric.mtu == 0 ? ", the port's" : ", as asked") +
                                        "; largest message " + std::to_string(port_.max_msg_sz) + " bytes; firmware " +
                                        std::string(device_.fw_ver, strnlen(device_.fw_ver, sizeof(device_.fw_ver)))});
}

// A LID is enough within one InfiniBand subnet. RoCE has only GIDs: the version 2 ones are routable, and IPv4 is what
// most networks are configured for.
void VerbsNic::choose_gid(std::vector<Note>& notes) {
  const u8 port = static_cast<u8>(settings_.port);
  std::string why = "as asked";
  auto type_of = [&](u32 index) {
    ibv::GidEntry entry{};
    const bool known = functions_.query_gid_ex != nullptr &&
                       functions_.query_gid_ex(context_, port, index, &entry, 0, sizeof(entry)) == 0;
    return known ? entry.gid_type : port_.link_layer == ibv::kLinkEthernet ? ibv::kGidRoceV2 : ibv::kGidIb;
  };
  if (settings_.gid_index < 0 && port_.link_layer != ibv::kLinkEthernet) {
    notes.push_back({"LID " + std::to_string(port_.lid), "no GID was asked for: peers are in the same subnet"});
    return;
  }
  const int asked = settings_.gid_index;
  int best = -1;
  for (int i = 0; asked < 0 && i < port_.gid_tbl_len; ++i) {
    ibv::Gid gid{};
    if (functions_.query_gid(context_, port, i, &gid) != 0 || (gid.words[0] | gid.words[1]) == 0) continue;
    const int value = 1 + (type_of(static_cast<u32>(i)) == ibv::kGidRoceV2) * 2 + is_ipv4(gid);
    if (value <= best) continue;
    best = value;
    settings_.gid_index = i;
    why = value == 4 ? "the first RoCE v2 entry with an IPv4 address" : "nothing better is in the table";
    if (value == 4) break;
  }
  if (settings_.gid_index < 0)
    throw std::runtime_error("verbs: " + name() + " has no GID; has its interface an address?");
  const int e = functions_.query_gid(context_, port, settings_.gid_index, &gid_);
  if (e != 0 || (gid_.words[0] | gid_.words[1]) == 0) {
    throw std::runtime_error("verbs: GID index " + std::to_string(settings_.gid_index) + " of " + name() +
                             " is empty; `ibv_devinfo -v` lists the table of " + std::to_string(port_.gid_tbl_len));
  }
  gid_type_ = type_of(static_cast<u32>(settings_.gid_index));
  notes.push_back({"GID " + std::to_string(settings_.gid_index) + " of " + name(),
                   why + ": " + gid_text(gid_) + ", " + gid_type_text(gid_type_)});
}

void VerbsNic::note_on_demand_paging(std::vector<Note>& notes) const {
  ibv::VerbsContext* v = ibv::extended(context_, &ibv::VerbsContext::query_device_ex);
  ibv::DeviceAttrEx attr{};
  const bool known = v != nullptr && v->query_device_ex(context_, nullptr, &attr, sizeof(attr)) == 0;
  const bool has = known && (attr.odp_caps.rc_odp_caps & ibv::kOdpSupportWrite) != 0;
  notes.push_back({"memory is pinned", has ? name() + " could page on demand, but a page fault costs a retransmission"
                                           : name() + " has no on-demand paging for writes"});
}

void VerbsNic::poll_async() {
  ibv::AsyncEvent event{};
  for (u32 i = 0; async_ready_ && i < kMaxEventsAtOnce && functions_.get_async_event(context_, &event) == 0; ++i) {
    const u32 type = event.event_type;
    const bool ours = event.element.port_num == static_cast<int>(settings_.port);
    functions_.ack_async_event(&event);
    // A lost link may come back before retries are used up: it only explains what fails meanwhile.
    if (type == ibv::kEventPortErr && ours) link_down_.store(true, std::memory_order_release);  // pairs with link_down
    if (type == ibv::kEventPortActive && ours) link_down_.store(false, std::memory_order_release);
    if (type == ibv::kEventDeviceFatal || type == ibv::kEventCqErr || type == ibv::kEventSrqErr) {
      fault_.store(kVerbsEvent | static_cast<int>(type), std::memory_order_release);  // pairs with fault()
    }
  }
}

}  // namespace uccl

// The part of libfabric's public binary interface (version 1, FABRIC_1.7 and later) that we call, in our own words, so
// that nothing of libfabric is needed to build. Layouts are compared with <rdma/*.h> by the test where those exist.
//
// Later versions only append fields. Structs that the library allocates (Info and what it points to) may therefore be
// longer than here; those that we allocate and the library reads end in zeros (`reserved`) that a newer field means.
#pragma once
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>

#include "wire/types.h"

namespace uccl::fi {

constexpr u32 version(u32 major, u32 minor) { return major << 16 | minor; }

// What an endpoint can do, flags of operations and of completions: one number space.
inline constexpr u64 kMsg = 1ull << 1, kRma = 1ull << 2;
inline constexpr u64 kRead = 1ull << 8, kWrite = 1ull << 9, kRecv = 1ull << 10, kTransmit = 1ull << 11;
inline constexpr u64 kRemoteRead = 1ull << 12, kRemoteWrite = 1ull << 13;
inline constexpr u64 kRemoteCqData = 1ull << 17, kMore = 1ull << 18, kCompletion = 1ull << 24, kInject = 1ull << 25;
inline constexpr u64 kTransmitComplete = 1ull << 27, kDeliveryComplete = 1ull << 28;
inline constexpr u64 kMrDmabuf = 1ull << 40;  // since 1.20
inline constexpr u64 kHmem = 1ull << 47, kLocalComm = 1ull << 51, kRemoteComm = 1ull << 52, kSource = 1ull << 57;
// Mode bits: what the caller must do.
inline constexpr u64 kContext = 1ull << 59, kContext2 = 1ull << 52;
// Bits of mr_mode.
inline constexpr int kMrLocal = 1 << 2, kMrRaw = 1 << 3, kMrVirtAddr = 1 << 4, kMrAllocated = 1 << 5;
inline constexpr int kMrProvKey = 1 << 6, kMrEndpoint = 1 << 9, kMrHmem = 1 << 10;
// Bits of msg_order.
inline constexpr u64 kOrderWaw = 1ull << 4, kOrderRmaWaw = 1ull << 35;

enum EpType : int { kEpRdm = 3 };
enum AvType : int { kAvTable = 2 };
enum Progress : int { kProgressAuto = 1, kProgressManual = 2 };
enum Threading : int {
  kThreadUnspec = 0,
  kThreadSafe = 1,
  kThreadFid = 2,
  kThreadDomain = 3,
  kThreadCompletion = 4,
  kThreadEndpoint = 5
};
enum ResourceManagement : int { kRmEnabled = 2 };
enum CqFormat : int { kCqFormatData = 3 };
enum WaitObject : int { kWaitNone = 0 };
enum Control : int { kEnable = 6 };
enum HmemIface : int { kHmemSystem = 0, kHmemCuda = 1, kHmemRocr = 2 };

inline constexpr int kErrAvail = 259;  // FI_EAVAIL: the next entry of the queue is an error
inline constexpr int kErrNoKey = 266;  // FI_ENOKEY: the requested key is taken
inline constexpr u64 kAddrUnspec = ~0ull;

using Address = u64;

struct TxAttr {
  u64 caps, mode, op_flags, msg_order, comp_order;
  std::size_t inject_size, size, iov_limit, rma_iov_limit;
  u32 tclass;
};
struct RxAttr {
  u64 caps, mode, op_flags, msg_order, comp_order;
  std::size_t total_buffered_recv, size, iov_limit;
};
struct EpAttr {
  EpType type;
  u32 protocol, protocol_version;
  std::size_t max_msg_size, msg_prefix_size, max_order_raw_size, max_order_war_size, max_order_waw_size;
  u64 mem_tag_format;
  std::size_t tx_ctx_cnt, rx_ctx_cnt, auth_key_size;
  u8* auth_key;
};
struct DomainAttr {
  void* domain;
  char* name;
  Threading threading;
  Progress control_progress, data_progress;
  ResourceManagement resource_mgmt;
  AvType av_type;
  int mr_mode;
  std::size_t mr_key_size, cq_data_size, cq_cnt, ep_cnt, tx_ctx_cnt, rx_ctx_cnt;
  std::size_t max_ep_tx_ctx, max_ep_rx_ctx, max_ep_stx_ctx, max_ep_srx_ctx, cntr_cnt, mr_iov_limit;
  u64 caps, mode;
  u8* auth_key;
  std::size_t auth_key_size, max_err_data, mr_cnt;
  u32 tclass;
};
struct FabricAttr {
  void* fabric;
  char* name;
  char* prov_name;
  u32 prov_version, api_version;
};
struct Info {
  Info* next;
  u64 caps, mode;
  u32 addr_format;
  std::size_t src_addrlen, dest_addrlen;
  void *src_addr, *dest_addr, *handle;
  TxAttr* tx_attr;
  RxAttr* rx_attr;
  EpAttr* ep_attr;
  DomainAttr* domain_attr;
  FabricAttr* fabric_attr;
  void* nic;
};

// Every object begins with a Fid: its class, the caller's context, and a table of functions. Entries of tables that we
// do not call are `Unused`.
using Unused = void (*)();
struct Fid;
struct Ops {
  std::size_t size;
  int (*close)(Fid*);
  int (*bind)(Fid*, Fid* other, u64 flags);
  int (*control)(Fid*, int command, void* arg);
  Unused ops_open, tostr, ops_set;
};
struct Fid {
  std::size_t fclass;
  void* context;
  Ops* ops;
};

struct Domain;
struct Endpoint;
struct CompletionQueue;
struct AddressVector;
struct MemoryRegion {
  Fid fid;
  void* mem_desc;
  u64 key;
};
struct Fabric;
struct FabricOps {
  std::size_t size;
  int (*domain)(Fabric*, Info*, Domain**, void* context);
  Unused passive_ep, eq_open, wait_open, trywait, domain2;
};
struct Fabric {
  Fid fid;
  FabricOps* ops;
  u32 api_version;
};

struct AvAttr {
  AvType type;
  int rx_ctx_bits;
  std::size_t count, ep_per_node;
  const char* name;
  void* map_addr;
  u64 flags;
  u64 reserved[4];
};
struct CqAttr {
  std::size_t size;
  u64 flags;
  CqFormat format;
  WaitObject wait_obj;
  int signaling_vector, wait_cond;
  void* wait_set;
  u64 reserved[4];
};
struct DmabufAttr {
  int fd;
  u64 offset;
  std::size_t len;
  void* base_addr;
};
struct MrAttr {
  union {
    const iovec* mr_iov;
    const DmabufAttr* dmabuf;
  };
  std::size_t iov_count;
  u64 access, offset, requested_key;
  void* context;
  std::size_t auth_key_size;
  u8* auth_key;
  HmemIface iface;
  u64 device;
  u64 reserved[8];
};
struct DomainOps {
  std::size_t size;
  int (*av_open)(Domain*, AvAttr*, AddressVector**, void* context);
  int (*cq_open)(Domain*, CqAttr*, CompletionQueue**, void* context);
  int (*endpoint)(Domain*, Info*, Endpoint**, void* context);
  Unused scalable_ep, cntr_open, poll_open, stx_ctx, srx_ctx, query_atomic, query_collective, endpoint2;
};
struct MrOps {
  std::size_t size;
  Unused reg, regv;
  int (*regattr)(Fid*, const MrAttr*, u64 flags, MemoryRegion**);
};
struct Domain {
  Fid fid;
  DomainOps* ops;
  MrOps* mr;
};

struct AvOps {
  std::size_t size;
  int (*insert)(AddressVector*, const void* addr, std::size_t count, Address*, u64 flags, void* context);
  Unused insertsvc, insertsym;
  int (*remove)(AddressVector*, Address*, std::size_t count, u64 flags);
  Unused lookup, straddr, av_set;
};
struct AddressVector {
  Fid fid;
  AvOps* ops;
};

struct CqEntry {
  void* op_context;
  u64 flags;
  std::size_t len;
  void* buf;
  u64 data;
};
struct CqError {
  void* op_context;
  u64 flags;
  std::size_t len;
  void* buf;
  u64 data, tag;
  std::size_t olen;
  int err, prov_errno;
  void* err_data;
  std::size_t err_data_size;
  u64 reserved[8];
};
struct CqOps {
  std::size_t size;
  ssize_t (*read)(CompletionQueue*, void* buf, std::size_t count);
  ssize_t (*readfrom)(CompletionQueue*, void* buf, std::size_t count, Address* source);
  ssize_t (*readerr)(CompletionQueue*, CqError*, u64 flags);
  Unused sread, sreadfrom, signal;
  const char* (*strerror)(CompletionQueue*, int prov_errno, const void* err_data, char* buf, std::size_t len);
};
struct CompletionQueue {
  Fid fid;
  CqOps* ops;
};

struct RmaIov {
  u64 addr;
  std::size_t len;
  u64 key;
};
struct MsgRma {
  const iovec* msg_iov;
  void** desc;
  std::size_t iov_count;
  Address addr;
  const RmaIov* rma_iov;
  std::size_t rma_iov_count;
  void* context;
  u64 data;
};
struct CmOps {
  std::size_t size;
  Unused setname;
  int (*getname)(Fid*, void* addr, std::size_t* len);
};
struct RmaOps {
  std::size_t size;
  Unused read, readv, readmsg, write, writev;
  ssize_t (*writemsg)(Endpoint*, const MsgRma*, u64 flags);
};
struct Endpoint {
  Fid fid;
  void* ops;
  CmOps* cm;
  void* msg;
  RmaOps* rma;
};

}  // namespace uccl::fi

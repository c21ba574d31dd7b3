// What the families that drive a NIC (verbs, efa, libfabric) are told beyond TransportSettings: which NICs, how to
// speak on them, and which memory is a device's. The choices are made in Python, with their reasons (uccl_ep/fabric).
#pragma once
#include <string>
#include <vector>

#include "wire/types.h"

namespace uccl {

// Of a GPU's memory behind one descriptor. The kernel maps all of a descriptor's pages for each registration of a part.
inline constexpr u64 kDmabufBytes = 1ull << 30;

struct NicSettings {
  std::string device;  // as the family names it: "mlx5_0", "rdmap0s6", "rxe0"
  u32 port = 1;
  int gid_index = -1;  // verbs: which entry of the port's GID table; -1: a LID (InfiniBand)
};

struct FabricSettings {
  std::vector<NicSettings> nics;  // this rank's, nearest first; the same number on every rank is not needed
  std::string provider;           // libfabric: "tcp", "shm", "cxi", "efa", ...
  u32 queue_pairs = 1;            // per peer, lane and NIC; the engine assumes no order across or inside them
  u32 service_level = 0, traffic_class = 0, hop_limit = 64;
  u32 mtu = 0;                    // bytes; 0: what the port is at
  u32 udp_source_port = 0;        // first of a range, one a queue pair, so that paths differ; 0: the driver chooses
  // A packet without an answer is sent again after InfiniBand's 4.096 us * 2^timeout, so often: what the field has, 34 s
  // at least, so that a link that goes for 20 s and comes back costs no connection. EFA has its own.
  u32 timeout = 20;
  u32 retries = 7;  // soft-RoCE: at most 6, since 7 means for ever there and a dead peer would never be noticed
  bool relaxed_ordering = true;  // of a write's bytes on PCIe; the immediate still comes after them
  // The dma-bufs that hold local.spans()[i] (a GPU's memory): one for each kDmabufBytes of it, or one for all; none or
  // absent: plain memory of this process. Known to who holds the memory, so not among the choices that Python makes.
  std::vector<std::vector<int>> span_dmabuf_fds;
  // A GPU's memory: arrivals are told once their bytes are visible to every GPU, which a read by the same NIC sees to.
  bool flush_by_read = false;  // verbs
  int flushed_span = -1;  // where that read goes: the index of a span in that memory. Not chosen in Python either
  // verbs, efa, libfabric: the index of a span that only sends, and that nobody may ever use. Transport::admit registers it.
  int late_span = -1;
};

// What of the late span may be sent from now on: its first `bytes`. What was not admitted before lies at the span's
// addresses, or is a device's memory (verbs, efa), for which those are no more than names.
struct Admission {
  u64 bytes = 0;
  u64 address = 0;  // of a device's memory in this process; 0: unknown here, or none
  std::vector<int> dmabufs;  // that hold it, as in span_dmabuf_fds; open until it is admitted
  bool of_device() const { return address != 0 || !dmabufs.empty(); }
};

// A choice and why it was made; printed with UCCL_EP_EXPLAIN=1 and by `uccl-ep plan`.
struct Note {
  std::string choice, reason;
};

}  // namespace uccl

// The native module uccl_ep._native.
#include "bindings/register.h"
#include "wire/limits.h"

NB_MODULE(_native, m) {
  // A rank that ends by an exception keeps objects: its error is what is to be read, not a list of them.
  nanobind::set_leak_warnings(false);
  m.doc() = "Native core of uccl_ep: memory segments, the proxy engine, and the kernels' CPU build.";
  m.attr("MAX_RANKS") = uccl::kMaxRanks;
  m.attr("MAX_EXPERTS") = uccl::kMaxExperts;
  m.attr("MAX_TOKENS_PER_RANK") = uccl::kMaxTokensPerRank;
  m.attr("MAX_TOPK") = uccl::kMaxTopk;
  m.attr("MAX_RANKS_PER_NODE") = uccl::kMaxRanksPerNode;
  m.attr("MAX_CHANNELS") = uccl::kMaxChannels;
  m.attr("MAX_HIDDEN") = uccl::kMaxHidden;
  m.attr("MAX_REGION_BYTES") = uccl::kMaxRegionBytes;
  m.attr("MAX_WRITE_BYTES") = uccl::kMaxWriteBytes;
  uccl::register_enums(m);
  uccl::register_memory(m);
  uccl::register_proxy(m);
  uccl::register_layouts(m);
  uccl::register_streams(m);
  uccl::register_kernels(m);
  uccl::register_launches(m);
  uccl::register_probe(m);
  uccl::register_diag(m);
  uccl::register_ids(m);
}

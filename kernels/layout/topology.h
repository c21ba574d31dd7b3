// Which ranks share a node, and who stands for a source on another node.
//
// A row crosses the network once per destination node: it lands at its *host* there, the rank on the source's rail
// (same local index, modulo the node's size), and every rank of that node reads it where it landed. On its own node a
// source is its own host. A host therefore keeps one *hosted slot* per remote source on its rail.
#pragma once
#include "wire/types.h"

namespace uccl {

struct TopologyView {
  const u32* node_of;     // [num_ranks]
  const u32* local_of;    // [num_ranks] index inside the node, by ascending rank
  const u32* node_begin;  // [num_nodes + 1] into members
  const u32* members;     // [num_ranks] ranks, node by node, ascending inside a node
  u32 num_ranks, num_nodes;
  u32 rank, node, local, local_size;
  u32 fan;                // most sources of one node that one host stands for: ceil(largest node / smallest node)
  u32 unused;

  constexpr u32 size_of(u32 n) const { return node_begin[n + 1] - node_begin[n]; }
  constexpr u32 member(u32 n, u32 i) const { return members[node_begin[n] + i]; }
  constexpr bool is_local(u32 r) const { return node_of[r] == node; }
  // The rank of node n where rows of `source` are read.
  constexpr u32 host_of(u32 source, u32 n) const {
    return node_of[source] == n ? source : member(n, local_of[source] % size_of(n));
  }
  // Where rows of a remote source are kept at its host on node n; below num_hosted().
  constexpr u32 hosted_slot(u32 source, u32 n) const { return node_of[source] * fan + local_of[source] / size_of(n); }
  constexpr u32 num_hosted() const { return num_nodes * fan; }
};

}  // namespace uccl

// Which ranks share a node, and who stands for a source on another node.
//
// Two groupings. A *node* is ranks that reach each other by load and store. A *cell* is ranks that share one landing
// place for rows of other nodes; it lies within a node. Normally a cell is a whole node, so a row crosses the network
// once per destination node: it lands at its *landing rank* there, the rank of the cell on the source's rail (same
// index in the node, modulo the cell's size), and every rank of the cell reads it where it landed. In a node of several
// hosts a cell is its ranks of one host: what a landing rank's proxy writes is not reached from another one. With
// enable_shrink each rank is a cell of its own: more bytes, and no rank depends on another for what a third one sends.
// A landing rank keeps one *landing slot* per remote source on its rail.
#pragma once
#include "wire/types.h"

namespace uccl {

// The node and cell of a rank that is *absent*: the survivors have agreed to go on without it (Buffer.recover). It
// keeps its number and its experts' numbers; it is masked, is nobody's landing rank, and has no landing slot.
inline constexpr u32 kNoNode = ~0u;

struct TopologyView {
  const u32* node_of;  // [num_ranks], kNoNode = absent
  const u32* local_of;  // [num_ranks] index inside the node, by ascending rank; 0 where absent
  const u32* cell_of;  // [num_ranks], kNoNode = absent
  const u32* place_of;  // [num_ranks] index inside the cell; 0 where absent
  const u32* cell_begin;  // [num_cells + 1] into members
  const u32* members;  // ranks that are present, cell by cell, ascending inside a cell
  const u32* mates;  // [local_size] ranks of this rank's node, ascending
  u32 num_ranks, num_nodes, num_cells;
  u32 rank, node, local, local_size;
  u32 cell, place;  // of this rank
  u32 fan;  // most sources of one node that one landing rank stands for: ceil(largest node / smallest cell)

  constexpr bool is_absent(u32 r) const { return node_of[r] == kNoNode; }
  constexpr bool is_local(u32 r) const { return node_of[r] == node; }
  constexpr u32 size_of(u32 n) const { return cell_begin[n + 1] - cell_begin[n]; }  // of a cell
  constexpr u32 member(u32 n, u32 i) const { return members[cell_begin[n] + i]; }
  constexpr bool is_remote(u32 n) const { return !is_local(member(n, 0)); }
  // The rank of cell n where rows of `source`, which is present, are read.
  constexpr u32 landing_rank(u32 source, u32 n) const {
    return node_of[source] == node_of[member(n, 0)] ? source : member(n, local_of[source] % size_of(n));
  }
  // Where rows of a remote source are kept at its landing rank in cell n; below num_landing_slots().
  constexpr u32 landing_slot(u32 source, u32 n) const { return node_of[source] * fan + local_of[source] / size_of(n); }
  constexpr u32 num_landing_slots() const { return num_nodes * fan; }

  // An *audience* of this rank: who reads one stream of its rows. Its whole node, under its own cell's number, and each
  // cell of another node; other cells of its node are none.
  constexpr bool is_audience(u32 n) const { return n == cell || is_remote(n); }
  constexpr u32 audience_size(u32 n) const { return n == cell ? local_size : size_of(n); }
  constexpr u32 audience_member(u32 n, u32 i) const { return n == cell ? mates[i] : member(n, i); }
  constexpr u32 audience_of(u32 r) const { return is_local(r) ? cell : cell_of[r]; }
  constexpr u32 place_in_audience(u32 r) const { return is_local(r) ? local_of[r] : place_of[r]; }
  // The other way round, the *crowd* that reads rows of `source` where this rank reads them.
  constexpr u32 crowd_size(u32 source) const { return is_local(source) ? local_size : size_of(cell); }
  constexpr u32 crowd_member(u32 source, u32 i) const { return is_local(source) ? mates[i] : member(cell, i); }
  constexpr u32 place_in_crowd(u32 source) const { return is_local(source) ? local : place; }
};

}  // namespace uccl

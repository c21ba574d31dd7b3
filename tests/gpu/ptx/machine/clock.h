// What a lane knows of all others: vector clocks that share what they have in common.
//
// A lane has an id below 2^30 and counts its own releases. A clock is a tree of 32-way nodes over ids; nodes never
// change once another clock has them, so that lanes which met in a barrier keep one tree between them and merging two
// clocks costs what differs. One thread at a time (the machine's mutex).
#pragma once
#include <array>
#include <cstdint>
#include <utility>

namespace ptx {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i32 = std::int32_t;
using i64 = std::int64_t;

class Clock {
 public:
  static constexpr u32 kBits = 5, kWidth = 1u << kBits, kLevels = 6;  // 2^30 ids
  using Leaf = std::array<u32, kWidth>;

  Clock() = default;
  Clock(const Clock& other) : root_(hold(other.root_)) {}
  Clock(Clock&& other) noexcept : root_(std::exchange(other.root_, nullptr)) {}
  Clock& operator=(Clock other) noexcept {
    std::swap(root_, other.root_);
    return *this;
  }
  ~Clock() { drop(root_, kLevels - 1); }

  // How far lane `id` is known to have come; 0: nothing of it is known.
  u32 at(u32 id) const {
    const Node* node = root_;
    for (u32 level = kLevels - 1; level > 0 && node != nullptr; --level) node = node->child[digit(id, level)];
    return node == nullptr ? 0 : node->clock[digit(id, 0)];
  }
  // Knows that the 32 lanes from `first` on (a multiple of 32) have come so far.
  void learn(u32 first, const Leaf& leaf);
  void learn(u32 id, u32 clock);
  // Knows all that `other` knows.
  void learn(const Clock& other) {
    if (root_ == other.root_) return;
    Node* const merged = merge(root_, other.root_, kLevels - 1);
    drop(root_, kLevels - 1);
    root_ = merged;
  }
  bool same_as(const Clock& other) const { return root_ == other.root_; }

 private:
  struct Node {
    u32 references = 1;
    union {
      Node* child[kWidth];
      u32 clock[kWidth];
    };
  };
  static u32 digit(u32 id, u32 level) { return id >> (kBits * level) & (kWidth - 1); }
  static Node* hold(Node* node) {
    if (node != nullptr) ++node->references;
    return node;
  }
  static void drop(Node* node, u32 level);
  static Node* merge(Node* a, Node* b, u32 level);
  static Node* merge_children(Node* a, Node* b, u32 level);

  Node* root_ = nullptr;
};

}  // namespace ptx

#include "clock.h"

#include <algorithm>

namespace ptx {

void Clock::drop(Node* node, u32 level) {
  if (node == nullptr || --node->references != 0) return;
  if (level > 0)
    for (Node* child : node->child) drop(child, level - 1);
  delete node;
}

// A new reference to what knows both; one of the two where it knows all.
Clock::Node* Clock::merge(Node* a, Node* b, u32 level) {
  if (a == b || b == nullptr) return hold(a);
  if (a == nullptr) return hold(b);
  if (level == 0) {
    bool a_knows = true, b_knows = true;
    for (u32 i = 0; i < kWidth; ++i) {
      a_knows = a_knows && b->clock[i] <= a->clock[i];
      b_knows = b_knows && a->clock[i] <= b->clock[i];
    }
    if (a_knows) return hold(a);
    if (b_knows) return hold(b);
    auto* const made = new Node;
    for (u32 i = 0; i < kWidth; ++i) made->clock[i] = std::max(a->clock[i], b->clock[i]);
    return made;
  }
  // Lanes of a warp learn the same of the same: what two nodes gave is remembered, and kept, for a while.
  struct Remembered {
    Node *a = nullptr, *b = nullptr, *merged = nullptr;
    u32 level = 0;
  };
  static Remembered memory[1 << 12];
  const u64 hash = (reinterpret_cast<u64>(a) * 0x9E3779B97F4A7C15ull) ^ (reinterpret_cast<u64>(b) * 0xC2B2AE3D27D4EB4Full);
  Remembered& slot = memory[hash >> 52];
  if (slot.a == a && slot.b == b) return hold(slot.merged);
  Node* const merged = merge_children(a, b, level);
  for (Node* old : {slot.a, slot.b, slot.merged}) drop(old, slot.level);
  slot = Remembered{hold(a), hold(b), hold(merged), level};
  return merged;
}

Clock::Node* Clock::merge_children(Node* a, Node* b, u32 level) {
  Node* merged[kWidth];
  bool all_a = true, all_b = true;
  for (u32 i = 0; i < kWidth; ++i) {
    merged[i] = merge(a->child[i], b->child[i], level - 1);
    all_a = all_a && merged[i] == a->child[i];
    all_b = all_b && merged[i] == b->child[i];
  }
  if (all_a || all_b) {
    for (Node* child : merged) drop(child, level - 1);
    return hold(all_a ? a : b);
  }
  auto* const made = new Node;
  std::copy(std::begin(merged), std::end(merged), std::begin(made->child));
  return made;
}

void Clock::learn(u32 first, const Leaf& leaf) {
  Clock path;
  auto* node = new Node;
  std::copy(leaf.begin(), leaf.end(), std::begin(node->clock));
  for (u32 level = 1; level < kLevels; ++level) {
    auto* const parent = new Node;
    std::fill(std::begin(parent->child), std::end(parent->child), nullptr);
    parent->child[digit(first, level)] = node;
    node = parent;
  }
  path.root_ = node;
  learn(path);
}

void Clock::learn(u32 id, u32 clock) {
  if (at(id) >= clock) return;
  Leaf leaf{};
  leaf[digit(id, 0)] = clock;
  learn(id & ~(kWidth - 1), leaf);
}

}  // namespace ptx

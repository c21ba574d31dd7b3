// Every interleaving of a small world: a depth-first walk over its states, each complete state visited once.
//
// A World is the real objects under test, the network between them, and an oracle. It offers
//   void actions(std::vector<Action>& out)  what can happen next; nothing when all is over
//   void act(Action)                        does one thing to the real objects, and to the oracle
//   void check()                            every promise that holds at every moment; throws check::Failure
//   void check_end()                        what holds when nothing can happen any more (so: nobody waits for ever)
//   void state(Bytes& out)                  everything that decides what can come, private members included
//   Snapshot save(), void load(Snapshot)    by copying the words, or by playing the history again (Replayed)
//   std::string describe(Action)            for the schedule that a failure prints
//
// States are told apart by a 128-bit hash of `state`. An action that changes nothing is passed over. From every state an
// end must be reachable, so under fair scheduling nobody waits for ever, also where somebody retries (a cycle). Where
// there is no cycle the interleavings (maximal paths) are counted along with the states.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "native/check.h"
#include "wire/types.h"

namespace uccl::testing {

using Bytes = std::string;

template <class T>
void put(Bytes& out, const T& value) {
  static_assert(std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T>,
                "no padding in a state");
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
inline void put_bytes(Bytes& out, const void* data, std::size_t bytes) {
  out.append(static_cast<const char*>(data), bytes);
}

// How large the configurations are: UCCL_EP_TEST_DEPTH, 1 (seconds) unless set, 2 for the slow run.
inline int depth() {
  const char* text = std::getenv("UCCL_EP_TEST_DEPTH");
  const int n = text ? std::atoi(text) : 1;
  return n >= 1 ? n : 1;
}

struct Explored {
  u64 states = 0, transitions = 0, deepest = 0;
  long double interleavings = 0;  // 0: uncounted, the world has cycles
};

template <class World>
class Explorer {
 public:
  explicit Explorer(World& world) : world_(world) {}

  Explored run() {
    try {
      world_.check();
      const long double paths = walk(0).second;
      found_.interleavings = cyclic_ ? 0 : paths;
    } catch (const check::Failure& failure) { throw check::Failure(failure.what() + schedule()); }
    found_.states = seen_.size();
    demand_progress();
    return found_;
  }

 private:
  struct Hash {
    u64 a, b;
    bool operator==(const Hash&) const = default;
  };
  struct Low {
    std::size_t operator()(const Hash& h) const { return h.a; }
  };
  // Two multiply-xor chains with different constants; a collision among 10^7 states has odds of about 10^-24.
  static Hash hash(const Bytes& s) {
    u64 a = 0x9e3779b97f4a7c15ull ^ s.size(), b = 0xc2b2ae3d27d4eb4full + s.size();
    for (std::size_t i = 0; i < s.size(); i += 8) {
      u64 w = 0;
      std::memcpy(&w, s.data() + i, s.size() - i < 8 ? s.size() - i : 8);
      a = mix(a ^ w);
      b = mix(b + w * 0xff51afd7ed558ccdull) ^ a >> 7;
    }
    return {mix(a), mix(b ^ a)};
  }
  static u64 mix(u64 z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
  }
  Hash here() {
    Bytes& bytes = scratch_;
    bytes.clear();
    world_.state(bytes);
    return hash(bytes);
  }

  struct Node {
    u32 id;
    bool on_path = true;
    long double paths = 0;
  };

  // Returns the state's id and its maximal paths.
  std::pair<u32, long double> walk(u64 depth_here) {
    const Hash self = here();
    const auto [at, fresh] = seen_.try_emplace(self, Node{static_cast<u32>(seen_.size())});
    const u32 id = at->second.id;
    if (!fresh) {
      cyclic_ |= at->second.on_path;
      return {id, at->second.paths};
    }
    found_.deepest = depth_here > found_.deepest ? depth_here : found_.deepest;
    std::vector<typename World::Action> actions;
    world_.actions(actions);
    const auto snapshot = world_.save();
    long double paths = 0;
    bool moved = false;
    for (const auto& action : actions) {
      path_.push_back(action);
      world_.act(action);
      world_.check();
      if (!(here() == self)) {
        moved = true;
        ++found_.transitions;
        const auto [next, more] = walk(depth_here + 1);
        edges_.push_back({next, id});
        paths += more;
      }
      path_.pop_back();
      world_.load(snapshot);
    }
    if (!moved) {
      world_.check_end();
      ends_.push_back(id);
      paths = 1;
    }
    Node& node = seen_[self];
    node.on_path = false;
    node.paths = paths;
    return {id, paths};
  }

  // Backwards from the ends: every state must be met.
  void demand_progress() {
    std::sort(edges_.begin(), edges_.end());
    std::vector<bool> met(seen_.size());
    std::size_t num_met = 0;
    for (std::vector<u32> next = ends_; !next.empty();) {
      const u32 id = next.back();
      next.pop_back();
      if (met[id]) continue;
      met[id] = true;
      ++num_met;
      for (auto e = std::lower_bound(edges_.begin(), edges_.end(), std::pair{id, 0u});
           e != edges_.end() && e->first == id; ++e)
        next.push_back(e->second);
    }
    if (num_met != seen_.size())
      check::fail(__FILE__, __LINE__, std::to_string(seen_.size() - num_met) + " states from which no end is reached");
  }

  std::string schedule() const {
    std::string text = "\n        after " + std::to_string(path_.size()) + " steps:";
    for (const auto& action : path_) text += "\n          " + world_.describe(action);
    return text;
  }

  World& world_;
  Explored found_;
  Bytes scratch_;
  std::vector<typename World::Action> path_;
  std::unordered_map<Hash, Node, Low> seen_;
  std::vector<std::pair<u32, u32>> edges_;  // (to, from)
  std::vector<u32> ends_;
  bool cyclic_ = false;
};

// Explores and prints the counts, which pytest shows with -s and CI keeps.
template <class World>
Explored explore(const std::string& name, World&& world) {
  Explorer<std::remove_reference_t<World>> explorer(world);
  const Explored e = explorer.run();
  std::printf("explored %-52s %9llu states %10llu transitions %3llu deep", name.c_str(), e.states, e.transitions,
              e.deepest);
  if (e.interleavings > 0) std::printf(" %12.6Lg interleavings", e.interleavings);
  std::printf("\n");
  return e;
}

// save/load by playing the history again, for objects that hold references and cannot be copied back. `World` offers
// reset() (back to the start) and step(action); act() here records.
template <class World, class A>
class Replayed {
 public:
  using Action = A;
  using Snapshot = std::size_t;
  void act(const A& action) {
    history_.push_back(action);
    static_cast<World*>(this)->step(action);
  }
  Snapshot save() const { return history_.size(); }
  void load(Snapshot length) {
    history_.resize(length);
    static_cast<World*>(this)->reset();
    for (const A& action : history_) static_cast<World*>(this)->step(action);
  }

 private:
  std::vector<A> history_;
};

}  // namespace uccl::testing

// Who last touched each word of memory, and whether the next one to touch it is ordered behind them as PTX demands.
//
// Two accesses of one word, at least one of them a write, by lanes neither of which knows the other's, are a race
// unless both are strong and each lies within the other's scope ("morally strong"). The host is lane 0: its writes are
// not seen happening, but a word that has changed since a lane last looked was written by it (or by a NIC), and a lane
// may read such a word weakly only when it has acquired a word that the host has written since then, as far as can be
// seen: its value was first seen later than that look.
#pragma once
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "program.h"

namespace ptx {

inline constexpr u32 kHost = 0;

struct Access {
  u32 id = kHost, clock = 0;  // the lane and its count of releases
  u32 launch = 0, instruction = 0;
  u16 block = 0, device = 0;
  Scope scope = Scope::kNone;  // kNone: weak

  // `other` lies within this access's scope.
  bool covers(const Access& other) const {
    if (scope == Scope::kSys) return true;
    if (other.id == kHost || scope == Scope::kNone) return false;
    if (scope == Scope::kGpu) return device == other.device;
    return launch == other.launch && block == other.block;
  }
  bool morally_strong_with(const Access& other) const { return covers(other) && other.covers(*this); }
};

struct Cell {
  static constexpr u32 kMaxReads = 64;
  Access write;
  std::vector<Access> reads;  // since the write, none of which knows another
  std::unique_ptr<std::array<Cell, 4>> bytes;  // where lanes touch less than the word
  u32 value = 0;
  u32 seen = 0;  // when a lane last touched it, and the value was as above; 0: never
  u32 noticed = 0;  // when that value was first seen, if the host wrote it: it had by then
};

class Shadow {
 public:
  // The cells of [address, address + bytes): words, or single bytes where somebody touched less than a word.
  template <class Visit>
  void visit(u64 address, u32 bytes, Visit&& visit_cell) {
    const u64 end = address + bytes;
    while (address < end) {
      Cell& word = word_at(address);
      const u32 first = static_cast<u32>(address & 3);
      if (first == 0 && end - address >= 4 && !word.bytes) {
        visit_cell(word, address, 4u);
        address += 4;
        continue;
      }
      split(word);
      for (u32 i = first; i < 4 && address < end; ++i, ++address) visit_cell((*word.bytes)[i], address, 1u);
    }
  }
  // The words and bytes that lanes have touched.
  template <class Wanted, class Visit>
  void visit_touched(Wanted&& wanted, Visit&& visit_cell) {
    for (auto& [number, page] : pages_) {
      if (!wanted(number * 4 * kPageWords, (number + 1) * 4 * kPageWords)) continue;
      for (u32 w = 0; w < kPageWords; ++w) {
        Cell& word = (*page)[w];
        const u64 address = (number * kPageWords + w) * 4;
        if (word.bytes) {
          for (u32 i = 0; i < 4; ++i)
            if ((*word.bytes)[i].seen != 0) visit_cell((*word.bytes)[i], address + i, 1u);
        } else if (word.seen != 0) {
          visit_cell(word, address, 4u);
        }
      }
    }
  }
  void forget(u64 address, u64 bytes);
  u64 pages() const { return pages_.size(); }

 private:
  static constexpr u32 kPageWords = 256;
  Cell& word_at(u64 address) {
    const u64 number = address / (4 * kPageWords);
    if (number != last_number_ || last_ == nullptr) {
      auto& page = pages_[number];
      if (!page) page = std::make_unique<std::array<Cell, kPageWords>>();
      last_number_ = number;
      last_ = page.get();
    }
    return (*last_)[address / 4 % kPageWords];
  }
  static void split(Cell& word);

  std::unordered_map<u64, std::unique_ptr<std::array<Cell, kPageWords>>> pages_;
  u64 last_number_ = 0;
  std::array<Cell, kPageWords>* last_ = nullptr;
};

}  // namespace ptx

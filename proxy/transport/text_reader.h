// Reads an address that is text, field by field. Every number has a limit and every word a length, checked before use;
// what is wrong is refused with the text (what is unprintable shown as '?') and the place in it.
#pragma once
#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <string>

#include "wire/types.h"

namespace uccl {

class TextReader {
 public:
  // owner begins each message ("libfabric"). Throws std::runtime_error, as all that follow, when text does not begin
  // with prefix. text must outlive the reader.
  TextReader(const char* owner, const std::string& text, const std::string& prefix) : owner_(owner), text_(text) {
    if (text.compare(0, prefix.size(), prefix) != 0) fail("not an address of this kind and version");
    at_ = prefix.size();
  }
  // A decimal number of at most limit.
  u64 number(u64 limit) {
    u64 value = 0;
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc() || value > limit) fail("no number, or one beyond its limit,");
    at_ += static_cast<std::size_t>(end - begin);
    return value;
  }
  void expect(char c) {
    if (at_ >= text_.size() || text_[at_] != c) fail("a separator is missing");
    ++at_;
  }
  // What stands before the next space or the end: 1 to most characters.
  std::string word(u64 most) {
    const std::size_t end = std::min(text_.find(' ', at_), text_.size());
    if (end == at_ || end - at_ > most) fail("an empty or overlong word");
    std::string w = text_.substr(at_, end - at_);
    at_ = end;
    return w;
  }
  bool at_end() const { return at_ == text_.size(); }
  [[noreturn]] void fail(const char* what) const {
    std::string shown = text_.substr(0, 100);
    for (char& c : shown) c = c >= ' ' && c < 127 ? c : '?';
    throw std::runtime_error(std::string(owner_) + ": address '" + shown + "': " + what + " at character " +
                             std::to_string(at_));
  }

 private:
  const char* owner_;
  const std::string& text_;
  std::size_t at_ = 0;
};

}  // namespace uccl

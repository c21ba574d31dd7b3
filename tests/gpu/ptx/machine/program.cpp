#include "program.h"

#include <charconv>
#include <stdexcept>

namespace ptx {
namespace {

const std::map<std::string_view, Op>& operations() {
  static const std::map<std::string_view, Op> known{
#define X(name) {#name, Op::k_##name},
      PTX_OPERATIONS(X)
#undef X
  };
  return known;
}

std::vector<std::string_view> split(std::string_view text, char by) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto end = text.find(by);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

template <class T>
T number(std::string_view text, int base = 10) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) throw std::runtime_error("no number: " + std::string(text));
  return value;
}

// "r7" is slot 7, "=1f" a value; "_" nothing.
Operand operand(std::string_view text) {
  if (text == "_") return {};
  if (text.front() == 'r') return {0, number<u16>(text.substr(1))};
  return {number<u64>(text.substr(1), 16), kNoSlot};
}

// op, predicate, targets, sources, offset, memory ("space bytes count extended order scope"), place.
Instruction instruction(std::string_view line) {
  const auto column = split(line, '\t');
  if (column.size() != 7) throw std::runtime_error("an instruction has 7 columns: " + std::string(line));
  Instruction i;
  const auto found = operations().find(column[0]);
  if (found == operations().end()) throw std::runtime_error("unknown operation: " + std::string(line));
  i.op = found->second;
  if (column[1] != "-") {
    i.negated = column[1].front() == '!';
    i.predicate = number<u16>(column[1].substr(i.negated ? 1 : 0));
  }
  u32 n = 0;
  if (!column[2].empty())
    for (const auto part : split(column[2], ',')) i.to.at(n++) = operand(part).slot;
  n = 0;
  if (!column[3].empty())
    for (const auto part : split(column[3], ',')) i.from.at(n++) = operand(part);
  i.offset = number<i64>(column[4]);
  if (!column[5].empty()) {
    const auto part = split(column[5], ' ');
    i.space = static_cast<Space>(number<u8>(part.at(0)));
    i.bytes = number<u8>(part.at(1));
    i.count = number<u8>(part.at(2));
    i.extended = number<u8>(part.at(3));
    i.order = static_cast<Order>(number<u8>(part.at(4)));
    i.scope = static_cast<Scope>(number<u8>(part.at(5)));
  }
  i.place = number<u32>(column[6]);
  return i;
}

}  // namespace

std::vector<Kernel> read_program(std::string_view text) {
  std::vector<Kernel> kernels;
  for (const auto line : split(text, '\n')) {
    if (line.empty()) continue;
    if (line.starts_with("kernel ")) {
      const auto part = split(line, ' ');
      Kernel k;
      k.name = part.at(1);
      k.slots = number<u32>(part.at(2));
      k.param_bytes = number<u32>(part.at(3));
      kernels.push_back(std::move(k));
    } else if (kernels.empty()) {
      throw std::runtime_error("a program begins with a kernel: " + std::string(line));
    } else if (line.starts_with("place ")) {
      kernels.back().places.emplace_back(line.substr(6));
    } else {
      kernels.back().code.push_back(instruction(line));
    }
  }
  for (Kernel& k : kernels) k.executed.resize(k.code.size());
  return kernels;
}

const char* name_of(Op op) {
  static constexpr const char* kNames[] = {
#define X(name) #name,
      PTX_OPERATIONS(X)
#undef X
  };
  return kNames[static_cast<u32>(op)];
}

}  // namespace ptx

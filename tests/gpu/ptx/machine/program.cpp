// Reads the text that lower.py writes.
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
  if (error != std::errc() || end != text.data() + text.size())
    throw std::runtime_error("no number: " + std::string(text));
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

// A load of global memory that orders nothing: a processor goes on behind it until its value is used.
bool is_plain_load(const Instruction& i) {
  return i.op == Op::k_ld && i.order == Order::kWeak && (i.space == Space::kGlobal || i.space == Space::kGeneric);
}

// Slots that may hold the value of a load which nobody has used yet, before each instruction; whoever uses one waits, and
// then all are there. A copy from register to register uses nothing.
class Pending {
 public:
  explicit Pending(Kernel& kernel) : kernel_(kernel), before_(kernel.code.size()), reached_(kernel.code.size()) {
    for (auto& slots : before_) slots.resize(kernel.slots);
  }
  void mark() {
    if (kernel_.code.empty()) return;
    reached_[0] = true;
    todo_.push_back(0);
    while (!todo_.empty()) {
      const u32 at = todo_.back();
      todo_.pop_back();
      step(at);
    }
  }

 private:
  void step(u32 at) {
    Instruction& i = kernel_.code[at];
    std::vector<bool> slots = before_[at];
    bool uses = i.predicate != kNoSlot && slots[i.predicate];
    for (const Operand& operand : i.from) uses = uses || (operand.slot != kNoSlot && slots[operand.slot]);
    const bool moves = uses && i.op == Op::k_mov;
    if (uses && !moves) {
      i.waits = true;
      slots.assign(slots.size(), false);
    }
    for (const u16 slot : i.to)
      if (slot != kNoSlot) slots[slot] = moves || is_plain_load(i) || (i.predicate != kNoSlot && slots[slot]);
    if (i.op == Op::k_bra) join(static_cast<u32>(i.offset), slots);
    if ((i.op != Op::k_bra && i.op != Op::k_ret) || i.predicate != kNoSlot) join(at + 1, slots);
  }
  void join(u32 at, const std::vector<bool>& slots) {
    if (at >= before_.size()) return;
    bool grows = !reached_[at];
    reached_[at] = true;
    for (size_t n = 0; n < slots.size(); ++n)
      if (slots[n] && !before_[at][n]) before_[at][n] = grows = true;
    if (grows) todo_.push_back(at);
  }

  Kernel& kernel_;
  std::vector<std::vector<bool>> before_;
  std::vector<bool> reached_;
  std::vector<u32> todo_;
};

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
  for (Kernel& k : kernels) {
    k.executed.resize(k.code.size());
    Pending(k).mark();
  }
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

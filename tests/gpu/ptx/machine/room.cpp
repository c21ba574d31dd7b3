// Which processors have room for a block.
#include "lanes.h"

namespace ptx {
namespace {

constexpr u32 kRegisterUnit = 8;  // of a lane, for a whole warp

u32 up_to(u32 value, u32 unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

Machine::Sm Machine::need(const LaunchRequest& request) const {
  return {request.lanes, 1, request.lanes * up_to(request.registers, kRegisterUnit),
          up_to(request.shared_bytes + Processor::kReserved, 128)};
}

// Why no processor could hold a block; "": one can.
std::string Machine::too_large(const LaunchRequest& request) const {
  const Processor& p = settings_.processor;
  const auto beyond = [](const char* what, u32 wanted, u32 most) {
    return wanted > most
               ? "a block of " + std::to_string(wanted) + " " + what + ", of which there are " + std::to_string(most)
               : std::string();
  };
  if (request.grid == 0 || request.lanes == 0) return "a grid of no blocks";
  std::string why = beyond("lanes", request.lanes, 1024);
  if (why.empty()) why = beyond("registers", need(request).registers, p.registers);
  if (why.empty()) why = beyond("bytes of shared memory", request.shared_bytes, p.block_shared_bytes());
  return why;
}

// Any of those that have room: a GPU's own choice is not known.
bool Machine::place(Launch& launch, u32* where) {
  if (launch.full_since == ended_blocks_) return false;
  const Processor& p = settings_.processor;
  const Sm needed = need(launch.request);
  std::vector<Sm>& sms = gpus_[launch.request.gpu];
  const u32 count = launch.request.num_sms, first = static_cast<u32>(random() % count);
  sms.resize(count);
  for (u32 n = 0; n < count; ++n) {
    const u32 at = (first + n) % count;
    Sm& sm = sms[at];
    if (at < occupied_[launch.request.gpu] || sm.blocks == p.blocks || sm.lanes + needed.lanes > p.lanes ||
        sm.registers + needed.registers > p.registers || sm.shared_bytes + needed.shared_bytes > p.shared_bytes)
      continue;
    sm.lanes += needed.lanes;
    sm.blocks += 1;
    sm.registers += needed.registers;
    sm.shared_bytes += needed.shared_bytes;
    *where = at;
    return true;
  }
  launch.full_since = ended_blocks_;
  return false;
}

void Machine::leave(const Launch& launch, const Block& block) {
  const Sm needed = need(launch.request);
  Sm& sm = gpus_[launch.request.gpu][block.sm];
  sm.lanes -= needed.lanes;
  sm.blocks -= 1;
  sm.registers -= needed.registers;
  sm.shared_bytes -= needed.shared_bytes;
  ++ended_blocks_;
}

void Machine::occupy(u32 gpu, u32 num_sms) {
  const std::lock_guard lock(mutex_);
  occupied_[gpu] = num_sms;
  ++ended_blocks_;
}

}  // namespace ptx

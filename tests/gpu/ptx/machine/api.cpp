// The machine for ctypes (machine.py). A call that goes wrong returns a text of its own allocation, else null.
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

#include "machine.h"

namespace {

char* text(const std::string& message) { return message.empty() ? nullptr : strdup(message.c_str()); }

}  // namespace

extern "C" {

// `lag`: turns until a device and others see what NICs have written into its memory. `shared_bytes`: of a processor.
ptx::Machine* ptx_open(ptx::u64 seed, ptx::u32 preempt, bool judge, bool count, ptx::u32 owner_lag, ptx::u32 others_lag,
                       ptx::u32 shared_bytes, ptx::u64 patience_ns) {
  ptx::Settings settings{seed, preempt, judge, count, {}, {owner_lag, others_lag}};
  settings.processor.shared_bytes = shared_bytes;
  settings.patience_ns = patience_ns;
  return new ptx::Machine(settings);
}
void ptx_close(ptx::Machine* machine) { delete machine; }
void ptx_free(char* message) { std::free(message); }

char* ptx_load(ptx::Machine* machine, const char* program) try {
  machine->load(program);
  return nullptr;
} catch (const std::exception& error) { return text(error.what()); }

// `shape`: grid, lanes, shared bytes, registers of a lane, stream, device, snapshot, GPU, its SMs. `counts`: u64 [17 + room]: grid, warps, instructions, busiest lane, host reads, bytes loaded and stored, trips of seven kinds, plain host reads, then each warp's.
char* ptx_launch(ptx::Machine* machine, const char* kernel, const ptx::u32* shape, const char* args, ptx::u64 arg_bytes,
                 ptx::u64* counts, ptx::u64 room) {
  ptx::Counts made;
  const ptx::LaunchRequest request{kernel,   shape[0], shape[1], shape[2], shape[3], std::string(args, arg_bytes),
                                   shape[4], shape[5], shape[6], shape[7], shape[8]};
  const std::string error = machine->launch(request, &made);
  const ptx::u64 head[] = {made.grid,       made.warps,           made.instructions, made.busiest_lane, made.host_reads,
                           made.loaded,     made.stored,          made.loaded_away,  made.stored_away,  made.trips.away,
                           made.trips.wide, made.trips.line,      made.trips.near,   made.host_trips,   made.flag_trips,
                           made.fences,     made.plain_host_reads};
  std::memcpy(counts, head, sizeof head);
  for (ptx::u64 i = 0; i < room && i < made.warp.size(); ++i) counts[std::size(head) + i] = made.warp[i];
  return text(error);
}

ptx::u32 ptx_snapshot(ptx::Machine* machine, ptx::u64 thread) { return machine->snapshot(thread); }
ptx::u32 ptx_record(ptx::Machine* machine, ptx::u32 stream) { return machine->record(stream); }
void ptx_wait(ptx::Machine* machine, ptx::u32 stream, ptx::u32 event) { machine->wait(stream, event); }
void ptx_host_learns(ptx::Machine* machine, ptx::u64 thread, ptx::u32 event) { machine->host_learns(thread, event); }
void ptx_hosts_meet(ptx::Machine* machine) { machine->hosts_meet(); }
void ptx_release(ptx::Machine* machine, ptx::u32 event) { machine->release(event); }
void ptx_region(ptx::Machine* machine, ptx::u64 address, ptx::u64 bytes, ptx::u32 kind, ptx::u32 owner) {
  machine->region(address, bytes, static_cast<ptx::Kind>(kind), owner);
}
void ptx_tensor(ptx::Machine* machine, ptx::u64 address, ptx::u64 bytes) { machine->tensor(address, bytes); }

void ptx_flush(ptx::Machine* machine, ptx::u32 owner) { machine->flush(owner); }
void ptx_occupy(ptx::Machine* machine, ptx::u32 gpu, ptx::u32 num_sms) { machine->occupy(gpu, num_sms); }

char* ptx_mutate(ptx::Machine* machine, const char* kernel, ptx::u32 instruction, const char* how) try {
  machine->mutate(kernel, instruction, how);
  return nullptr;
} catch (const std::exception& error) { return text(error.what()); }

// How many instructions a kernel has; how often lanes executed each of them, where there is room.
ptx::u64 ptx_executed(ptx::Machine* machine, const char* kernel, ptx::u64* counts, ptx::u64 room) {
  const auto found = machine->kernels().find(kernel);
  if (found == machine->kernels().end()) return 0;
  const auto& executed = found->second.executed;
  for (ptx::u64 i = 0; i < room && i < executed.size(); ++i) counts[i] = executed[i];
  return executed.size();
}
}

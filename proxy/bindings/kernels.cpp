// Kernels by name, for devices that Python launches on itself, and the tables behind a rank's context.
#include "bindings/kernels.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <list>
#include <stdexcept>
#include <string>

#include "bindings/register.h"
#include "bindings/streams.h"
#include "kernels/cpu/low_latency.h"
#include "kernels/cpu/throughput.h"
#include "kernels/launch/collective.h"
#include "kernels/launch/rank_tables.h"
#include "kernels/low_latency/logfmt.h"

namespace nb = nanobind;

namespace uccl {
namespace {

std::list<KernelEntry>& kernels() {
  static std::list<KernelEntry> entries;
  return entries;
}

template <class Args>
Args copy_of(const void* bytes) {
  Args args;
  std::memcpy(&args, bytes, sizeof args);
  return args;
}

template <class Args, void (*run)(const Args&, const cpu::Shape&)>
void add(const char* name) {
  kernels().push_back(KernelEntry{
      name, sizeof(Args), [](const void* args, u32 warps) -> u64 { return shared_bytes(copy_of<Args>(args), warps); },
      [](simt::Stream& stream, const void* args, const cpu::Shape& shape) {
        stream.enqueue([own = copy_of<Args>(args), shape] { run(own, shape); });
      }});
  kernel_of<Args> = &kernels().back();
}

// A kernel as it is instantiated here, with this file's width.
template <auto kernel, class Args>
void run_here(const Args& args, const cpu::Shape& shape) {
  cpu::run<Args>(kernel, args, shape);
}

void add_kernels() {
  add<DispatchSendArgs, run_here<low_latency_dispatch_send, DispatchSendArgs>>("low_latency_dispatch_send");
  add<DispatchReceiveArgs, cpu::low_latency_dispatch_recv>("low_latency_dispatch_recv");
  add<CombineSendArgs, cpu::low_latency_combine_send>("low_latency_combine_send");
  add<CombineReduceArgs, cpu::low_latency_combine_reduce>("low_latency_combine_reduce");
  add<CombineReceiveArgs, cpu::low_latency_combine_recv>("low_latency_combine_recv");
  add<LayoutArgs, cpu::throughput_layout>("throughput_layout");
  add<CountsArgs, cpu::throughput_counts>("throughput_counts");
  add<SettleArgs, cpu::throughput_settle>("throughput_settle");
  add<DispatchArgs, cpu::throughput_dispatch>("throughput_dispatch");
  add<CombineArgs, cpu::throughput_combine>("throughput_combine");
  add<BarrierArgs, run_here<rank_barrier, BarrierArgs>>("rank_barrier");
}

const KernelEntry& kernel_entry(const std::string& name, const nb::bytes& args) {
  for (const KernelEntry& entry : kernels()) {
    if (name != entry.name) continue;
    if (args.size() != entry.argument_bytes)
      throw std::invalid_argument(name + " takes " + std::to_string(entry.argument_bytes) +
                                  " bytes of arguments, not " + std::to_string(args.size()));
    return entry;
  }
  throw std::invalid_argument("no kernel is named " + name);
}

void register_entries(nb::module_& m) {
  m.def(
      "kernel_arguments",
      [] {
        nb::dict sizes;
        for (const KernelEntry& entry : kernels()) sizes[entry.name] = entry.argument_bytes;
        return sizes;
      },
      nb::sig("def kernel_arguments() -> dict[str, int]"), "Every kernel and the bytes of its argument struct.");
  m.def(
      "shared_bytes",
      [](const std::string& name, const nb::bytes& args, u32 warps) {
        return kernel_entry(name, args).shared_bytes(args.data(), warps);
      },
      nb::arg("kernel"), nb::arg("args"), nb::arg("warps"),
      "Shared memory of a block, for a kernel's argument struct as bytes.");
  m.def(
      "launch",
      [](HostStream& stream, const std::string& name, const nb::bytes& args, u32 blocks, u32 warps, u32 threads) {
        kernel_entry(name, args).queue(stream.get(), args.data(), cpu::Shape{blocks, warps, threads});
      },
      nb::arg("stream"), nb::arg("kernel"), nb::arg("args"), nb::arg("blocks"), nb::arg("warps"),
      nb::arg("threads") = 1, "Queues a kernel by name with its argument struct as bytes, as a GPU's driver does.");
}

void register_rank(nb::module_& m) {
  nb::class_<RankContext>(m, "RankContext")
      .def_rw("tag", &RankContext::tag)
      .def_prop_ro("bytes",
                   [](const RankContext& c) { return nb::bytes(reinterpret_cast<const char*>(&c), sizeof c); });
  nb::class_<RankTablesSettings>(m, "RankTablesSettings")
      .def(nb::init<>())
      .def_rw("rank", &RankTablesSettings::rank)
      .def_rw("node_of", &RankTablesSettings::node_of)
      .def_rw("cell_of", &RankTablesSettings::cell_of)
      .def_rw("data", &RankTablesSettings::data)
      .def_rw("control", &RankTablesSettings::control)
      .def_rw("rings", &RankTablesSettings::rings)
      .def_rw("num_rings", &RankTablesSettings::num_rings)
      .def_rw("ring_capacity", &RankTablesSettings::ring_capacity)
      .def_rw("ring_words", &RankTablesSettings::ring_words)
      .def_rw("mask", &RankTablesSettings::mask)
      .def_rw("peer_stats", &RankTablesSettings::peer_stats)
      .def_rw("shrink", &RankTablesSettings::shrink)
      .def_rw("timeout_ns", &RankTablesSettings::timeout_ns)
      .def_rw("control_offset", &RankTablesSettings::control_offset)
      .def_rw("num_channels", &RankTablesSettings::num_channels);
  nb::class_<RankTables>(m, "RankTables")
      .def(nb::init<const RankTablesSettings&>(), nb::arg("settings"))
      .def_prop_ro("context", &RankTables::context, nb::rv_policy::copy)
      .def(
          "placed_at",
          [](const RankTables& t, u64 address) {
            auto [image, context] = t.placed_at(address);
            return nb::make_tuple(nb::bytes(image.data(), image.size()), context);
          },
          nb::arg("address"), nb::sig("def placed_at(self, address: int) -> tuple[bytes, RankContext]"),
          "The tables' bytes and the context that points at them once they lie at `address`.");
  m.attr("PEER_STATS") = kPeerStats;
  m.attr("MAX_BLOCK_LANES") = kMaxBlockLanes;
}

}  // namespace

void register_kernels(nb::module_& m) {
  add_kernels();
  register_entries(m);
  register_rank(m);
  m.attr("WARP") = simt::kWarp;
  m.def(
      "logfmt_least_bytes",
      [](u32 hidden) { return logfmt_offset(~0ull, hidden / logfmt_unit(hidden), logfmt_unit(hidden)); },
      nb::arg("hidden"), "A logfmt-10 combine row of which every unit is encoded.");
}

}  // namespace uccl

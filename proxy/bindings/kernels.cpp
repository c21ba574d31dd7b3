// Kernel arguments and launches of the CPU build. Arguments are the kernels' own structs: Python fills fields.
#include <nanobind/stl/function.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "bindings/rank_tables.h"
#include "bindings/register.h"
#include "bindings/streams.h"
#include "kernels/collective/barrier.h"
#include "kernels/cpu/low_latency.h"
#include "kernels/cpu/throughput.h"
#include "kernels/host/runtime.h"
#include "kernels/low_latency/dispatch_send.h"

namespace nb = nanobind;

namespace uccl {
namespace {

struct Shape {
  u32 grid = 1, warps = 1, threads = 1;
};

// What a launch needs to know of a kernel besides its arguments' values: for devices that Python launches on itself.
struct KernelEntry {
  u64 argument_bytes;
  std::function<u64(const void* args, u32 warps)> shared_bytes;
  std::function<void(simt::Stream& stream, const void* args, const Shape& shape)> launch;
};
std::map<std::string, KernelEntry>& kernel_entries() {
  static std::map<std::string, KernelEntry> entries;
  return entries;
}
const KernelEntry& kernel_entry(const std::string& name, const nb::bytes& args) {
  const auto found = kernel_entries().find(name);
  if (found == kernel_entries().end()) throw std::invalid_argument("no kernel is named " + name);
  if (args.size() != found->second.argument_bytes)
    throw std::invalid_argument(name + " takes " + std::to_string(found->second.argument_bytes) +
                                " bytes of arguments, not " + std::to_string(args.size()));
  return found->second;
}

void register_entries(nb::module_& m) {
  m.def(
      "kernel_arguments",
      [] {
        nb::dict sizes;
        for (const auto& [name, entry] : kernel_entries()) sizes[name.c_str()] = entry.argument_bytes;
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
      [](HostStream& stream, const std::string& name, const nb::bytes& args, const Shape& shape) {
        kernel_entry(name, args).launch(stream.get(), args.data(), shape);
      },
      nb::arg("stream"), nb::arg("kernel"), nb::arg("args"), nb::arg("shape"),
      "Queues a kernel by name with its argument struct as bytes, as a GPU's driver does.");
}

// def <name>(stream, args, shape): queues the kernel with a copy of its arguments. `run` returns when it has ended.
template <class Args, class Shared>
void kernel(nb::module_& m, const char* name, void (*run)(const Args&, const cpu::Launch&), Shared shared_bytes) {
  static_assert(std::is_trivially_copyable_v<Args>);
  const auto queue = [run, shared_bytes](simt::Stream& stream, const Args& args, const Shape& shape) {
    const u32 bytes = static_cast<u32>(shared_bytes(args, shape.warps));
    const cpu::Launch launch{shape.grid, shape.warps, shape.threads, bytes};
    stream.enqueue([run, args, launch] { run(args, launch); });
  };
  const auto copy = [](const void* bytes) {
    Args args;
    std::memcpy(&args, bytes, sizeof args);
    return args;
  };
  kernel_entries()[name] = KernelEntry{
      sizeof(Args),
      [shared_bytes, copy](const void* args, u32 warps) -> u64 { return shared_bytes(copy(args), warps); },
      [queue, copy](simt::Stream& stream, const void* args, const Shape& shape) { queue(stream, copy(args), shape); }};
  m.def(
      name, [queue](HostStream& stream, const Args& args, const Shape& shape) { queue(stream.get(), args, shape); },
      nb::arg("stream"), nb::arg("args"), nb::arg("shape"));
}

// A kernel as it is instantiated here, with this file's width.
template <auto entry, class Args>
void run_here(const Args& args, const cpu::Launch& launch) {
  cpu::run<Args>(entry, args, launch);
}

template <class Args>
nb::class_<Args> arguments(nb::module_& m, const char* name) {
  nb::class_<Args> c(m, name);
  c.def(nb::init<>());
  c.def(nb::init<const Args&>(), nb::arg("prototype"));
  c.def_prop_ro(
      "bytes", [](const Args& a) { return nb::bytes(reinterpret_cast<const char*>(&a), sizeof a); },
      "The struct as a kernel launch passes it.");
  return c;
}

// What differs between calls of the same sizes in an argument struct's LowLatencyCall.
template <class Args>
void call_fields(nb::class_<Args>& c) {
  c.def_prop_rw(
      "epoch", [](const Args& a) { return reinterpret_cast<std::uintptr_t>(a.call.epoch); },
      [](Args& a, std::uintptr_t address) { a.call.epoch = reinterpret_cast<decltype(a.call.epoch)>(address); });
  c.def_prop_rw(
      "reduces", [](const Args& a) { return a.call.reduces; }, [](Args& a, u32 reduces) { a.call.reduces = reduces; });
}

void register_shape(nb::module_& m) {
  nb::class_<Shape>(m, "LaunchShape")
      .def(nb::init<u32, u32, u32>(), nb::arg("grid"), nb::arg("warps"), nb::arg("threads"))
      .def_ro("grid", &Shape::grid)
      .def_ro("warps", &Shape::warps)
      .def_ro("threads", &Shape::threads);
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

void register_low_latency_call(nb::module_& m) {
  nb::class_<LowLatencyCall> call(m, "LowLatencyCall");
  call.def(nb::init<>())
      .def_rw("layout", &LowLatencyCall::layout)
      .def_rw("num_experts", &LowLatencyCall::num_experts)
      .def_rw("num_local_experts", &LowLatencyCall::num_local_experts)
      .def_rw("reduces", &LowLatencyCall::reduces);
  address(call, "state", &LowLatencyCall::state);
  address(call, "epoch", &LowLatencyCall::epoch);
  address(call, "ticket", &LowLatencyCall::ticket);
  address(call, "grid_barrier", &LowLatencyCall::grid_barrier);
  m.def(
      "low_latency_state_bytes", [](u32 num_ranks) { return LowLatencyState::bytes(num_ranks); }, nb::arg("num_ranks"),
      "Bytes of what LowLatencyCall.state points at; zeroed once.");
}

void register_low_latency_dispatch(nb::module_& m) {
  auto send = arguments<DispatchSendArgs>(m, "DispatchSendArgs");
  send.def_rw("rank", &DispatchSendArgs::rank).def_rw("call", &DispatchSendArgs::call);
  call_fields(send);
  send.def_rw("num_tokens", &DispatchSendArgs::num_tokens).def_rw("topk", &DispatchSendArgs::topk);
  send.def_rw("format", &DispatchSendArgs::format).def_rw("round_scale", &DispatchSendArgs::round_scale);
  send.def_rw("batch", &DispatchSendArgs::batch);
  address(send, "x", &DispatchSendArgs::x);
  address(send, "topk_idx", &DispatchSendArgs::topk_idx);
  address(send, "num_writes", &DispatchSendArgs::num_writes);
  address(send, "global_scale", &DispatchSendArgs::global_scale);
  kernel(m, "low_latency_dispatch_send", run_here<low_latency_dispatch_send, DispatchSendArgs>,
         [](const DispatchSendArgs&, u32) { return sizeof(DispatchSendShared); });

  auto receive = arguments<DispatchReceiveArgs>(m, "DispatchReceiveArgs");
  receive.def_rw("rank", &DispatchReceiveArgs::rank).def_rw("call", &DispatchReceiveArgs::call);
  call_fields(receive);
  receive.def_rw("format", &DispatchReceiveArgs::format);
  address(receive, "recv_x", &DispatchReceiveArgs::recv_x);
  address(receive, "recv_scales", &DispatchReceiveArgs::recv_scales);
  address(receive, "recv_count", &DispatchReceiveArgs::recv_count);
  address(receive, "src_info", &DispatchReceiveArgs::src_info);
  address(receive, "layout_range", &DispatchReceiveArgs::layout_range);
  address(receive, "cumulative_stats", &DispatchReceiveArgs::cumulative_stats);
  address(receive, "wait_stats", &DispatchReceiveArgs::wait_stats);
  address(receive, "counts", &DispatchReceiveArgs::counts);
  kernel(m, "low_latency_dispatch_recv", cpu::low_latency_dispatch_recv,
         [](const DispatchReceiveArgs&, u32) { return sizeof(DispatchReceiveShared); });
}

void register_low_latency_combine(nb::module_& m) {
  auto combine = arguments<CombineSendArgs>(m, "CombineSendArgs");
  combine.def_rw("rank", &CombineSendArgs::rank).def_rw("call", &CombineSendArgs::call);
  call_fields(combine);
  combine.def_rw("zero_copy_offset", &CombineSendArgs::zero_copy_offset);
  combine.def_rw("row_stride", &CombineSendArgs::row_stride).def_rw("format", &CombineSendArgs::format);
  address(combine, "x", &CombineSendArgs::x);
  address(combine, "src_info", &CombineSendArgs::src_info);
  address(combine, "layout_range", &CombineSendArgs::layout_range);
  address(combine, "staging_ticket", &CombineSendArgs::staging_ticket);
  address(combine, "signals", &CombineSendArgs::signals);
  combine.def_rw("signals_per_expert", &CombineSendArgs::signals_per_expert);
  combine.def_rw("signal_rows", &CombineSendArgs::signal_rows).def_rw("signal_value", &CombineSendArgs::signal_value);
  combine.def_rw("num_tokens", &CombineSendArgs::num_tokens).def_rw("topk", &CombineSendArgs::topk);
  address(combine, "topk_idx", &CombineSendArgs::topk_idx);
  address(combine, "weights", &CombineSendArgs::weights);
  combine.def_rw("own_stay", &CombineSendArgs::own_stay).def_rw("node_rows", &CombineSendArgs::node_rows);
  combine.def_rw("x_at", &CombineSendArgs::x_at);
  m.attr("NODE_ROWS_COPIED_AND_MARKED") = static_cast<u32>(NodeRows::kCopiedAndMarked);
  m.attr("NODE_ROWS_STAY") = static_cast<u32>(NodeRows::kStay);
  kernel(m, "low_latency_combine_send", cpu::low_latency_combine_send,
         [](const CombineSendArgs&, u32) { return sizeof(CombineSendShared); });

  auto sum = arguments<CombineReduceArgs>(m, "CombineReduceArgs");
  sum.def_rw("rank", &CombineReduceArgs::rank).def_rw("call", &CombineReduceArgs::call);
  call_fields(sum);
  address(sum, "num_writes", &CombineReduceArgs::num_writes);
  address(sum, "wait_stats", &CombineReduceArgs::wait_stats);
  address(sum, "registered", &CombineReduceArgs::registered);
  kernel(m, "low_latency_combine_reduce", cpu::low_latency_combine_reduce,
         [](const CombineReduceArgs&, u32) { return sizeof(CombineReduceShared); });

  auto reduce = arguments<CombineReceiveArgs>(m, "CombineReceiveArgs");
  reduce.def_rw("rank", &CombineReceiveArgs::rank).def_rw("call", &CombineReceiveArgs::call);
  call_fields(reduce);
  reduce.def_rw("num_tokens", &CombineReceiveArgs::num_tokens).def_rw("topk", &CombineReceiveArgs::topk);
  reduce.def_rw("format", &CombineReceiveArgs::format).def_rw("zero_copy", &CombineReceiveArgs::zero_copy);
  address(reduce, "out", &CombineReceiveArgs::out);
  address(reduce, "topk_idx", &CombineReceiveArgs::topk_idx);
  address(reduce, "weights", &CombineReceiveArgs::weights);
  address(reduce, "wait_stats", &CombineReceiveArgs::wait_stats);
  address(reduce, "own_rows", &CombineReceiveArgs::own_rows);
  reduce.def_rw("own_stride", &CombineReceiveArgs::own_stride);
  address(reduce, "registered", &CombineReceiveArgs::registered);
  kernel(m, "low_latency_combine_recv", cpu::low_latency_combine_recv,
         [](const CombineReceiveArgs&, u32) { return sizeof(CombineReceiveShared); });
}

void register_throughput_call(nb::module_& m) {
  nb::class_<ThroughputCall> call(m, "ThroughputCall");
  call.def(nb::init<>())
      .def_rw("layout", &ThroughputCall::layout)
      .def_rw("geometry", &ThroughputCall::geometry)
      .def_rw("shape", &ThroughputCall::shape)
      .def_rw("num_local_experts", &ThroughputCall::num_local_experts)
      .def_rw("num_tokens", &ThroughputCall::num_tokens)
      .def_rw("readers", &ThroughputCall::readers)
      .def_rw("identify", &ThroughputCall::identify);
  address(call, "number", &ThroughputCall::number);
  address(call, "identities", &ThroughputCall::identities);
  address(call, "is_token_in_rank", &ThroughputCall::is_token_in_rank);
  address(call, "node_rows", &ThroughputCall::node_rows);
  address(call, "recv_tokens", &ThroughputCall::recv_tokens);
  address(call, "recv_begin", &ThroughputCall::recv_begin);
  address(call, "stream_rows", &ThroughputCall::stream_rows);
  address(call, "reducer_tokens", &ThroughputCall::reducer_tokens);
}

void register_routing(nb::module_& m) {
  auto layout = arguments<LayoutArgs>(m, "LayoutArgs");
  layout.def(
      "set_topology",
      [](LayoutArgs& a, const RankContext& c) {
        a.topology = c.topology;
        a.mask = c.mask;
      },
      nb::arg("rank"));
  layout.def_rw("num_tokens", &LayoutArgs::num_tokens).def_rw("topk", &LayoutArgs::topk);
  layout.def_rw("num_experts", &LayoutArgs::num_experts);
  address(layout, "mask", &LayoutArgs::mask);
  address(layout, "topk_idx", &LayoutArgs::topk_idx);
  address(layout, "num_tokens_per_rank", &LayoutArgs::num_tokens_per_rank);
  address(layout, "num_tokens_per_node", &LayoutArgs::num_tokens_per_node);
  address(layout, "num_tokens_per_expert", &LayoutArgs::num_tokens_per_expert);
  address(layout, "is_token_in_rank", &LayoutArgs::is_token_in_rank);
  kernel(m, "throughput_layout", cpu::throughput_layout, [](const LayoutArgs&, u32) { return 0u; });

  auto counts = arguments<CountsArgs>(m, "CountsArgs");
  counts.def_rw("rank", &CountsArgs::rank).def_rw("layout", &CountsArgs::layout).def_rw("shape", &CountsArgs::shape);
  counts.def_rw("num_tokens", &CountsArgs::num_tokens);
  address(counts, "epoch", &CountsArgs::epoch);
  counts.def_rw("num_channels", &CountsArgs::num_channels);
  counts.def_rw("num_local_experts", &CountsArgs::num_local_experts);
  counts.def_rw("expert_alignment", &CountsArgs::expert_alignment).def_rw("readers", &CountsArgs::readers);
  address(counts, "is_token_in_rank", &CountsArgs::is_token_in_rank);
  address(counts, "num_tokens_per_expert", &CountsArgs::num_tokens_per_expert);
  address(counts, "topk_idx", &CountsArgs::topk_idx);
  address(counts, "num_tokens_per_rank", &CountsArgs::num_tokens_per_rank);
  address(counts, "num_tokens_per_node", &CountsArgs::num_tokens_per_node);
  address(counts, "findings", &CountsArgs::findings);
  address(counts, "refusal", &CountsArgs::refusal);
  address(counts, "taken", &CountsArgs::taken);
  address(counts, "channel_prefix", &CountsArgs::channel_prefix);
  address(counts, "node_rows", &CountsArgs::node_rows);
  address(counts, "recv_tokens", &CountsArgs::recv_tokens);
  address(counts, "recv_begin", &CountsArgs::recv_begin);
  address(counts, "stream_rows", &CountsArgs::stream_rows);
  address(counts, "reducer_tokens", &CountsArgs::reducer_tokens);
  address(counts, "rank_prefix", &CountsArgs::rank_prefix);
  address(counts, "expert_counts", &CountsArgs::expert_counts);
  address(counts, "recv_total", &CountsArgs::recv_total);
  address(counts, "number", &CountsArgs::number);
  kernel(m, "throughput_counts", cpu::throughput_counts, [](const CountsArgs&, u32) { return sizeof(CountsShared); });
  m.attr("LAYOUT_FINDINGS_WORDS") = LayoutFindings::words(0, 0);
  m.attr("LAYOUT_REFUSAL_WORDS") = sizeof(LayoutRefusal) / sizeof(u32);
}

void register_streams_of_rows(nb::module_& m) {
  auto dispatch = arguments<DispatchArgs>(m, "DispatchArgs");
  dispatch.def_rw("rank", &DispatchArgs::rank).def_rw("call", &DispatchArgs::call);
  dispatch.def_rw("scale_token_stride", &DispatchArgs::scale_token_stride);
  dispatch.def_rw("scale_stride", &DispatchArgs::scale_stride);
  dispatch.def_rw("capacity", &DispatchArgs::capacity).def_rw("pad_tail", &DispatchArgs::pad_tail);
  address(dispatch, "x", &DispatchArgs::x);
  address(dispatch, "scales", &DispatchArgs::scales);
  address(dispatch, "topk_idx", &DispatchArgs::topk_idx);
  address(dispatch, "topk_weights", &DispatchArgs::topk_weights);
  address(dispatch, "recv_x", &DispatchArgs::recv_x);
  address(dispatch, "recv_scales", &DispatchArgs::recv_scales);
  address(dispatch, "recv_topk_idx", &DispatchArgs::recv_topk_idx);
  address(dispatch, "recv_topk_weights", &DispatchArgs::recv_topk_weights);
  address(dispatch, "recv_src_idx", &DispatchArgs::recv_src_idx);
  address(dispatch, "recv_total", &DispatchArgs::recv_total);
  kernel(m, "throughput_dispatch", cpu::throughput_dispatch, [](const DispatchArgs&, u32) { return 0u; });

  auto combine = arguments<CombineArgs>(m, "CombineArgs");
  combine.def_rw("rank", &CombineArgs::rank).def_rw("call", &CombineArgs::call).def_rw("hidden", &CombineArgs::hidden);
  address(combine, "x", &CombineArgs::x);
  address(combine, "topk_weights", &CombineArgs::topk_weights);
  address(combine, "recv_src_idx", &CombineArgs::recv_src_idx);
  address(combine, "bias0", &CombineArgs::bias0);
  address(combine, "bias1", &CombineArgs::bias1);
  address(combine, "out", &CombineArgs::out);
  address(combine, "out_weights", &CombineArgs::out_weights);
  address(combine, "scratch", &CombineArgs::scratch);
  address(combine, "partials", &CombineArgs::partials);
  address(combine, "arenas", &CombineArgs::arenas);
  combine.def_rw("x_offset", &CombineArgs::x_offset).def_rw("x_in_arena", &CombineArgs::x_in_arena);
  kernel(m, "throughput_combine", cpu::throughput_combine,
         [](const CombineArgs&, u32 warps) { return CombineShared::bytes(warps); });
  m.attr("IDENTITY_STATE_BYTES") = sizeof(IdentityState);
  m.attr("PARTIAL_STATE_BYTES") = sizeof(PartialState);
  m.attr("MAX_PARTIALS") = kMaxPartials;

  auto settle = arguments<SettleArgs>(m, "SettleArgs");
  settle.def_rw("rank", &SettleArgs::rank).def_rw("direction", &SettleArgs::direction);
  settle.def_rw("num_channels", &SettleArgs::num_channels).def_rw("row_bytes", &SettleArgs::row_bytes);
  address(settle, "last", &SettleArgs::last);
  kernel(m, "throughput_settle", cpu::throughput_settle, [](const SettleArgs&, u32) { return sizeof(SettleShared); });
  m.attr("SETTLED_GEOMETRY_BYTES") = kNumDirections * sizeof(SettledGeometry);

  auto barrier = arguments<BarrierArgs>(m, "BarrierArgs");
  barrier.def_rw("rank", &BarrierArgs::rank).def_rw("round", &BarrierArgs::round);
  kernel(m, "rank_barrier", run_here<rank_barrier, BarrierArgs>, [](const BarrierArgs&, u32) { return 0u; });
}

}  // namespace

void register_kernels(nb::module_& m) {
  register_shape(m);
  register_entries(m);
  register_rank(m);
  register_low_latency_call(m);
  register_low_latency_dispatch(m);
  register_low_latency_combine(m);
  register_throughput_call(m);
  register_routing(m);
  register_streams_of_rows(m);
  m.attr("WARP") = simt::kWarp;
  m.attr("GRID_BARRIER_WORDS") = kGridBarrierWords;
}

}  // namespace uccl

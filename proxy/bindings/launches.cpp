// A call's launches for Python: tensors and plain numbers in, a launch out that a device queues.
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>

#include "bindings/kernels.h"
#include "bindings/register.h"
#include "bindings/streams.h"
#include "kernels/launch/collective.h"
#include "kernels/launch/low_latency.h"
#include "kernels/launch/throughput.h"

namespace nb = nanobind;

namespace uccl {
namespace {

// Memory that a kernel reads or writes: what has data_ptr(), an address, or None.
struct Address {
  u64 value = 0;
  template <class T>
  void to(T*& field) const {
    field = reinterpret_cast<T*>(value);
  }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(value);
  }
};

}  // namespace
}  // namespace uccl

namespace nanobind::detail {

template <>
struct has_arg_defaults<uccl::Address> : std::true_type {};  // None is taken too
template <>
struct type_caster<uccl::Address> {
  NB_TYPE_CASTER(uccl::Address, const_name("uccl_ep.device.protocol.Memory | int | None"))

  bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
    value.value = 0;
    if (source.is_none()) return true;
    if (PyLong_Check(source.ptr())) return take(source.ptr());
    static PyObject* const method = PyUnicode_InternFromString("data_ptr");
    PyObject* const self = source.ptr();
    PyObject* const address = PyObject_VectorcallMethod(method, &self, 1, nullptr);
    const bool taken = address != nullptr && take(address);
    Py_XDECREF(address);
    PyErr_Clear();
    return taken;
  }

 private:
  bool take(PyObject* number) noexcept {
    value.value = PyLong_AsUnsignedLongLong(number);
    const bool failed = PyErr_Occurred() != nullptr;
    PyErr_Clear();
    return !failed;
  }
};

}  // namespace nanobind::detail

namespace uccl {
namespace {

// A launch of any kernel.
struct AnyLaunch {
  const KernelEntry* kernel;
  std::string args;
  Grid grid;

  template <class Args>
  AnyLaunch(const Launch<Args>& l)  // NOLINT(google-explicit-constructor): what every call returns
      : kernel(kernel_of<Args>), args(reinterpret_cast<const char*>(&l.args), sizeof(Args)), grid(l.grid) {}
  template <class Args>
  Args of() const {
    if (kernel != kernel_of<Args>)
      throw std::invalid_argument(std::string("a launch of ") + kernel->name + " instead of " + kernel_of<Args>->name);
    Args own;
    std::memcpy(&own, args.data(), sizeof own);
    return own;
  }
};

void register_launch(nb::module_& m) {
  nb::class_<DeviceShape>(m, "DeviceShape", "A rank's share of the device that runs its launches: what shapes follow.")
      .def(
          "__init__",
          [](DeviceShape* self, u32 num_sms, u32 block_warps) { new (self) DeviceShape{num_sms, block_warps, false}; },
          nb::arg("num_sms"), nb::arg("block_warps"), "Of a GPU.")
      .def_static(
          "of_host", [] { return DeviceShape{}; }, "Of a CPU.")
      .def_ro("num_sms", &DeviceShape::num_sms)
      .def_ro("block_warps", &DeviceShape::block_warps, "Most warps of a block.");
  nb::class_<AnyLaunch>(m, "Launch", "A kernel with its arguments, and what it asks of the device that runs it.")
      .def_prop_ro(
          "kernel", [](const AnyLaunch& l) { return nb::str(l.kernel->name); }, "The kernel's name.")
      .def_prop_ro(
          "args", [](const AnyLaunch& l) { return nb::bytes(l.args.data(), l.args.size()); },
          "Its argument struct, as a launch passes it.")
      .def_prop_ro(
          "blocks", [](const AnyLaunch& l) { return l.grid.blocks; }, "Blocks, or units of work.")
      .def_prop_ro(
          "warps", [](const AnyLaunch& l) { return l.grid.warps; }, "Warps of a block.")
      .def_prop_ro(
          "exact", [](const AnyLaunch& l) { return l.grid.exact; },
          "Whether all `blocks` must run at once. Otherwise the work goes round any number of blocks.")
      .def(
          "queue",
          [](const AnyLaunch& l, HostStream& stream, u32 blocks, u32 threads) {
            l.kernel->queue(stream.get(), l.args.data(), cpu::Shape{blocks, l.grid.warps, threads});
          },
          nb::arg("stream"), nb::arg("blocks"), nb::arg("threads"), "Queues it on a stream of the CPU.");
  m.def(
      "barrier_launch", [](const RankContext& rank, u64 round) -> AnyLaunch { return barrier_launch(rank, round); },
      nb::arg("rank"), nb::arg("round"), "A barrier of all ranks; `round`: 1, 2, 3, ... the same on every rank.");
}

AnyLaunch dispatch_send(const LowLatencyCalls& calls, Address words, Address x, Address topk_idx, u32 num_tokens,
                        u32 topk, u32 format, bool round_scale, Address global_scale) {
  DispatchSendArgs a{};
  x.to(a.x);
  topk_idx.to(a.topk_idx);
  global_scale.to(a.global_scale);
  a.num_tokens = num_tokens;
  a.topk = topk;
  a.format = format;
  a.round_scale = round_scale;
  return calls.dispatch_send(words.as<u64>(), a);
}

AnyLaunch dispatch_recv(const LowLatencyCalls& calls, Address words, u32 format, Address recv_x, Address recv_scales,
                        Address recv_count, Address src_info, Address layout_range, Address cumulative_stats,
                        Address wait_stats) {
  DispatchReceiveArgs a{};
  a.format = format;
  recv_x.to(a.recv_x);
  recv_scales.to(a.recv_scales);
  recv_count.to(a.recv_count);
  src_info.to(a.src_info);
  layout_range.to(a.layout_range);
  cumulative_stats.to(a.cumulative_stats);
  wait_stats.to(a.wait_stats);
  return calls.dispatch_recv(words.as<u64>(), a);
}

AnyLaunch combine_send(const LowLatencyCalls& calls, Address words, Address x, u32 row_stride, u64 zero_copy_offset,
                       u64 x_at, Address src_info, Address layout_range, u32 format, bool own_stay, bool reduces,
                       bool node_reads, Address topk_idx, Address weights, u32 num_tokens, u32 topk, Address signals,
                       u32 signals_per_expert, u32 signal_rows, u32 signal_value, u32 blocks) {
  CombineSendArgs a{};
  x.to(a.x);
  a.row_stride = row_stride;
  a.zero_copy_offset = zero_copy_offset;
  a.x_at = x_at;
  src_info.to(a.src_info);
  layout_range.to(a.layout_range);
  a.format = format;
  a.own_stay = own_stay;
  topk_idx.to(a.topk_idx);
  weights.to(a.weights);
  a.num_tokens = num_tokens;
  a.topk = topk;
  signals.to(a.signals);
  a.signals_per_expert = signals_per_expert;
  a.signal_rows = signal_rows;
  a.signal_value = signal_value;
  return calls.combine_send(words.as<u64>(), a, reduces, node_reads, blocks);
}

AnyLaunch combine_reduce(const LowLatencyCalls& calls, const AnyLaunch& sent, Address wait_stats, Address registered) {
  CombineReduceArgs a{};
  wait_stats.to(a.wait_stats);
  registered.to(a.registered);
  return calls.combine_reduce(sent.of<CombineSendArgs>(), a);
}

AnyLaunch combine_recv(const LowLatencyCalls& calls, const AnyLaunch& sent, Address out, Address topk_idx,
                       Address weights, u32 num_tokens, u32 topk, Address wait_stats, Address registered) {
  CombineReceiveArgs a{};
  out.to(a.out);
  topk_idx.to(a.topk_idx);
  weights.to(a.weights);
  a.num_tokens = num_tokens;
  a.topk = topk;
  wait_stats.to(a.wait_stats);
  registered.to(a.registered);
  return calls.combine_recv(sent.of<CombineSendArgs>(), a);
}

void register_low_latency(nb::module_& m) {
  nb::class_<LowLatencyCalls> c(m, "LowLatencyCalls", "The low-latency calls of one rank as launches.");
  c.def(
       "__init__",
       [](LowLatencyCalls* self, const RankContext& rank, const LowLatencyLayout& layout, u32 num_experts,
          Address workspace, const DeviceShape& device) {
         new (self) LowLatencyCalls(rank, layout, num_experts, workspace.as<u8>(), device);
       },
       nb::arg("rank"), nb::arg("layout"), nb::arg("num_experts"), nb::arg("workspace"), nb::arg("device"),
       "`workspace`: of workspace_bytes, zeroed once, 8-byte aligned.")
      .def_static("workspace_bytes", &LowLatencyCalls::workspace_bytes, nb::arg("num_ranks"),
                  "Bytes that kernels count in from call to call.")
      .def_static("state_at", &LowLatencyCalls::state_at, "Bytes into them to the LowLatencyState.")
      .def_prop_ro("dispatch_words", &LowLatencyCalls::dispatch_words, "u64 words of a dispatch, until it is received.")
      .def_static("batch_rows", &LowLatencyCalls::batch_rows, nb::arg("row_bytes"),
                  "Rows that dispatch stages before it sends; a run of neighbours within a batch is one write.")
      .def("dispatch_send", dispatch_send, nb::arg("words"), nb::kw_only(), nb::arg("x"), nb::arg("topk_idx"),
           nb::arg("num_tokens"), nb::arg("topk"), nb::arg("format"), nb::arg("round_scale"), nb::arg("global_scale"))
      .def("dispatch_recv", dispatch_recv, nb::arg("words"), nb::kw_only(), nb::arg("format"), nb::arg("recv_x"),
           nb::arg("recv_scales"), nb::arg("recv_count"), nb::arg("src_info"), nb::arg("layout_range"),
           nb::arg("cumulative_stats"), nb::arg("wait_stats"))
      .def("combine_send", combine_send, nb::arg("words"), nb::kw_only(), nb::arg("x"), nb::arg("row_stride"),
           nb::arg("zero_copy_offset"), nb::arg("x_at"), nb::arg("src_info"), nb::arg("layout_range"),
           nb::arg("format"), nb::arg("own_stay"), nb::arg("reduces"), nb::arg("node_reads"), nb::arg("topk_idx"),
           nb::arg("weights"), nb::arg("num_tokens"), nb::arg("topk"), nb::arg("signals") = nb::none(),
           nb::arg("signals_per_expert") = 0, nb::arg("signal_rows") = 0, nb::arg("signal_value") = 0,
           nb::arg("blocks") = 0, "`blocks`: 0 = as many as a combine takes that nothing is computed beside.")
      .def("combine_reduce", combine_reduce, nb::arg("sent"), nb::kw_only(), nb::arg("wait_stats"),
           nb::arg("registered"), "Between the halves of a combine that reduces.")
      .def("combine_recv", combine_recv, nb::arg("sent"), nb::kw_only(), nb::arg("out"), nb::arg("topk_idx"),
           nb::arg("weights"), nb::arg("num_tokens"), nb::arg("topk"), nb::arg("wait_stats"), nb::arg("registered"),
           "`sent`: what combine_send returned.");
  c.attr("COMBINE_WORDS") = LowLatencyCalls::kCombineWords;
  c.attr("MAX_STAGING_ROWS") = LowLatencyCalls::kMaxStagingRows;
  // Words of the workspace: how many calls were sent, and behind it how many were received.
  static_assert(offsetof(PhaseEpochs, sent) == 0 && offsetof(PhaseEpochs, consumed) == sizeof(u64));
  c.attr("DISPATCHES_AT") = (LowLatencyCalls::state_at() + offsetof(LowLatencyState, dispatch)) / sizeof(u64);
  c.attr("COMBINES_AT") = (LowLatencyCalls::state_at() + offsetof(LowLatencyState, combine)) / sizeof(u64);
}

RoutingTables routing_tables(u32 channels, u32 num_tokens, u32 num_local_experts, Address is_token_in_rank,
                             Address channel_prefix, Address node_rows, Address recv_tokens, Address recv_begin,
                             Address stream_rows, Address reducer_tokens, Address rank_prefix, Address expert_counts,
                             Address recv_total, Address number) {
  RoutingTables t;
  t.channels = channels;
  t.num_tokens = num_tokens;
  t.num_local_experts = num_local_experts;
  is_token_in_rank.to(t.is_token_in_rank);
  channel_prefix.to(t.channel_prefix);
  node_rows.to(t.node_rows);
  recv_tokens.to(t.recv_tokens);
  recv_begin.to(t.recv_begin);
  stream_rows.to(t.stream_rows);
  reducer_tokens.to(t.reducer_tokens);
  rank_prefix.to(t.rank_prefix);
  expert_counts.to(t.expert_counts);
  recv_total.to(t.recv_total);
  number.to(t.number);
  return t;
}

AnyLaunch layout(const ThroughputCalls& calls, Address topk_idx, u32 num_tokens, u32 topk, u32 num_experts,
                 Address num_tokens_per_rank, Address num_tokens_per_node, Address num_tokens_per_expert,
                 Address is_token_in_rank) {
  LayoutArgs a{};
  topk_idx.to(a.topk_idx);
  a.num_tokens = num_tokens;
  a.topk = topk;
  a.num_experts = num_experts;
  num_tokens_per_rank.to(a.num_tokens_per_rank);
  num_tokens_per_node.to(a.num_tokens_per_node);
  num_tokens_per_expert.to(a.num_tokens_per_expert);
  is_token_in_rank.to(a.is_token_in_rank);
  return calls.layout(a);
}

AnyLaunch counts(const ThroughputCalls& calls, const RowShape& shape, const RoutingTables& routing,
                 Address is_token_in_rank, Address num_tokens_per_rank, Address num_tokens_per_node,
                 Address num_tokens_per_expert, Address topk_idx, u32 expert_alignment, Address findings,
                 Address refusal) {
  CountsArgs a{};
  is_token_in_rank.to(a.is_token_in_rank);
  num_tokens_per_rank.to(a.num_tokens_per_rank);
  num_tokens_per_node.to(a.num_tokens_per_node);
  num_tokens_per_expert.to(a.num_tokens_per_expert);
  topk_idx.to(a.topk_idx);
  a.expert_alignment = expert_alignment;
  findings.to(a.findings);
  refusal.to(a.refusal);
  return calls.counts(a, shape, routing);
}

AnyLaunch dispatch(const ThroughputCalls& calls, const RowShape& shape, const StreamGeometry& geometry,
                   const RoutingTables& routing, Address x, Address scales, u32 scale_token_stride, u32 scale_stride,
                   Address topk_idx, Address topk_weights, Address recv_x, Address recv_scales, Address recv_topk_idx,
                   Address recv_topk_weights, Address recv_src_idx, u32 capacity, bool pad_tail, bool identify) {
  DispatchArgs a{};
  x.to(a.x);
  scales.to(a.scales);
  a.scale_token_stride = scale_token_stride;
  a.scale_stride = scale_stride;
  topk_idx.to(a.topk_idx);
  topk_weights.to(a.topk_weights);
  recv_x.to(a.recv_x);
  recv_scales.to(a.recv_scales);
  recv_topk_idx.to(a.recv_topk_idx);
  recv_topk_weights.to(a.recv_topk_weights);
  recv_src_idx.to(a.recv_src_idx);
  a.capacity = capacity;
  a.pad_tail = pad_tail;
  return calls.dispatch(a, shape, geometry, routing, identify);
}

AnyLaunch combine(const ThroughputCalls& calls, const RowShape& shape, const StreamGeometry& geometry,
                  const RoutingTables& routing, Address workspace, u32 hidden, Address x, Address topk_weights,
                  Address recv_src_idx, Address bias0, Address bias1, Address out, Address out_weights, Address arenas,
                  bool x_in_arena, u64 x_offset) {
  CombineArgs a{};
  a.hidden = hidden;
  x.to(a.x);
  topk_weights.to(a.topk_weights);
  recv_src_idx.to(a.recv_src_idx);
  bias0.to(a.bias0);
  bias1.to(a.bias1);
  out.to(a.out);
  out_weights.to(a.out_weights);
  arenas.to(a.arenas);
  a.x_in_arena = x_in_arena;
  a.x_offset = x_offset;
  return calls.combine(a, shape, geometry, routing, workspace.as<u8>());
}

void register_throughput(nb::module_& m) {
  nb::class_<RoutingTables>(m, "RoutingTables", "The tables of one routing; sizes as in throughput/handle.py.")
      .def_prop_ro("channels", [](const RoutingTables& t) { return t.channels; })
      .def_prop_ro("num_tokens", [](const RoutingTables& t) { return t.num_tokens; });
  m.def("routing_tables", routing_tables, nb::kw_only(), nb::arg("channels"), nb::arg("num_tokens"),
        nb::arg("num_local_experts"), nb::arg("is_token_in_rank"), nb::arg("channel_prefix"), nb::arg("node_rows"),
        nb::arg("recv_tokens"), nb::arg("recv_begin"), nb::arg("stream_rows"), nb::arg("reducer_tokens"),
        nb::arg("rank_prefix"), nb::arg("expert_counts"), nb::arg("recv_total"), nb::arg("number"));
  nb::class_<ThroughputCalls> c(m, "ThroughputCalls", "The throughput calls of one rank as launches.");
  c.def(
       "__init__",
       [](ThroughputCalls* self, const RankContext& rank, const ThroughputLayout& layout, Address workspace,
          const DeviceShape& device) { new (self) ThroughputCalls(rank, layout, workspace.as<u8>(), device); },
       nb::arg("rank"), nb::arg("layout"), nb::arg("workspace"), nb::arg("device"),
       "`workspace`: of WORKSPACE_BYTES, zeroed once, 8-byte aligned.")
      .def("layout", layout, nb::kw_only(), nb::arg("topk_idx"), nb::arg("num_tokens"), nb::arg("topk"),
           nb::arg("num_experts"), nb::arg("num_tokens_per_rank"), nb::arg("num_tokens_per_node"),
           nb::arg("num_tokens_per_expert"), nb::arg("is_token_in_rank"))
      .def("counts", counts, nb::arg("shape"), nb::arg("routing"), nb::kw_only(), nb::arg("is_token_in_rank"),
           nb::arg("num_tokens_per_rank"), nb::arg("num_tokens_per_node"), nb::arg("num_tokens_per_expert"),
           nb::arg("topk_idx"), nb::arg("expert_alignment"), nb::arg("findings"), nb::arg("refusal"))
      .def("findings_words", &ThroughputCalls::findings_words, nb::arg("num_experts"), "u32 words of `findings`.")
      .def(
          "settle",
          [](const ThroughputCalls& calls, const StreamGeometry& geometry, bool of_combine) -> AnyLaunch {
            return calls.settle(of_combine ? Direction::kCombine : Direction::kDispatch, geometry.num_channels,
                                geometry.row_bytes);
          },
          nb::arg("geometry"), nb::arg("of_combine"),
          "Before streams of a direction are cut in another way than before.")
      .def("dispatch", dispatch, nb::arg("shape"), nb::arg("geometry"), nb::arg("routing"), nb::kw_only(), nb::arg("x"),
           nb::arg("scales"), nb::arg("scale_token_stride"), nb::arg("scale_stride"), nb::arg("topk_idx"),
           nb::arg("topk_weights"), nb::arg("recv_x"), nb::arg("recv_scales"), nb::arg("recv_topk_idx"),
           nb::arg("recv_topk_weights"), nb::arg("recv_src_idx"), nb::arg("capacity"), nb::arg("pad_tail"),
           nb::arg("identify"), "`identify`: no counts were exchanged for this call.")
      .def("combine", combine, nb::arg("shape"), nb::arg("geometry"), nb::arg("routing"), nb::kw_only(),
           nb::arg("workspace"), nb::arg("hidden"), nb::arg("x"), nb::arg("topk_weights"), nb::arg("recv_src_idx"),
           nb::arg("bias0"), nb::arg("bias1"), nb::arg("out"), nb::arg("out_weights"), nb::arg("arenas"),
           nb::arg("x_in_arena"), nb::arg("x_offset"), "`workspace`: of combine_bytes, for this call alone.")
      .def("combine_bytes", &ThroughputCalls::combine_bytes, nb::arg("channels"), nb::arg("hidden"));
  c.attr("WORKSPACE_BYTES") = ThroughputCalls::kWorkspaceBytes;
  m.attr("LAYOUT_REFUSAL_WORDS") = sizeof(LayoutRefusal) / sizeof(u32);
  m.attr("MAX_PARTIALS") = kMaxPartials;
}

}  // namespace

void register_launches(nb::module_& m) {
  register_launch(m);
  register_low_latency(m);
  register_throughput(m);
}

}  // namespace uccl

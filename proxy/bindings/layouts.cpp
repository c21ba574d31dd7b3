// The layouts: Python asks the same structs that kernels and proxy use where bytes live.
#include <nanobind/stl/vector.h>

#include "bindings/register.h"
#include "kernels/launch/rank_tables.h"
#include "kernels/launch/region_plan.h"

namespace nb = nanobind;

namespace uccl {

namespace {

void register_words(nb::module_& m) {
  nb::class_<ControlLayout>(m, "ControlLayout")
      .def(nb::init<>())
      .def_rw("num_ranks", &ControlLayout::num_ranks)
      .def_rw("num_channels", &ControlLayout::num_channels)
      .def("bytes", &ControlLayout::bytes)
      .def_ro_static("SOME_DEPARTED", &ControlLayout::kSomeDeparted)
      .def("departed", &ControlLayout::departed, nb::arg("peer"))
      .def(
          "flag",
          [](const ControlLayout& c, u32 phase, u32 source) { return c.flag(static_cast<Phase>(phase), source); },
          nb::arg("phase"), nb::arg("source"))
      .def("flag_time", &ControlLayout::flag_time, nb::arg("source"))
      .def("excluded", &ControlLayout::excluded, nb::arg("peer"))
      .def("ended", &ControlLayout::ended, nb::arg("peer"))
      .def("parted", &ControlLayout::parted, nb::arg("peer"))
      .def(
          "consumed",
          [](const ControlLayout& c, u32 phase, u32 reader) { return c.consumed(static_cast<Phase>(phase), reader); },
          nb::arg("phase"), nb::arg("reader"))
      .def(
          "resume",
          [](const ControlLayout& c, u32 phase, u32 source) { return c.resume(static_cast<Phase>(phase), source); },
          nb::arg("phase"), nb::arg("source"))
      .def(
          "progress",
          [](const ControlLayout& c, u32 phase, u32 source) { return c.progress(static_cast<Phase>(phase), source); },
          nb::arg("phase"), nb::arg("source"));
  nb::class_<SignalLayout>(m, "SignalLayout")
      .def(nb::init<>())
      .def_rw("num_ranks", &SignalLayout::num_ranks)
      .def_rw("num_channels", &SignalLayout::num_channels)
      .def_rw("max_readers", &SignalLayout::max_readers)
      .def(
          "flag",
          [](const SignalLayout& l, u32 phase, u32 source) { return l.flag(static_cast<Phase>(phase), source); },
          nb::arg("phase"), nb::arg("source"))
      .def(
          "consumed",
          [](const SignalLayout& l, u32 phase, u32 reader) { return l.consumed(static_cast<Phase>(phase), reader); },
          nb::arg("phase"), nb::arg("reader"))
      .def(
          "stream_tail",
          [](const SignalLayout& l, u32 direction, u32 source, u32 channel) {
            return l.stream_tail(static_cast<Direction>(direction), source, channel);
          },
          nb::arg("direction"), nb::arg("source"), nb::arg("channel"))
      .def(
          "sent",
          [](const SignalLayout& l, u32 direction, u32 peer, u32 channel) {
            return l.sent(static_cast<Direction>(direction), peer, channel);
          },
          nb::arg("direction"), nb::arg("peer"), nb::arg("channel"))
      .def("bytes", &SignalLayout::bytes);
}

void register_low_latency(nb::module_& m) {
  nb::class_<LowLatencyLayout>(m, "LowLatencyLayout")
      .def(nb::init<>())
      .def_rw("max_tokens", &LowLatencyLayout::max_tokens)
      .def_rw("hidden", &LowLatencyLayout::hidden)
      .def_rw("max_topk", &LowLatencyLayout::max_topk)
      .def_rw("num_landing_slots", &LowLatencyLayout::num_landing_slots)
      .def_rw("staging_rows", &LowLatencyLayout::staging_rows)
      .def_rw("num_ranks", &LowLatencyLayout::num_ranks)
      .def_rw("base", &LowLatencyLayout::base)
      .def_rw("reduces", &LowLatencyLayout::reduces)
      .def("bytes", &LowLatencyLayout::bytes)
      .def("set_bytes", &LowLatencyLayout::set_bytes)
      .def("source_bytes", &LowLatencyLayout::source_bytes)
      .def("slots_bytes", &LowLatencyLayout::slots_bytes)
      .def("staging_bytes", &LowLatencyLayout::staging_bytes)
      .def("reduction_bytes", &LowLatencyLayout::reduction_bytes)
      .def("combine_row_bytes", &LowLatencyLayout::combine_row_bytes)
      .def_static("routing_bytes", &LowLatencyLayout::routing_bytes, nb::arg("tokens"), nb::arg("topk"))
      .def_static("weights_bytes", &LowLatencyLayout::weights_bytes, nb::arg("tokens"), nb::arg("topk"))
      .def_static(
          "row_bytes",
          [](u32 hidden, u32 format) { return LowLatencyLayout::row_bytes(hidden, static_cast<RowFormat>(format)); },
          nb::arg("hidden"), nb::arg("format"))
      .def_static(
          "row_unit", [](u32 format) { return row_code(static_cast<RowFormat>(format)).unit; }, nb::arg("format"),
          "Rows have a multiple of so many channels.")
      .def("sums_encoded", &LowLatencyLayout::sums_encoded, "Sums of a node may be encoded.");
}

void register_throughput(nb::module_& m) {
  nb::class_<RowShape>(m, "RowShape")
      .def(
          "__init__",
          [](RowShape* self, u32 payload_bytes, u32 scale_bytes, u32 topk, bool has_ids, bool has_weights, u32 dtype) {
            new (self) RowShape{payload_bytes, scale_bytes, topk, has_ids, has_weights, dtype};
          },
          nb::arg("payload_bytes") = 0, nb::arg("scale_bytes") = 0, nb::arg("topk") = 0, nb::arg("has_ids") = false,
          nb::arg("has_weights") = false, nb::arg("dtype") = 0)
      .def_rw("payload_bytes", &RowShape::payload_bytes)
      .def_rw("scale_bytes", &RowShape::scale_bytes)
      .def_rw("topk", &RowShape::topk)
      .def_rw("has_ids", &RowShape::has_ids)
      .def_rw("has_weights", &RowShape::has_weights)
      .def_rw("dtype", &RowShape::dtype)
      .def("bytes", &RowShape::bytes);
  nb::class_<StreamGeometry>(m, "StreamGeometry")
      .def(nb::init<>())
      .def_static("make", &StreamGeometry::make, nb::arg("unit_bytes"), nb::arg("num_channels"), nb::arg("row_bytes"))
      .def_static("fit", &StreamGeometry::fit, nb::arg("unit_bytes"), nb::arg("most"), nb::arg("row_bytes"),
                  "As many channels as fit, `most` at most; num_slots is 0 where not even one does.")
      .def_ro("unit_bytes", &StreamGeometry::unit_bytes)
      .def_ro("num_channels", &StreamGeometry::num_channels)
      .def_ro("rows_per_chunk", &StreamGeometry::rows_per_chunk)
      .def_ro("num_slots", &StreamGeometry::num_slots)
      .def_ro("row_bytes", &StreamGeometry::row_bytes)
      .def(
          "__eq__",
          [](const StreamGeometry& a, nb::object b) {
            return nb::isinstance<StreamGeometry>(b) && a == nb::cast<StreamGeometry>(b);
          },
          nb::arg("other").none());
  nb::class_<ThroughputLayout>(m, "ThroughputLayout")
      .def(nb::init<>())
      .def_rw("base", &ThroughputLayout::base)
      .def_rw("num_ranks", &ThroughputLayout::num_ranks)
      .def_rw("num_cells", &ThroughputLayout::num_cells)
      .def_rw("num_landing_slots", &ThroughputLayout::num_landing_slots)
      .def_rw("max_readers", &ThroughputLayout::max_readers)
      .def_rw("max_local_experts", &ThroughputLayout::max_local_experts)
      .def_rw("unit_bytes", &ThroughputLayout::unit_bytes)
      .def_static("counts_bytes", &CountsHeader::bytes, nb::arg("channels"), nb::arg("readers"),
                  nb::arg("local_experts"), "What a source tells a cell before a dispatch.")
      .def("num_units", &ThroughputLayout::num_units)
      .def("bytes", &ThroughputLayout::bytes);
}

void register_plan(nb::module_& m) {
  nb::class_<LandingRanks>(m, "LandingRanks", "Where rows of other nodes land.")
      .def(nb::init<const std::vector<u32>&, const std::vector<u32>&>(), nb::arg("node_of"), nb::arg("cell_of"))
      .def("of_source", &LandingRanks::of, nb::arg("source"),
           "[cells]: the rank of each cell where rows of a source, which is present, are read.")
      .def("in_cell", &LandingRanks::in, nb::arg("cell"),
           "[ranks]: the rank of a cell where rows of each source are read; NO_NODE for an absent source.");
  nb::class_<GroupShape>(m, "GroupShape", "What the numbering of ranks fixes.")
      .def_static("of", &GroupShape::of, nb::arg("node_of"), nb::arg("cell_of"),
                  "`cell_of` empty: a cell is a node. NO_NODE: an absent rank.")
      .def_ro("num_ranks", &GroupShape::num_ranks)
      .def_ro("num_nodes", &GroupShape::num_nodes)
      .def_ro("num_cells", &GroupShape::num_cells)
      .def_ro("max_readers", &GroupShape::max_readers, "Ranks of the largest node.")
      .def_ro("num_landing_slots", &GroupShape::num_landing_slots, "Places for remote sources' rows; 0 on one node.")
      .def_prop_ro(
          "num_units", [](const GroupShape& g) { return g.throughput().num_units(); },
          "Units that the throughput part is cut into.");
  nb::class_<RegionPlan>(m, "RegionPlan", "Offsets of a rank's regions.")
      .def(
          "__init__",
          [](RegionPlan* self, const GroupShape& group, u32 num_channels, u32 max_local_experts, u64 unit_bytes,
             u64 low_latency_bytes) {
            RegionSizes s;
            s.num_channels = num_channels;
            s.max_local_experts = max_local_experts;
            s.unit_bytes = unit_bytes;
            s.low_latency_bytes = low_latency_bytes;
            new (self) RegionPlan(group, s);
          },
          nb::arg("group"), nb::kw_only(), nb::arg("num_channels"), nb::arg("max_local_experts"), nb::arg("unit_bytes"),
          nb::arg("low_latency_bytes"))
      .def_ro("signals", &RegionPlan::signals)
      .def_ro("control", &RegionPlan::control)
      .def_ro("throughput", &RegionPlan::throughput)
      .def_prop_ro(
          "low_latency_base", [](const RegionPlan& p) { return p.low_latency.base; },
          "Where the low-latency part starts.")
      .def_ro("control_offset", &RegionPlan::control_offset, "Where data ends, in whole pages.")
      .def_ro("zero_copy_offset", &RegionPlan::zero_copy_offset);
}

}  // namespace

void register_layouts(nb::module_& m) {
  register_words(m);
  register_low_latency(m);
  register_throughput(m);
  register_plan(m);
}

}  // namespace uccl

// The native module uccl_ep._simulation: simulated runs for `uccl-ep simulate`, and the oracle's inputs and answers for a
// test against uccl_ep.reference.calls. Built for development and tests (UCCL_EP_SIMULATION); a wheel does not hold it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "simulation/batch.h"
#include "simulation/low_latency_oracle.h"
#include "simulation/throughput_oracle.h"

namespace nb = nanobind;

namespace uccl {
namespace {

using namespace simulation;

// Lets another thread end `simulate` between two seeds.
struct StopFlag {
  std::atomic<bool> set{false};
};

template <class T>
nb::bytes bytes_of(const std::vector<T>& v) {
  return nb::bytes(reinterpret_cast<const char*>(v.data()), v.size() * sizeof(T));
}

nb::dict shape_of(const Case& c) {
  nb::dict d;
  d["low_latency"] = c.mode == Mode::kLowLatency;
  d["node_of"] = c.world.node_of;
  d["num_experts"] = c.num_experts;
  d["rounds"] = c.rounds;
  return d;
}

nb::dict low_latency_answers(const Case& c, u64 round) {
  LowLatencyOracle oracle(c);
  nb::dict d = shape_of(c);
  d["max_tokens"] = c.world.max_tokens;
  d["hidden"] = c.world.hidden;
  const u32 local = c.num_experts / c.world.num_ranks();
  nb::list ranks;
  for (u32 r = 0; r < c.world.num_ranks(); ++r) {
    const LowLatencyInput& in = oracle.input(round, r);
    nb::dict one;
    one["num_tokens"] = in.num_tokens;
    one["topk"] = in.topk;
    one["topk_idx"] = bytes_of(in.topk_idx);
    one["topk_weights"] = bytes_of(in.weights);
    one["x"] = bytes_of(in.x);
    std::vector<u32> rows;  // expert, source, token
    std::vector<u16> y;
    for (u32 e = r * local; e < (r + 1) * local; ++e)
      for (const auto& row : oracle.rows_of(round, e)) {
        rows.insert(rows.end(), {e, row.source, row.token});
        const auto back = oracle.combine_row(round, e, row.source, row.token);
        y.insert(y.end(), back.begin(), back.end());
      }
    one["rows"] = rows;
    one["y"] = bytes_of(y);
    one["combined"] = bytes_of(oracle.combined(round, r));
    ranks.append(one);
  }
  d["ranks"] = ranks;
  return d;
}

nb::dict throughput_answers(const Case& c, u64 round) {
  ThroughputOracle oracle(c);
  const RoundPlan& plan = oracle.plan(round);
  nb::dict d = shape_of(c);
  d["hidden"] = plan.hidden;
  d["combine_hidden"] = plan.combine_hidden;
  d["combine_topk"] = plan.combine_topk;
  d["biases"] = plan.biases;
  nb::list ranks;
  for (u32 r = 0; r < c.world.num_ranks(); ++r) {
    const ThroughputInput& in = oracle.input(round, r);
    const auto back = oracle.combine_input(round, r);
    const auto sum = oracle.combined(round, r);
    nb::dict one;
    one["num_tokens"] = in.num_tokens;
    one["topk"] = in.topk;
    one["topk_idx"] = bytes_of(in.topk_idx);
    one["topk_weights"] = bytes_of(in.topk_weights);
    one["x"] = bytes_of(in.x);
    std::vector<u32> rows;  // source, token
    for (const Taken& t : oracle.taken(round, r)) rows.insert(rows.end(), {t.source, t.token});
    one["rows"] = rows;
    one["y"] = bytes_of(back.x);
    one["y_weights"] = bytes_of(back.weights);
    one["bias0"] = bytes_of(back.bias[0]);
    one["bias1"] = bytes_of(back.bias[1]);
    one["combined"] = bytes_of(sum.x);
    one["combined_weights"] = bytes_of(sum.weights);
    ranks.append(one);
  }
  d["ranks"] = ranks;
  return d;
}

}  // namespace

}  // namespace uccl

NB_MODULE(_simulation, m) {
  using namespace uccl;
  nb::set_leak_warnings(false);  // as in module.cpp
  m.doc() = "Simulated runs of uccl_ep's engine, rings and kernels, of many ranks on one thread.";
  nb::class_<StopFlag>(m, "Stop", "Ends `simulate` between two seeds once it is set.")
      .def(nb::init<>())
      .def("set", [](StopFlag& f) { f.set.store(true, std::memory_order_relaxed); });
  nb::class_<Totals>(m, "Totals", "What a number of simulated runs added up to.")
      .def_ro("seeds", &Totals::seeds)
      .def_ro("low_latency", &Totals::low_latency)
      .def_ro("lethal", &Totals::lethal)
      .def_ro("absences", &Totals::absences)
      .def_ro("rows", &Totals::rows)
      .def_ro("writes", &Totals::writes)
      .def_ro("steps", &Totals::steps)
      .def_ro("virtual_ns", &Totals::virtual_ns)
      .def_ro("overtakes", &Totals::overtakes)
      .def_ro("deepest", &Totals::deepest)
      .def_ro("parked", &Totals::parked)
      .def_ro("faults", &Totals::faults)
      .def_ro("finished", &Totals::finished)
      .def_ro("failed", &Totals::failed)
      .def_ro("dead", &Totals::dead)
      .def_ro("most_ranks", &Totals::most_ranks)
      .def_ro("trace", &Totals::trace)
      .def_ro("failures", &Totals::failures);
  m.def(
      "simulate",
      [](u64 first, u64 count, const std::string& profile, u32 ranks, u32 nodes, const StopFlag& stop) {
        return run_seeds(first, count, {profile, ranks, nodes}, stop.set);
      },
      nb::arg("first"), nb::arg("count"), nb::arg("profile"), nb::arg("num_ranks"), nb::arg("num_nodes"),
      nb::arg("stop"), nb::call_guard<nb::gil_scoped_release>(),
      "Runs seeds [first, first + count) on this thread, without Python's lock.");
  m.def(
      "explain",
      [](u64 seed, const std::string& profile, u32 ranks, u32 nodes) {
        return explain_seed(seed, {profile, ranks, nodes});
      },
      nb::arg("seed"), nb::arg("profile"), nb::arg("num_ranks"), nb::arg("num_nodes"),
      nb::call_guard<nb::gil_scoped_release>(), "A failing seed, shortened, in lines; '' when it does not fail.");
  m.def(
      "describe",
      [](u64 seed, const std::string& profile, u32 ranks, u32 nodes) {
        return describe(draw_case(seed, {profile, ranks, nodes}));
      },
      nb::arg("seed"), nb::arg("profile"), nb::arg("num_ranks"), nb::arg("num_nodes"),
      "What a seed stands for, in one line.");
  m.def(
      "answers",
      [](u64 seed, u64 round) {
        Case c = draw_case(seed, "any");
        c.world.cell_of.clear();  // which the reference does not know
        return c.mode == Mode::kLowLatency ? low_latency_answers(c, round) : throughput_answers(c, round);
      },
      nb::arg("seed"), nb::arg("round"), nb::sig("def answers(seed: int, round: int) -> dict[str, object]"),
      "Inputs and expected outputs of one round of every rank, as the oracle has them.");
}

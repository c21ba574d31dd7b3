// The CPU's streams and events for Python.
#include "bindings/streams.h"

#include "bindings/register.h"

namespace nb = nanobind;

namespace uccl {

void register_streams(nb::module_& m) {
  nb::class_<HostEvent>(m, "Event")
      .def("__init__", [](HostEvent* e) { new (e) HostEvent(new simt::Event()); })
      .def("query", [](const HostEvent& e) { return e.get().query(); })
      .def(
          "wait", [](const HostEvent& e, u64 timeout_ns) { return e.get().wait(timeout_ns); }, nb::arg("timeout_ns"),
          nb::call_guard<nb::gil_scoped_release>());
  nb::class_<HostStream>(m, "Stream", "An ordered queue of kernels: the CPU's stand-in for a CUDA stream.")
      .def(
          "__init__", [](HostStream* s, bool deferred) { new (s) HostStream(new simt::Stream(deferred)); },
          nb::arg("deferred") = false)
      .def("record", [](HostStream& s) { return HostEvent(new simt::Event(s.get().record())); })
      .def(
          "wait", [](HostStream& s, const HostEvent& e) { s.get().wait(e.get()); }, nb::arg("event"))
      .def(
          "finish", [](HostStream& s) { s.get().finish(); }, nb::call_guard<nb::gil_scoped_release>())
      .def("synchronize", [](HostStream& s) { s.get().synchronize(); }, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace uccl

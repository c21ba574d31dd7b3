// The transports' probe for Python's benchmark of networks (uccl_ep/tools/bench/transport.py).
#include "transport/probe.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/register.h"
#include "transport/verbs/dmabuf_probe.h"

namespace nb = nanobind;

namespace uccl {
namespace {

std::vector<std::pair<std::string, std::string>> note_pairs(const TransportProbe& probe) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const Note& n : probe.notes()) pairs.emplace_back(n.choice, n.reason);
  return pairs;
}

}  // namespace

void register_probe(nb::module_& m) {
  nb::class_<ProbeSettings>(m, "ProbeSettings")
      .def(nb::init<>())
      .def_rw("family", &ProbeSettings::family)
      .def_rw("fabric", &ProbeSettings::fabric)
      .def_rw("interface_address", &ProbeSettings::interface_address)
      .def_rw("rank", &ProbeSettings::rank)
      .def_rw("session", &ProbeSettings::session)
      .def_prop_rw(
          "secret", [](const ProbeSettings& s) { return nb::bytes(s.secret.data(), s.secret.size()); },
          [](ProbeSettings& s, nb::bytes secret) { s.secret = std::string(secret.c_str(), secret.size()); })
      .def_rw("most_bytes", &ProbeSettings::most_bytes)
      .def_rw("timeout_ns", &ProbeSettings::timeout_ns);
  using Unlocked = nb::call_guard<nb::gil_scoped_release>;
  m.attr("DMABUF_BYTES") = kDmabufBytes;
  m.def(
      "why_no_dmabuf",
      [](const std::string& device, int fd, u64 num_bytes, u64 address) {
        try {
          return why_no_dmabuf(ibv::Library::shared(), device, {fd, num_bytes, address});
        } catch (const std::exception& e) { return std::string(e.what()); }
      },
      nb::arg("device"), nb::arg("fd"), nb::arg("num_bytes"), nb::arg("address"), Unlocked(),
      "Why an RDMA device does not register a dma-buf that holds `num_bytes` at `address`; empty: it does.");
  nb::class_<TransportProbe>(m, "TransportProbe", "Measures one network family between two processes.")
      .def(nb::init<const ProbeSettings&>(), nb::arg("settings"), Unlocked())
      .def("local_address",
           [](TransportProbe& p) {
             const std::string address = p.local_address();
             return nb::bytes(address.data(), address.size());
           })
      .def(
          "connect",
          [](TransportProbe& p, const std::vector<nb::bytes>& addresses) {
            std::vector<std::string> plain;
            for (const nb::bytes& a : addresses) plain.emplace_back(a.c_str(), a.size());
            nb::gil_scoped_release unlocked;
            p.connect(plain);
          },
          nb::arg("addresses"))
      .def("notes", &note_pairs, "(what was chosen, why) of everything that the family chose at run time.")
      .def(
          "stream", &TransportProbe::stream, nb::arg("bytes"), nb::arg("count"), Unlocked(),
          "Seconds that rank 0 takes to write `count` times `bytes` to rank 1 and to hear that all is there and right.")
      .def("round_trips", &TransportProbe::round_trips, nb::arg("bytes"), nb::arg("count"), Unlocked(),
           "Seconds of `count` writes of `bytes` there and back, one at a time.");
}

}  // namespace uccl

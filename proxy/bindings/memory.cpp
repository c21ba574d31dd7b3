// Segments as Python objects whose bytes NumPy (and through it torch) can view.
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "bindings/register.h"
#include "memory/segment.h"

namespace nb = nanobind;

namespace uccl {
namespace {

using Bytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;

Bytes view(const std::shared_ptr<Segment>& segment) {
  auto* keep = new std::shared_ptr<Segment>(segment);  // freed with the array
  nb::capsule owner(keep, [](void* p) noexcept { delete static_cast<std::shared_ptr<Segment>*>(p); });
  return Bytes(segment->data(), {segment->bytes()}, owner);
}

}  // namespace

void register_memory(nb::module_& m) {
  nb::class_<Segment>(m, "Segment", "A memfd that other processes of this host can map.")
      .def_static("create", &Segment::create, nb::arg("name"), nb::arg("bytes"))
      .def_static("open", &Segment::open, nb::arg("pid"), nb::arg("fd"), nb::arg("bytes"))
      .def_static("map", &Segment::map, nb::arg("fd"), nb::arg("bytes"))
      .def_static("adopt", &Segment::adopt, nb::arg("fd"), nb::arg("bytes"))
      .def_prop_ro("address", [](const Segment& s) { return reinterpret_cast<std::uintptr_t>(s.data()); })
      .def_prop_ro("bytes", &Segment::bytes)
      .def_prop_ro("fd", &Segment::fd, "-1 of one that is only mapped.")
      .def("give_back", &Segment::give_back, nb::arg("offset"), nb::arg("bytes"),
           "Gives whole pages back to the system; they read as zeros again. False: it refused.")
      .def("prefer_node", &Segment::prefer_node, nb::arg("node"),
           "Pages that are first used from now on come from this NUMA node. False: the system refuses.")
      .def("numpy", &view, "A uint8 array over the whole segment, which stays mapped while the array lives.");
}

}  // namespace uccl

// The parts of the native module; each registers its classes. What Python sees is documented in uccl_ep/_native.pyi.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>

namespace uccl {

void register_memory(nanobind::module_& m);
void register_proxy(nanobind::module_& m);
void register_enums(nanobind::module_& m);
void register_layouts(nanobind::module_& m);
void register_streams(nanobind::module_& m);
void register_kernels(nanobind::module_& m);
void register_probe(nanobind::module_& m);
void register_diag(nanobind::module_& m);
void register_ids(nanobind::module_& m);

// A pointer field as an integer address.
template <class C, class P>
void address(nanobind::class_<C>& c, const char* name, P C::* field) {
  c.def_prop_rw(
      name, [field](const C& s) { return reinterpret_cast<std::uintptr_t>(s.*field); },
      [field](C& s, std::uintptr_t v) { s.*field = reinterpret_cast<P>(v); });
}

}  // namespace uccl

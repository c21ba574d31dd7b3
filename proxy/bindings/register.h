// The parts of the native module; each registers its classes. What Python sees is documented in uccl_ep/_native.pyi.
#pragma once
#include <nanobind/nanobind.h>

namespace uccl {

void register_memory(nanobind::module_& m);
void register_proxy(nanobind::module_& m);
void register_enums(nanobind::module_& m);
void register_layouts(nanobind::module_& m);
void register_streams(nanobind::module_& m);
void register_kernels(nanobind::module_& m);
void register_launches(nanobind::module_& m);
void register_probe(nanobind::module_& m);
void register_diag(nanobind::module_& m);
void register_ids(nanobind::module_& m);

}  // namespace uccl

// A look at top-k ids on the host: which values a call was given.
#include <nanobind/stl/pair.h>

#include <algorithm>

#include "bindings/register.h"

namespace nb = nanobind;

namespace uccl {
namespace {

template <class Id>
std::pair<std::int64_t, std::int64_t> range_of(std::uintptr_t address, std::size_t count) {
  const Id* const ids = reinterpret_cast<const Id*>(address);
  Id low = ids[0], high = ids[0];
  for (std::size_t i = 1; i < count; ++i) {
    low = std::min(low, ids[i]);
    high = std::max(high, ids[i]);
  }
  return {low, high};
}

}  // namespace

void register_ids(nb::module_& m) {
  m.def(
      "range_of_ids",
      [](std::uintptr_t address, std::size_t count, bool wide) {
        if (count == 0) throw nb::value_error("range_of_ids: count is 0; allowed: 1 or more");
        return wide ? range_of<std::int64_t>(address, count) : range_of<std::int32_t>(address, count);
      },
      nb::arg("address"), nb::arg("count"), nb::arg("wide"),
      "The least and the greatest of `count` adjacent int64 (wide) or int32 in host memory.");
}

}  // namespace uccl

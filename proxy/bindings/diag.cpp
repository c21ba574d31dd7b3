// The flight recorder's rings for Python: their size, and copies of what they hold (uccl_ep/recorder).
#include "bindings/proxy_host.h"
#include "bindings/register.h"
#include "diag/event_reader.h"

namespace nb = nanobind;

namespace uccl {
namespace {

// (number of the first event, events ever written, every command was traced, the events' bytes) of one worker.
nb::tuple read_worker(std::uintptr_t address, u32 capacity, u32 worker) {
  const auto* ring = reinterpret_cast<const u8*>(address) + worker * event_stride(capacity);
  const EventSnapshot s = read_events(ring, event_ring_bytes(capacity));
  const nb::bytes events(s.events.data(), s.events.size() * sizeof(Event));
  return nb::make_tuple(s.first, s.written, s.traced, events);
}

}  // namespace

void register_diag(nb::module_& m) {
  m.attr("EVENT_BYTES") = sizeof(Event);
  m.def(
      "events_bytes", [](u32 num_workers, u32 capacity) { return num_workers * event_stride(capacity); },
      nb::arg("num_workers"), nb::arg("capacity"), "Size of an events segment.");
  m.def("read_events", &read_worker, nb::arg("address"), nb::arg("capacity"), nb::arg("worker"),
        nb::sig("def read_events(address: int, capacity: int, worker: int) -> tuple[int, int, bool, bytes]"),
        "(number of the first event, events ever, whether every command is traced, the events of EVENT_BYTES bytes) of "
        "a worker, from a mapped events segment; it may be being written.");
}

}  // namespace uccl

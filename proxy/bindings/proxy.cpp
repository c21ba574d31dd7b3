// The proxy, its rings and its counters for Python.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <thread>

#include "bindings/proxy_host.h"
#include "bindings/register.h"
#include "engine/doorbell.h"
#include "engine/faults.h"
#include "engine/words.h"
#include "ring/consumer.h"

namespace nb = nanobind;

namespace uccl {
namespace {

template <class T>
u64 relaxed(T& word) {
  return std::atomic_ref<u64>(word).load(std::memory_order_relaxed);
}

nb::dict worker_dict(WorkerCounters& c) {
  nb::dict d;
  d["commands"] = relaxed(c.commands);
  d["writes"] = relaxed(c.writes);
  d["write_bytes"] = relaxed(c.write_bytes);
  d["completions"] = relaxed(c.completions);
  d["arrivals"] = relaxed(c.arrivals);
  d["expects"] = relaxed(c.expects);
  d["sequences"] = relaxed(c.sequences);
  d["credits"] = relaxed(c.credits);
  d["barriers"] = relaxed(c.barriers);
  d["quiets"] = relaxed(c.quiets);
  d["parked"] = relaxed(c.parked);
  d["deepest_reorder"] = relaxed(c.deepest_reorder);
  d["stale"] = relaxed(c.stale);
  d["refused"] = relaxed(c.refused);
  d["stalls"] = relaxed(c.stalls);
  d["naps"] = relaxed(c.naps);
  return d;
}

nb::dict queue_dict(const QueueCounters& c) {
  nb::dict d;
  d["lane"] = c.lane;
  d["peer"] = c.peer;
  d["nic"] = c.nic;
  d["number"] = c.number;
  d["writes"] = c.writes;
  d["write_bytes"] = c.write_bytes;
  return d;
}

nb::dict peer_dict(PeerCounters& c) {
  nb::dict d;
  d["writes"] = relaxed(c.writes);
  d["write_bytes"] = relaxed(c.write_bytes);
  d["arrivals"] = relaxed(c.arrivals);
  d["stalls"] = relaxed(c.stalls);
  d["in_flight"] = relaxed(c.in_flight);
  d["in_flight_bytes"] = relaxed(c.in_flight_bytes);
  d["last_arrival_ns"] = relaxed(c.last_arrival_ns);
  d["lost"] = relaxed(c.lost);
  d["sending_ns"] = relaxed(c.sending_ns);
  d["arriving_ns"] = relaxed(c.arriving_ns);
  d["parked"] = relaxed(c.parked);
  return d;
}

// (workers, peers) as lists of dicts, from a mapped counters segment.
nb::tuple read_counters(std::uintptr_t address, u32 num_workers, u32 num_ranks) {
  auto* workers = reinterpret_cast<WorkerCounters*>(address);
  auto* peers = reinterpret_cast<PeerCounters*>(workers + num_workers);
  nb::list w, p;
  for (u32 i = 0; i < num_workers; ++i) w.append(worker_dict(workers[i]));
  for (u32 i = 0; i < num_ranks; ++i) p.append(peer_dict(peers[i]));
  return nb::make_tuple(w, p);
}

// True when every command ever pushed into these rings is complete at its receiver. Not by the ring's head, which is a
// GPU's where that pushes.
bool rings_idle(std::uintptr_t address, u32 num_rings, u32 capacity) {
  for (u32 i = 0; i < num_rings; ++i) {
    auto* memory = reinterpret_cast<void*>(address + i * ring_bytes(capacity));
    const RingConsumer ring(memory, capacity);
    Command next;
    auto* h = static_cast<RingHeader*>(memory);
    if (std::atomic_ref<u64>(h->done).load(std::memory_order_acquire) != ring.next_ticket() || ring.peek(&next))
      return false;
  }
  return true;
}

// The rank's first fault as a dict, or None; `address` is the control segment's base.
// A fault that has been claimed is a few stores from being ready, and a second fault may raise `abort` before that: so
// a claimed record is waited for, but not for ever (its writer may have been killed in between).
nb::object read_fault(std::uintptr_t address) {
  auto* f = reinterpret_cast<FaultRecord*>(address + ControlLayout::kFault);
  std::atomic_ref<u32> claimed(f->claimed), ready(f->ready);
  for (int turn = 0; claimed.load(std::memory_order_relaxed) != 0 && ready.load(std::memory_order_acquire) == 0;
       ++turn) {
    if (turn > 100000) break;
    std::this_thread::yield();
  }
  if (ready.load(std::memory_order_acquire) == 0) return nb::none();
  nb::dict d;
  d["kind"] = f->kind;
  d["phase"] = f->phase;
  d["peer"] = f->peer;
  const DetailWord detail = DetailWord::of(f->detail);
  d["detail_kind"] = static_cast<u32>(detail.kind());
  d["detail"] = detail.number();
  d["expected"] = f->expected;
  d["seen"] = f->seen;
  d["last_seen_ns"] = f->last_seen_ns;
  d["waited_ns"] = f->waited_ns;
  return d;
}

}  // namespace

namespace {

void register_fabric(nb::module_& m) {
  nb::class_<NicSettings>(m, "NicSettings")
      .def(nb::init<>())
      .def_rw("device", &NicSettings::device)
      .def_rw("port", &NicSettings::port)
      .def_rw("gid_index", &NicSettings::gid_index);
  nb::class_<FabricSettings>(m, "FabricSettings")
      .def(nb::init<>())
      .def_rw("nics", &FabricSettings::nics)
      .def_rw("provider", &FabricSettings::provider)
      .def_rw("queue_pairs", &FabricSettings::queue_pairs)
      .def_rw("service_level", &FabricSettings::service_level)
      .def_rw("traffic_class", &FabricSettings::traffic_class)
      .def_rw("hop_limit", &FabricSettings::hop_limit)
      .def_rw("mtu", &FabricSettings::mtu)
      .def_rw("udp_source_port", &FabricSettings::udp_source_port)
      .def_rw("timeout", &FabricSettings::timeout)
      .def_rw("retries", &FabricSettings::retries)
      .def_rw("relaxed_ordering", &FabricSettings::relaxed_ordering)
      .def_rw("flush_by_read", &FabricSettings::flush_by_read);
  m.def("explain_network_code", &explain_code, nb::arg("family"), nb::arg("code"),
        nb::arg("nics") = std::vector<std::string>{},
        "A network family's error code in words, behind the name of the NIC that it is of, where that is known; empty "
        "for 0.");
}

void register_settings(nb::module_& m) {
  nb::class_<SpanSettings>(m, "SpanSettings")
      .def(nb::init<>())
      .def_rw("offset", &SpanSettings::offset)
      .def_rw("bytes", &SpanSettings::bytes)
      .def_rw("fd", &SpanSettings::fd)
      .def_rw("dmabuf_fds", &SpanSettings::dmabuf_fds)
      .def_rw("address", &SpanSettings::address);
  nb::class_<ProxySettings>(m, "ProxySettings")
      .def(nb::init<>())
      .def_rw("rank", &ProxySettings::rank)
      .def_rw("num_ranks", &ProxySettings::num_ranks)
      .def_rw("num_workers", &ProxySettings::num_workers)
      .def_rw("spans", &ProxySettings::spans)
      .def_rw("late_span", &ProxySettings::late_span)
      .def_rw("control_offset", &ProxySettings::control_offset)
      .def_rw("num_channels", &ProxySettings::num_channels)
      .def_rw("rings_fd", &ProxySettings::rings_fd)
      .def_rw("num_rings", &ProxySettings::num_rings)
      .def_rw("ring_capacity", &ProxySettings::ring_capacity)
      .def_rw("counters_fd", &ProxySettings::counters_fd)
      .def_rw("events_fd", &ProxySettings::events_fd)
      .def_rw("event_capacity", &ProxySettings::event_capacity)
      .def_rw("trace", &ProxySettings::trace)
      .def_rw("family", &ProxySettings::family)
      .def_rw("session", &ProxySettings::session)
      .def_prop_rw(
          "secret", [](const ProxySettings& s) { return nb::bytes(s.secret.data(), s.secret.size()); },
          [](ProxySettings& s, nb::bytes v) { s.secret.assign(v.c_str(), v.size()); })
      .def_rw("interface_address", &ProxySettings::interface_address)
      .def_rw("max_in_flight", &ProxySettings::max_in_flight)
      .def_rw("max_in_flight_bytes", &ProxySettings::max_in_flight_bytes)
      .def_rw("max_in_flight_bytes_all", &ProxySettings::max_in_flight_bytes_all)
      .def_rw("nap_when_idle", &ProxySettings::nap_when_idle)
      .def_rw("shuffle_seed", &ProxySettings::shuffle_seed)
      .def_rw("connect_timeout_ns", &ProxySettings::connect_timeout_ns)
      .def_rw("cpus", &ProxySettings::cpus)
      .def_rw("near_cpus", &ProxySettings::near_cpus)
      .def_rw("losses_are_absences", &ProxySettings::losses_are_absences)
      .def_rw("fabric", &ProxySettings::fabric)
      .def_rw("flush_call", &ProxySettings::flush_call)
      .def_rw("context_call", &ProxySettings::context_call)
      .def_rw("context", &ProxySettings::context)
      .def_rw("unreached", &ProxySettings::unreached);
}

void register_host(nb::module_& m) {
  nb::class_<ProxyHost>(m, "Proxy", "The proxy of one rank: transport and engine threads.")
      .def(nb::init<ProxySettings>(), nb::arg("settings"))
      .def("local_address",
           [](ProxyHost& p) {
             const std::string a = p.local_address();
             return nb::bytes(a.data(), a.size());
           })
      .def(
          "connect",
          [](ProxyHost& p, const std::vector<nb::bytes>& addresses, const std::vector<u64>& peer_bytes,
             const std::vector<int>& peer_pids) {
            std::vector<std::string> plain;
            for (const nb::bytes& a : addresses) plain.emplace_back(a.c_str(), a.size());
            nb::gil_scoped_release release;
            p.connect(plain, peer_bytes, peer_pids);
          },
          nb::arg("addresses"), nb::arg("peer_bytes"), nb::arg("peer_pids"))
      .def("start", &ProxyHost::start)
      .def("stop", &ProxyHost::stop, nb::arg("drain_ns"), nb::call_guard<nb::gil_scoped_release>())
      .def("dismiss_peer", &ProxyHost::dismiss_peer, nb::arg("peer"))
      .def(
          "admit",
          [](ProxyHost& p, u64 bytes, u64 address, std::vector<int> dmabufs) {
            p.admit({bytes, address, std::move(dmabufs)});
          },
          nb::arg("bytes"), nb::arg("address") = 0, nb::arg("dmabufs") = std::vector<int>{},
          nb::call_guard<nb::gil_scoped_release>(),
          "Registers the first bytes of the late span with the NICs; what is new of them may be a GPU's memory.")
      .def(
          "notes",
          [](const ProxyHost& p) {
            std::vector<std::pair<std::string, std::string>> pairs;
            for (const Note& n : p.notes()) pairs.emplace_back(n.choice, n.reason);
            return pairs;
          },
          "(choice, why) of what the transport chose at run time.")
      .def(
          "queue_pairs",
          [](const ProxyHost& p) {
            nb::list all;
            for (const QueueCounters& c : p.queue_counters()) all.append(queue_dict(c));
            return all;
          },
          nb::sig("def queue_pairs(self) -> list[dict[str, int]]"),
          "What each queue pair has carried; empty in families without.");
  nb::class_<ProxyGuard>(m, "ProxyGuard", "Makes the end of a rank's proxy process a fault of the rank.")
      .def(
          "__init__",
          [](ProxyGuard* self, int pid, std::uintptr_t control, u32 rank) {
            new (self) ProxyGuard(pid, reinterpret_cast<u8*>(control), rank);
          },
          nb::arg("pid"), nb::arg("control"), nb::arg("rank"))
      .def("stop", &ProxyGuard::stop, nb::call_guard<nb::gil_scoped_release>());
}

void tell_of_peer(std::uintptr_t control, u64 word, bool value) {
  auto* base = reinterpret_cast<u8*>(control);
  publish_word(base, word, value);
  std::atomic_ref<u64>(control_word(base, ControlLayout::kExclusions)).fetch_add(1, std::memory_order_release);
}

}  // namespace

void register_proxy(nb::module_& m) {
  register_fabric(m);
  register_settings(m);
  register_host(m);
  m.def("ring_bytes", &ring_bytes, nb::arg("capacity"));
  m.def("counters_bytes", &counters_bytes, nb::arg("num_workers"), nb::arg("num_ranks"));
  m.def("read_counters", &read_counters, nb::arg("address"), nb::arg("num_workers"), nb::arg("num_ranks"),
        nb::sig("def read_counters(address: int, num_workers: int, num_ranks: int) -> "
                "tuple[list[dict[str, int]], list[dict[str, int]]]"));
  m.def("rings_idle", &rings_idle, nb::arg("address"), nb::arg("num_rings"), nb::arg("capacity"));
  m.def(
      "report_lost_peer",
      [](std::uintptr_t control, u32 peer) {
        Faults(reinterpret_cast<u8*>(control), nullptr, 0).raise({.kind = FaultKind::kPeerLost, .peer = peer});
      },
      nb::arg("control"), nb::arg("peer"),
      "Makes the loss of a peer the rank's fault, unless it has one; ends every wait of the rank.");
  m.def(
      "exclude_peer",
      [](std::uintptr_t control, const ControlLayout& layout, u32 peer, bool out) {
        tell_of_peer(control, layout.excluded(peer), out);
      },
      nb::arg("control"), nb::arg("layout"), nb::arg("peer"), nb::arg("out"),
      "Tells a rank's proxy that the rank leaves a peer out, or no longer does.");
  m.def(
      "report_ended_peer",
      [](std::uintptr_t control, const ControlLayout& layout, u32 peer) {
        tell_of_peer(control, layout.ended(peer), true);
      },
      nb::arg("control"), nb::arg("layout"), nb::arg("peer"),
      "Tells a rank's proxy that the process of a peer on another host has ended; of one that has said goodbye, "
      "nothing.");
  m.def(
      "ring_doorbell", [](std::uintptr_t control) { Doorbell::ring(reinterpret_cast<u8*>(control)); },
      nb::arg("control"), "Wakes a rank's proxy: kernels are about to be launched.");
  m.def(
      "keep_awake", [](std::uintptr_t control) { Doorbell::keep_awake(reinterpret_cast<u8*>(control)); },
      nb::arg("control"),
      "Tells a rank's proxy that kernels will also run without ring_doorbell: no long sleep any more.");
  m.def("read_fault", &read_fault, nb::arg("control"),
        nb::sig("def read_fault(control: int) -> dict[str, int] | None"));
}

}  // namespace uccl

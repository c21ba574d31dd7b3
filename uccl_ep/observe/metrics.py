"""Prometheus: the counters of ranks of this host, read when they are asked for.

A scrape maps and reads shared memory, so ranks take no part in it. `uccl_ep` counters are Prometheus counters with the
same meaning as in `Buffer.stats()`; `job_id` tells jobs apart, `buffer` Buffers of a job (and lives of one Buffer).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from uccl_ep.errors import NotSupported, refuse
from uccl_ep.observe.attach import Attached
from uccl_ep.observe.sample import Sample
from uccl_ep.observe.watch import Watcher
from uccl_ep.recorder.durations import BUCKETS, CALLS, ERRORS, SUM_NS, upper_bounds_s
from uccl_ep.system.extras import install

if TYPE_CHECKING:
    from prometheus_client.core import Metric

# Name, what the reader of a dashboard wants to know, the column of a sample, and what a unit of it is of the metric's.
_BY_PEER = (
    ("rows_sent", "Rows (token copies) that kernels sent towards the peer.", "rows_sent", 1.0),
    ("bytes_sent", "Bytes of these rows.", "bytes_sent", 1.0),
    ("rows_received", "Rows of the peer that kernels took in.", "rows_received", 1.0),
    ("bytes_received", "Bytes of these rows.", "bytes_received", 1.0),
    ("wait_seconds", "Time that kernels waited for the peer.", "wait_ns", 1e-9),
    ("writes", "Writes of any kind that the proxy posted towards the peer.", "writes", 1.0),
    ("write_bytes", "Bytes of these writes.", "write_bytes", 1.0),
    ("arrivals", "Writes of the peer that arrived here.", "arrivals", 1.0),
    ("stalls", "Times that the head of a ring waited for room towards the peer.", "stalls", 1.0),
    ("sending_seconds", "Time with writes posted to the peer and not complete.", "sending_ns", 1e-9),
    ("arriving_seconds", "Time from the first sign of a call of the peer to its last write.", "arriving_ns", 1e-9),
)
_BY_PEER_NOW = (
    ("in_flight_writes", "Writes to the peer that are posted and not complete.", "in_flight"),
    ("in_flight_bytes", "Bytes of these writes.", "in_flight_bytes"),
    ("parked_arrivals", "Arrivals of the peer that wait for their turn.", "parked"),
)
_BY_RANK = (
    ("commands", "Commands that the proxy took from its rings.", "commands"),
    ("completions", "Writes that are complete at their receiver.", "completions"),
    ("stale_arrivals", "Arrivals of another life of the buffer, dropped.", "stale"),
    ("refused", "Commands or arrivals that no correct peer sends.", "refused"),
    ("naps", "Times that a proxy thread without work slept.", "naps"),
)
_HISTOGRAMS = (
    ("dispatch_seconds", "How long dispatch calls took the host; a hook's receiving is a call of its own.", "dispatch"),
    ("combine_seconds", "How long combine calls took the host; a hook's receiving is a call of its own.", "combine"),
)
_RANK = ("job_id", "buffer", "rank")  # `job` is Prometheus's own: it would rename ours
_PEER = (*_RANK, "peer")
_CALL = (*_RANK, "call")


class Collector:
    """A custom collector of prometheus_client over the samples of a Watcher.

    Args:
        watcher: what to look at. Scrapes may come from several threads: they take turns.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._lock = threading.Lock()

    def describe(self) -> list[Metric]:
        """Nothing in advance: registering does not look at the job."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now; ranks that have ended are only in uccl_ep_up, as 0."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        with self._lock:
            samples = self._watcher.samples()
        up = GaugeMetricFamily("uccl_ep_up", "1 while the rank lives.", labels=_RANK)
        about = ("version", "family", "device", "host", "pid")
        info = GaugeMetricFamily("uccl_ep_info", "1; what the rank is, as labels.", labels=[*_RANK, *about])
        fault = GaugeMetricFamily("uccl_ep_fault", "1 once the rank has a fault, which ends its waits.", labels=_RANK)
        ring_labels = [*_RANK, "ring"]
        waiting = GaugeMetricFamily(
            "uccl_ep_ring_waiting_commands", "Commands that no proxy has taken.", labels=ring_labels
        )
        opened = GaugeMetricFamily(
            "uccl_ep_ring_open_commands", "Commands taken, and not complete.", labels=ring_labels
        )
        living = []
        for rank, sample in samples:
            page, labels = rank.page, _labels(rank)
            up.add_metric(labels, float(sample.alive))
            if not sample.alive:
                continue
            info.add_metric([*labels, page.library, page.family, page.device, page.hostname, str(rank.pid)], 1.0)
            living.append((labels, sample))
            fault.add_metric(labels, float(sample.fault is not None))
            for i, ring in enumerate(sample.rings):
                opened.add_metric([*labels, str(i)], ring.open)
                if ring.waiting is not None:
                    waiting.add_metric([*labels, str(i)], ring.waiting)
        yield from (up, info, fault, waiting, opened)
        yield from _calls(living)
        for name, help_text, column in _BY_RANK:
            family = CounterMetricFamily(f"uccl_ep_{name}", help_text, labels=_RANK)
            for labels, sample in living:
                family.add_metric(labels, sample.workers[column])
            yield family
        for name, help_text, column, unit in _BY_PEER:
            family = CounterMetricFamily(f"uccl_ep_{name}", help_text, labels=_PEER)
            _add_by_peer(family, living, column, unit)
            yield family
        for name, help_text, column in _BY_PEER_NOW:
            gauge = GaugeMetricFamily(f"uccl_ep_{name}", help_text, labels=_PEER)
            _add_by_peer(gauge, living, column, 1.0)
            yield gauge


def _labels(rank: Attached) -> list[str]:
    return [rank.page.job_id, rank.page.job, str(rank.page.rank)]


def _calls(living: list[tuple[list[str], Sample]]) -> Iterator[Metric]:
    """Times of calls, and how many raised; of calls that were made."""
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    errors = CounterMetricFamily("uccl_ep_call_errors", "Calls of a Buffer that raised an error.", labels=_CALL)
    bounds = [f"{bound:g}" for bound in upper_bounds_s()[:-1]] + ["+Inf"]
    families = {kind: HistogramMetricFamily(f"uccl_ep_{name}", text, labels=_CALL) for name, text, kind in _HISTOGRAMS}
    for labels, sample in living:
        for call, row in zip(CALLS, [] if sample.durations is None else sample.durations, strict=False):
            if not row.any():
                continue
            label = call.replace(" (receive)", "_receive")
            reached = row[:BUCKETS].cumsum().tolist()
            kind = "dispatch" if "dispatch" in call else "combine"
            buckets = list(zip(bounds, reached, strict=True))
            families[kind].add_metric([*labels, label], buckets, sum_value=int(row[SUM_NS]) / 1e9)
            errors.add_metric([*labels, label], int(row[ERRORS]))
    yield from (*families.values(), errors)


def _add_by_peer(family: Any, living: list[tuple[list[str], Sample]], column: str, unit: float) -> None:
    """Peers of which nothing is known stay out: a rank talks to few of thousands."""
    for labels, sample in living:
        if column not in sample.peers:
            continue
        values = sample.peers[column]
        known = (sample.peers["arrivals"] != 0) | (sample.peers["writes"] != 0) | (values != 0)
        for peer in known.nonzero()[0].tolist():
            family.add_metric([*labels, str(peer)], max(int(values[peer]), 0) * unit)


class MetricsServer:
    """An HTTP endpoint. Several users of one port in a process share it; the last close ends it.

    Attributes:
        port: where it listens; chosen by the system when 0 was asked for.
    """

    def __init__(self, port: int, stop: Any) -> None:
        self.port = port
        self._stop = stop
        self._closing = threading.Lock()

    def close(self) -> None:
        """Stops listening. Idempotent."""
        with self._closing:
            stop, self._stop = self._stop, None
        if stop is not None:
            stop()


class _Endpoint:
    """A listening server of this process and how many MetricsServers stand for it."""

    def __init__(self, server: Any, thread: threading.Thread, whose: tuple[object, ...]) -> None:
        self.server, self.thread, self.whose = server, thread, whose
        self.users, self.pid = 1, os.getpid()


_endpoints: dict[tuple[str, int], _Endpoint] = {}
_lock = threading.Lock()


def serve_metrics(
    port: int,
    address: str = "127.0.0.1",
    pid: int | None = None,
    directory: str | os.PathLike[str] | None = None,
    job_id: str | None = None,
) -> MetricsServer:
    """Serves metrics of this host's ranks for Prometheus, from this process, which need not be one of them.

    A thread answers GET /metrics until close() or the end of the process. In a rank it takes the interpreter for some
    milliseconds a scrape; in a process beside the ranks it costs them nothing. With UCCL_EP_METRICS_PORT the lowest
    rank of each host calls this.

    Args:
        port: TCP port, 0 to 65535; 0: any that is free.
        address: of the interface to listen on, never all of them.
        pid, directory: whose ranks; see uccl_ep.observe.attach.find. Default: all of this user.
        job_id: only ranks of this job (UCCL_EP_METRICS_PORT serves the rank's own); None: of all jobs.

    Raises:
        InvalidArgument: a port or address that is not allowed, or no such process or directory.
        NotSupported: prometheus_client is not installed.
        OSError: the port is taken.
    """
    if not 0 <= port <= 65535:
        refuse("port", port, "0 to 65535")
    if address in ("", "0.0.0.0", "::"):
        refuse("address", address, "the address of one interface")
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        raise NotSupported(f"metrics need prometheus_client: {install('metrics')}") from error
    with _lock:
        endpoint = _endpoints.get((address, port)) if port else None
        if endpoint is not None and (endpoint.pid, endpoint.whose) == (os.getpid(), (pid, directory, job_id)):
            endpoint.users += 1
        else:
            registry = CollectorRegistry()
            registry.register(Collector(Watcher(pid, directory, job_id)))
            server, thread = start_http_server(port, address, registry)
            endpoint = _Endpoint(server, thread, (pid, directory, job_id))
            port = server.server_port
            _endpoints[address, port] = endpoint
    return MetricsServer(port, lambda: _leave((address, port)))


def _leave(where: tuple[str, int]) -> None:
    with _lock:
        endpoint = _endpoints.get(where)
        if endpoint is None or endpoint.pid != os.getpid():
            return
        endpoint.users -= 1
        if endpoint.users:
            return
        del _endpoints[where]
    endpoint.server.shutdown()
    endpoint.server.server_close()
    endpoint.thread.join()

"""Prometheus's own parser reads what is served, and finds the job's numbers in it."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
import time
import urllib.request
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

import uccl_ep
from tests.uccl_ep.observe.samples import running
from tests.uccl_ep.observe.test_attach import Rank
from uccl_ep import Buffer, InvalidArgument, NotSupported, ThreadGroup, run_ranks
from uccl_ep.observe import serve_metrics
from uccl_ep.observe.metrics import Collector
from uccl_ep.observe.publish import Published
from uccl_ep.observe.watch import Watcher


def scrape(port: int) -> dict[str, list[Any]]:
    """Samples by name."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    found: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def value(found: dict[str, list[Any]], name: str, **labels: str) -> float:
    (sample,) = [s for s in found[name] if labels.items() <= s.labels.items()]
    return float(sample.value)


def test_metrics_of_a_real_job(variables: Any) -> None:
    variables(RANKS_PER_NODE=1, TRANSPORT="shared_memory")
    steps = [0, 0]

    def count(rank: int, buffer: Any) -> None:
        steps[rank] += 1

    with running(2, count) as found:
        server, job = serve_metrics(0, pid=os.getpid()), found[0].page.job
        try:
            scrapes = []
            for least in (2, 4):
                deadline = time.monotonic() + 20
                while min(steps) < least and time.monotonic() < deadline:
                    time.sleep(0.005)
                scrapes.append(scrape(server.port))
        finally:
            server.close()
    first, second = scrapes
    for name in ("rows_sent", "bytes_received", "writes", "write_bytes", "arrivals"):
        # Two nodes of a rank: what goes to the other is its own; rows received count by whose they are.
        before = value(first, f"uccl_ep_{name}_total", buffer=job, rank="0", peer="1")
        after = value(second, f"uccl_ep_{name}_total", buffer=job, rank="0", peer="1")
        assert after >= before > 0 and after == int(after)
    assert 0 < value(second, "uccl_ep_wait_seconds_total", buffer=job, rank="0", peer="1") < 60
    assert value(second, "uccl_ep_up", buffer=job, rank="1") == 1
    whole = {"family": "shared_memory", "device": "cpu", "host": socket.gethostname(), "pid": str(os.getpid())}
    ours = {"version": uccl_ep.__version__, "job_id": found[0].page.job_id, "buffer": job, "rank": "1", **whole}
    (info,) = [s for s in second["uccl_ep_info"] if s.labels["buffer"] == job and s.labels["rank"] == "1"]
    assert (info.labels, info.value) == (ours, 1)
    assert value(second, "uccl_ep_fault", buffer=job, rank="1") == 0
    assert value(second, "uccl_ep_ring_waiting_commands", buffer=job, rank="1", ring="1") >= 0
    for what in ("dispatch", "combine"):
        labels = {"buffer": job, "rank": "0", "call": f"low_latency_{what}"}
        name = f"uccl_ep_{what}_seconds"
        assert value(second, f"{name}_count", **labels) >= value(first, f"{name}_count", **labels) >= 1
        buckets = [s.value for s in second[f"{name}_bucket"] if labels.items() <= s.labels.items()]
        assert buckets == sorted(buckets) and buckets[-1] == value(second, f"{name}_count", **labels)
        assert 0 < value(second, f"{name}_sum", **labels) < 60
        assert value(second, "uccl_ep_call_errors_total", **labels) == 0
    with pytest.raises(OSError):
        scrape(server.port)
    server.close()


def test_metrics_say_of_ranks_that_have_ended_that_they_have() -> None:
    rank = Rank(1, 2)
    published = Published(rank.page)
    registry = CollectorRegistry()
    registry.register(Collector(Watcher(os.getpid())))
    rank.segments.clear()
    samples = [s for f in registry.collect() for s in f.samples if s.labels["buffer"] == published.page.job]
    assert [(s.name, s.value) for s in samples] in ([("uccl_ep_up", 0.0)], [])


def test_metrics_peers_of_which_nothing_is_known_stay_out() -> None:
    rank = Rank(0, 300)
    published = Published(rank.page)
    registry = CollectorRegistry()
    registry.register(Collector(Watcher(os.getpid())))
    families = {f.name: f for f in registry.collect()}
    mine = [s for s in families["uccl_ep_writes"].samples if s.labels["buffer"] == published.page.job]
    assert mine == [] and families["uccl_ep_wait_seconds"].documentation
    assert [s.value for s in families["uccl_ep_up"].samples if s.labels["buffer"] == published.page.job] == [1.0]


def test_metrics_one_endpoint_a_port_and_process() -> None:
    first = serve_metrics(0, pid=os.getpid())
    second = serve_metrics(first.port, pid=os.getpid())
    first.close()
    assert scrape(first.port) is not None  # the other still stands for it
    with pytest.raises(OSError):
        serve_metrics(second.port)  # of other ranks
    second.close()
    with pytest.raises(OSError):
        scrape(first.port)


def test_metrics_of_all_jobs_of_a_user_have_their_names() -> None:
    ranks = [Rank(0, 2, job_id=name) for name in ("one", "two")]
    published = [Published(rank.page) for rank in ranks]

    def seen(job_id: str | None) -> set[str]:
        registry = CollectorRegistry()
        registry.register(Collector(Watcher(os.getpid(), job_id=job_id)))
        return {s.labels["job_id"] for f in registry.collect() if f.name == "uccl_ep_up" for s in f.samples}

    assert {"one", "two"} <= seen(None) and seen("two") == {"two"} and len(published) == 2


def free_port() -> int:
    """A port below those that the system gives to whoever asks for any, so that nobody is given it meanwhile."""
    for port in random.sample(range(20000, 32000), 50):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("50 ports were all taken")


def test_metrics_port_of_the_environment(variables: Any) -> None:
    port = free_port()
    variables(METRICS_PORT=port, JOB_ID="this-job")

    def body(group: ThreadGroup) -> float:
        buffer = Buffer(group, 1 << 20)
        group.barrier()  # rank 0 listens
        deadline = time.monotonic() + 20  # it may have looked before rank 1 was ready, and looks again now and then
        while len(ups := scrape(port)["uccl_ep_up"]) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        group.barrier()
        buffer.destroy()
        return sum(s.value for s in ups)

    stranger = Rank(0, 2, job_id="another job of this user")
    published = Published(stranger.page)
    assert run_ranks(2, body) == [2, 2], "the other job is not shown"
    assert published.page.job_id != "this-job"
    with pytest.raises(OSError):
        scrape(port)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((-1,), "port"), ((65536,), "port"), ((0, "0.0.0.0"), "one interface"), ((0, ""), "one interface")],
)
def test_metrics_refuse_where_not_to_listen(arguments: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        serve_metrics(*arguments)


def test_metrics_without_the_library_say_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(NotSupported, match=r"pip install 'prometheus-client>="):
        serve_metrics(0)

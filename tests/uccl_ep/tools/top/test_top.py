"""The views: what stands in them, for people and machines, of jobs of any size and none."""

from __future__ import annotations

import io
import json
import os
import time
from typing import Any

import pytest
from rich.console import Console

from tests.uccl_ep.observe.samples import page, quiet_second, running
from uccl_ep import InvalidArgument
from uccl_ep.observe.rates import rates
from uccl_ep.observe.waits import find_waits
from uccl_ep.observe.watch import Job, Watcher
from uccl_ep.tools.top.top import TopOptions, as_json, peer_table, rank_table, render, run_top, wait_table

MS = 1_000_000
LIMIT_S = 30.0


def job(num_ranks: int = 4, changed: Any = lambda pairs: None, **of_page: Any) -> Job:
    """A second of a job in which nothing happened but what `changed` does to the samples."""
    node_of = of_page.pop("node_of", [r // 2 for r in range(num_ranks)])
    pages = {r: page(r, num_ranks, node_of=node_of, **of_page) for r in range(num_ranks)}
    pairs = quiet_second(pages[0].topology)
    changed(pairs)
    return Job(
        pages=pages,
        pids={r: 1000 + r for r in pages},
        samples={r: pair[1] for r, pair in pairs.items()},
        rates={r: rates(*pair) for r, pair in pairs.items()},
        waits=find_waits(pairs, pages[0].topology),
    )


def late(pairs: Any) -> None:
    for r in pairs:
        if r != 2:
            pairs[r][1].peers["wait_ns"][2] = 321 * MS
    pairs[0][1].peers["bytes_sent"][2] = 3 << 20
    pairs[0][1].peers["write_bytes"][2] = 5 << 20


def text_of(shown: Any, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(shown)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def nobody() -> Watcher:
    return Watcher(os.getpid())


def test_top_the_slow_rank_is_on_top_with_its_evidence() -> None:
    shown = text_of(render([job(changed=late)], nobody(), TopOptions()))
    lines = shown.splitlines()
    assert "4 ranks on 2 node(s), cpu, tcp" in lines[0]
    assert "rank 2 is late: 3 of 3 ranks waited for it" in lines[1]
    first_row = next(line for line in lines if " 1002 " in line)
    assert shown.index("1002") < shown.index("1000")
    assert first_row.split()[1] == "2"
    assert "3 MiB/s" in shown and "5 MiB/s" in shown and "rank 2" in shown
    assert [line for line in lines if line.split()[1:2] == ["0"] and "321" in line]  # the matrix
    assert "waits, ms a second: late + slow link" in lines, "on one line, however narrow the matrix is"


def test_top_a_quiet_job_says_so() -> None:
    shown = text_of(render([job()], nobody(), TopOptions()))
    assert "nobody stands out by 5% of the time. Ranks wait 0% of the time" in shown and "bold" not in shown

    def alike(pairs: Any) -> None:
        for r in pairs:
            for peer in range(4):
                if peer != r:
                    pairs[r][1].peers["wait_ns"][peer] = 200 * MS
                pairs[r][1].peers["arriving_ns"][peer] = 150 * MS

    shown = text_of(render([job(changed=alike, node_of=[0, 1, 2, 3])], nobody(), TopOptions()))
    assert "Ranks wait 20% of the time: 5% for others to begin, 15% for bytes under way" in shown


def test_top_gone_and_faulted_ranks_are_shown() -> None:
    def end(pairs: Any) -> None:
        before, after = pairs[1]
        fault = {"kind": 2, "phase": 3, "peer": 3, "channel": 0, "expected": 0, "seen": 0}
        fault |= {"last_seen_ns": 0, "waited_ns": 0}
        pairs[0] = (pairs[0][0], type(after)(**vars(pairs[0][1]) | {"fault": fault}))
        pairs[1] = (before, type(after)(**vars(after) | {"alive": False}))

    shown = text_of(rank_table(job(changed=end)), 300)
    assert "rank 1: gone" in shown.splitlines() and "rank 3 (host b)" in shown
    narrow = text_of(rank_table(job(changed=end)), 150)
    assert "rank 1: gone" in narrow and "…" not in narrow, "a usual window shows every column whole"

    def end_all(pairs: Any) -> None:
        for r, (before, after) in list(pairs.items()):
            pairs[r] = (before, type(after)(**vars(after) | {"alive": False}))

    assert "all ranks here have ended" in text_of(render([job(changed=end_all)], nobody(), TopOptions()))


def test_top_a_rank_on_a_gpu_has_gaps_and_no_error() -> None:
    pages = {0: page(0, 1, device="cuda", node_of=[0], machine_of=[0], pids=[1])}
    pairs = quiet_second(pages[0].topology, kernels=False)
    one = Job(pages, {0: 1}, {0: pairs[0][1]}, {0: rates(*pairs[0])}, find_waits(pairs, pages[0].topology))
    assert " - " in text_of(rank_table(one))


def test_top_many_ranks_show_the_greatest_waits_only() -> None:
    def some(pairs: Any) -> None:
        for r in pairs:
            pairs[r][1].peers["wait_ns"][(r + 1) % 64] = (10 + r) * MS

    found = job(64, some, node_of=[r // 8 for r in range(64)]).waits
    shown = text_of(wait_table(found, 64))
    assert "63" in shown and "73" in shown and len(shown.splitlines()) < 20


def test_top_peers_of_one_rank() -> None:
    shown = text_of(peer_table(job(changed=late), 0))
    assert "peers of rank 0" in shown and "3 MiB/s" in shown and "32%" in shown and len(shown.splitlines()) < 8
    assert "peers of rank 0" in text_of(render([job(changed=late)], nobody(), TopOptions(rank=0)))
    assert "peers of rank" not in text_of(render([job(changed=late)], nobody(), TopOptions(rank=9)))


def test_top_json_is_plain_and_whole() -> None:
    plain = json.loads(json.dumps(as_json([job(changed=late)], ["why"])))
    (one,) = plain["jobs"]
    assert one["slow"]["rank"] == 2 and one["slow"]["kind"] == "late" and one["story"].startswith("rank 2")
    assert one["waits"]["late_s"][0][2] == pytest.approx(0.321) and plain["left_out"] == ["why"]
    assert [r["rank"] for r in one["ranks"]] == [0, 1, 2, 3] and one["ranks"][0]["pid"] == 1000
    assert one["ranks"][0]["peers"]["2"]["bytes_sent"] == 3 << 20
    assert json.loads(json.dumps(as_json([job()], [])))["jobs"][0]["slow"] is None


def test_top_once_on_a_real_job(variables: Any) -> None:
    variables(RANKS_PER_NODE=2, TRANSPORT="shared_memory")
    with running(4, lambda rank, buffer: None, lambda rank: 0.05 if rank == 1 else 0.0) as found:
        out = io.StringIO()
        assert run_top(TopOptions(pid=os.getpid(), once=True, as_json=True, interval=0.3), Console(), out) == 0
        console = Console(file=io.StringIO(), width=200)
        assert run_top(TopOptions(pid=os.getpid(), once=True, interval=0.3), console) == 0
    (one,) = [j for j in json.loads(out.getvalue())["jobs"] if j["buffer"] == found[0].page.job]
    assert len(one["ranks"]) == 4 and one["family"] == "shared_memory"
    assert found[0].page.job in console.file.getvalue()  # type: ignore[attr-defined]


def test_top_without_a_rank(tmp_path: Any) -> None:
    console = Console(file=io.StringIO(), width=200)
    options = TopOptions(directory=str(tmp_path), once=True, interval=0.05)
    assert run_top(options, console) == 1
    assert "no rank of uccl_ep among directory" in console.file.getvalue()  # type: ignore[attr-defined]
    out = io.StringIO()
    assert run_top(TopOptions(directory=str(tmp_path), once=True, as_json=True, interval=0.05), console, out) == 1
    assert json.loads(out.getvalue()) == {"jobs": [], "left_out": []}


@pytest.mark.parametrize("interval", [0.0, -1.0, 1e9, float("nan")])
def test_top_refuses_intervals(interval: float) -> None:
    with pytest.raises(InvalidArgument, match="0.05 to 3600"):
        run_top(TopOptions(interval=interval, once=True), Console())


def test_top_of_proxies_in_processes_of_their_own(variables: Any) -> None:
    """Whoever runs the proxy, it counts in the rank's own segments."""
    variables(RANKS_PER_NODE=1, TRANSPORT="tcp", PROXY="process")
    with running(2, lambda rank, buffer: None, lambda rank: 0.2 * rank) as found:
        proxies = [one.page.proxy_pid for one in found]
        assert len({*proxies, os.getpid()}) == 3 and {one.pid for one in found} == {os.getpid()}
        until = time.monotonic() + LIMIT_S
        while True:  # on a busy machine a view may show another rank as the latest
            out = io.StringIO()
            assert run_top(TopOptions(pid=os.getpid(), once=True, as_json=True, interval=1.0), Console(), out) == 0
            (one,) = [j for j in json.loads(out.getvalue())["jobs"] if j["buffer"] == found[0].page.job]
            if (one["slow"] or {}).get("rank") == 1 or time.monotonic() > until:
                break
        console = Console(file=io.StringIO(), width=200)
        assert run_top(TopOptions(pid=proxies[1], once=True, interval=0.3), console) == 0
    assert one["slow"]["rank"] == 1 and one["slow"]["kind"] == "late"
    crossed = [r["peers"][str(1 - r["rank"])] for r in one["ranks"]]
    assert len(crossed) == 2 and all(peer["writes"] > 0 and peer["arrivals"] > 0 for peer in crossed)
    assert found[0].page.job in console.file.getvalue()  # type: ignore[attr-defined]

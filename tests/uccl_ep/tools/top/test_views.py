"""What stands in a view, of jobs of any size and none, in any width."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from tests.uccl_ep.observe.samples import page, quiet_second
from tests.uccl_ep.tools.top.jobs import ended, job, late, text_of
from uccl_ep.observe.rates import rates
from uccl_ep.observe.waits import find_waits
from uccl_ep.observe.watch import Job, Watcher
from uccl_ep.tools.top import views
from uccl_ep.tools.top.views import TopOptions, nobody, peer_table, rank_table, render, wait_table

MS = 1_000_000


def none_found() -> Watcher:
    return Watcher(os.getpid())


def test_views_the_slow_rank_is_on_top_with_its_evidence() -> None:
    shown = text_of(render([job(changed=late)], none_found(), TopOptions(), 200))
    lines = shown.splitlines()
    assert "4 ranks on 2 node(s), cpu, tcp" in lines[0]
    assert "rank 2 is late: 3 of 3 ranks waited for it" in lines[1]
    first_row = next(line for line in lines if " 1002 " in line)
    assert shown.index("1002") < shown.index("1000")
    assert first_row.split()[0] == "2"
    row = next(line for line in lines if " 1000 " in line).split()
    assert (row[4], row[6], row[-2:]) == ("3.0", "5.0", ["rank", "2"]), "the unit is in the head, once"
    assert [line.split() for line in lines if "/s" in line][0][:4] == ["rank", "pid", "host", "node"]
    assert [line.split().count("MiB/s") for line in lines if "/s" in line] == [3]
    assert [line for line in lines if line.split()[1:2] == ["0"] and "321" in line]  # the matrix
    assert "waits, ms a second: late + slow link" in lines, "on one line, however narrow the matrix is"


def test_views_a_quiet_job_says_so() -> None:
    shown = text_of(render([job()], none_found(), TopOptions(), 200))
    assert "nobody stands out by 5% of the time. Ranks wait 0% of the time" in shown and "bold" not in shown

    def alike(pairs: Any) -> None:
        for r in pairs:
            for peer in range(4):
                if peer != r:
                    pairs[r][1].peers["wait_ns"][peer] = 200 * MS
                pairs[r][1].peers["arriving_ns"][peer] = 150 * MS

    shown = text_of(render([job(changed=alike, node_of=[0, 1, 2, 3])], none_found(), TopOptions(), 200))
    assert "Ranks wait 20% of the time: 5% for others to begin, 15% for bytes under way" in shown


def test_views_ended_and_faulted_ranks_are_shown() -> None:
    def end(pairs: Any) -> None:
        fault = {"kind": 2, "phase": 3, "peer": 3, "detail_kind": 0, "detail": 0, "expected": 0, "seen": 0}
        fault |= {"last_seen_ns": 0, "waited_ns": 0}
        pairs[0] = (pairs[0][0], replace(pairs[0][1], fault=fault))
        ended(1)(pairs)

    shown = text_of(rank_table(job(changed=end)), 300)
    (row,) = [line for line in shown.splitlines() if " 1001 " in line]
    assert row.split()[-3:] == ["-", "-", "ended"] and "rank 3 (host b)" in shown
    over = text_of(render([job(changed=ended(0, 1, 2, 3))], none_found(), TopOptions(), 99))
    assert "all ranks here have ended" in over and "waits, ms a second" not in over


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_views_fit_and_keep_what_matters(width: int) -> None:
    def busy(pairs: Any) -> None:
        late(pairs)
        for r in pairs:
            pairs[r][1].peers["bytes_sent"][:] = 12 << 30

    one = job(
        16, busy, node_of=[r // 8 for r in range(16)], host_names=["a-host-with-a-long-name.cluster.example", "b"]
    )
    one = replace(one, pids={r: 4_194_300 - r for r in range(16)})
    shown = text_of(render([one], none_found(), TopOptions(rank=0), width), width)
    lines = shown.splitlines()
    assert "…" not in shown and max(map(len, lines)) <= width
    place = next(i for i, line in enumerate(lines) if "most for" in line)
    head = " ".join(lines[place - 1 : place + 1])
    for name in ("rank", "queued", "waits", *(["pid"] if width >= 80 else [])):
        assert name in head.split()
    row = next(line for line in lines if line.split()[:1] == ["15"])
    assert ("4194285" in row) == (width >= 80) and row.rstrip().endswith("rank 2")
    assert ("no room for: " in shown) == (width < 200)
    whole = text_of(render([one], none_found(), TopOptions(wide=True), width), 400)
    assert "a-host-with-a-long-name.cluster.example" in whole and "no room for" not in whole


def test_views_a_matrix_without_room_is_a_list() -> None:
    found = job(16, late, node_of=[0] * 16).waits
    assert "rank \\ for" in text_of(wait_table(found, 16, 200), 200) and "slow link" in text_of(
        wait_table(found, 16, 60), 60
    )
    assert "rank \\ for" not in text_of(wait_table(found, 16, 60), 60)


def test_views_nobody_is_named_by_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views.os, "geteuid", lambda: 0)
    assert nobody(TopOptions()) == "No running uccl_ep job found for user root."
    monkeypatch.setattr(views.os, "geteuid", lambda: 4_000_000_000)
    assert nobody(TopOptions()) == "No running uccl_ep job found for user 4000000000."
    assert nobody(TopOptions(pid=7)) == "No running uccl_ep job found in process 7 and its children."
    assert nobody(TopOptions(directory="seen")) == "No running uccl_ep job of this host found in directory seen."


def test_views_a_rank_on_a_gpu_has_gaps_and_no_error() -> None:
    pages = {0: page(0, 1, device="cuda", node_of=[0], machine_of=[0], pids=[1])}
    pairs = quiet_second(pages[0].topology, kernels=False)
    one = Job(pages, {0: 1}, {0: pairs[0][1]}, {0: rates(*pairs[0])}, find_waits(pairs, pages[0].topology))
    assert " - " in text_of(rank_table(one))


def test_views_many_ranks_show_the_greatest_waits_only() -> None:
    def some(pairs: Any) -> None:
        for r in pairs:
            pairs[r][1].peers["wait_ns"][(r + 1) % 64] = (10 + r) * MS

    found = job(64, some, node_of=[r // 8 for r in range(64)]).waits
    shown = text_of(wait_table(found, 64))
    assert "63" in shown and "73" in shown and len(shown.splitlines()) < 20


def test_views_peers_of_one_rank() -> None:
    shown = text_of(peer_table(job(changed=late), 0))
    assert "peers of rank 0" in shown and " 3.0 " in shown and " 32" in shown and len(shown.splitlines()) < 8
    assert "peers of rank 0" in text_of(render([job(changed=late)], none_found(), TopOptions(rank=0), 200))
    assert "peers of rank" not in text_of(render([job(changed=late)], none_found(), TopOptions(rank=9), 200))

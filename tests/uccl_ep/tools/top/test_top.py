"""View after view: of real jobs, of none, of jobs that end; for people, into a pipe, as JSON."""

from __future__ import annotations

import io
import json
import os
import time
from contextlib import contextmanager
from typing import Any

import pytest
from rich.console import Console

from tests.uccl_ep.observe.samples import running
from tests.uccl_ep.tools.top.jobs import MS, ended, job, late
from uccl_ep import InvalidArgument
from uccl_ep.tools.top import top
from uccl_ep.tools.top.top import as_json, run_top
from uccl_ep.tools.top.views import TopOptions

LIMIT_S = 30.0


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
    assert "No running uccl_ep job of this host found in directory" in console.file.getvalue()  # type: ignore[attr-defined]
    assert run_top(TopOptions(directory=str(tmp_path), interval=0.05), console) == 1, "a pipe does not wait for a job"
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


class Ending:
    """Stands for a watcher of one job, which ends with its processes after two steps."""

    left_out: list[str] = []

    def __init__(self, *where: object) -> None:
        self.steps = 0

    @property
    def attached(self) -> list[int]:
        return [0, 1]

    @property
    def over(self) -> bool:
        return self.steps > 2

    def step(self) -> list[Any]:
        self.steps += 1
        return [job(2, ended(0, 1) if self.over else late_1, node_of=[0, 1])]


def late_1(pairs: Any) -> None:
    pairs[0][1].peers["wait_ns"][1] = 321 * MS


def test_top_ends_with_a_line_when_all_ranks_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "Watcher", Ending)
    monkeypatch.setattr(top, "RESTART_S", 0.1)
    console = Console(file=io.StringIO(), width=80, color_system=None)
    assert run_top(TopOptions(interval=0.05), console) == 0
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "rank 1 is late" in shown, "into a pipe, each view as it comes"
    assert shown.count("all ranks here have ended") >= 1
    assert shown.splitlines()[-1].startswith("All ranks have ended. No running uccl_ep job found for user ")
    assert "q ends" not in shown, "a pipe has no keys"
    out = io.StringIO()
    assert run_top(TopOptions(interval=0.05, as_json=True), console, out) == 0
    assert json.loads(out.getvalue().splitlines()[-1])["jobs"][0]["alive"] is False


def test_top_waits_for_ranks_that_a_launcher_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "RESTART_S", 0.2)
    watcher = Ending()
    over = top._Over(watcher)  # type: ignore[arg-type]
    watcher.steps = 9
    assert not over()
    watcher.steps = 0
    time.sleep(0.25)
    assert not over(), "somebody has come meanwhile"
    watcher.steps = 9
    assert not over()
    time.sleep(0.25)
    assert over()


def test_top_on_a_terminal_shows_and_heeds_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    pressed = iter(["", "x", "w", "q"])

    @contextmanager
    def keys() -> Any:
        def wait(seconds: float) -> str:
            key = next(pressed)
            time.sleep(0 if key else seconds)
            return key

        yield wait

    monkeypatch.setattr(top, "Watcher", Ending)
    monkeypatch.setattr(top, "keyboard", keys)
    console = Console(file=io.StringIO(), width=80, height=40, force_terminal=True, color_system=None)
    assert run_top(TopOptions(interval=0.05), console) == 0
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "q ends, w shows all columns" in shown and "no room for: host" in shown
    assert "no room" not in shown[shown.rindex("rank 1 is late") :], "after w"
    assert list(pressed) == []


def test_top_wide_shows_all_columns_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "Watcher", Ending)
    console = Console(file=io.StringIO(), width=80, color_system=None)
    assert run_top(TopOptions(interval=0.05, once=True, wide=True), console) == 0
    assert " host " in console.file.getvalue()  # type: ignore[attr-defined]

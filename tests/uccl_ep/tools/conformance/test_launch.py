"""Whole runs in processes: green on ourselves, red on a wrong module, and going on after ranks that died or hung."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from uccl_ep import cli
from uccl_ep.tools.conformance import launch

ROOT = str(Path(launch.__file__).parents[3])
pytestmark = pytest.mark.timeout(580)  # every rank is a process that imports torch; machines may be busy

# A module beside uccl_ep with single faults; ranks import it by name.
MODULE = """
import os, signal, threading
from uccl_ep import Buffer as Right, Config, EventHandle, EventOverlap, topk_idx_t
__version__ = "0.0"
class Buffer(Right):
    def get_dispatch_layout(self, *arguments, **names):
        if os.environ.get("FAULT") == "kill" and self.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if os.environ.get("FAULT") == "hang":
            threading.Event().wait()
        return super().get_dispatch_layout(*arguments, **names)
    def low_latency_update_mask_buffer(self, rank_to_mask, mask=True):
        super().low_latency_update_mask_buffer(rank_to_mask, mask)
"""


def conformance(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "almost_ep.py").write_text(MODULE)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("UCCL_EP_", "PYTHON"))}
    path = os.pathsep.join([str(folder), ROOT])
    command = [sys.executable, "-m", "uccl_ep", "conformance", *arguments, "--device", "cpu"]
    return subprocess.run(
        command,
        env={**inherited, "PYTHONPATH": path, "UCCL_EP_DEVICE": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=500,
        cwd=folder,
    )


def statuses(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    return {check["name"]: check["status"] for check in json.loads(done.stdout)["checks"]}


@pytest.mark.slow
def test_launch_everything_is_green_on_ourselves_on_two_nodes(tmp_path: Path) -> None:
    done = conformance(tmp_path, "uccl_ep", "--ranks", "4", "--nodes", "2", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["conforms"] and result["totals"]["failed"] == 0 and result["totals"]["passed"] > 60
    assert result["totals"]["open"] == 0 and result["module"]["device"] == "cpu"


@pytest.mark.slow
def test_launch_the_drop_in_is_green(tmp_path: Path) -> None:
    arguments = ["deep_ep", "--ranks", "2", "--only", "names", "--only", "throughput_dispatch_rows"]
    done = conformance(tmp_path, *arguments, UCCL_EP_AS_DEEP_EP="1", COLUMNS="160", **with_hook())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "deep_ep conforms: 3 passed, 0 failed, 0 skipped" in done.stdout and "+uccl.ep." in done.stdout


def with_hook() -> dict[str, str]:
    from uccl_ep.drop_in.run import with_drop_in

    return {"PYTHONPATH": with_drop_in({"PYTHONPATH": ROOT})["PYTHONPATH"]}


@pytest.mark.slow
def test_launch_a_wrong_module_is_red_in_the_right_row(tmp_path: Path) -> None:
    names = ["mask_update_query_clean", "throughput_layout"]
    done = conformance(tmp_path, "almost_ep", "--ranks", "2", "--json", "--only", names[0], "--only", names[1])
    assert done.returncode == 1, done.stdout + done.stderr
    found = statuses(done)
    assert found.pop("mask_update_query_clean") == "fail" and set(found.values()) == {"pass"}


@pytest.mark.slow
def test_launch_goes_on_after_a_rank_that_died(tmp_path: Path) -> None:
    only = ["--only", "names_at", "--only", "throughput_layout", "--only", "constructor"]
    done = conformance(tmp_path, "almost_ep", "--ranks", "2", "--json", *only, FAULT="kill")
    assert done.returncode == 1, done.stdout + done.stderr
    details = {check["name"]: check["detail"] for check in json.loads(done.stdout)["checks"]}
    died = [name for name, detail in details.items() if "rank 1 ended with exit status -9" in detail]
    assert died == ["throughput_layout", "throughput_layout_ids_out_of_range"]  # each start, and the next check
    assert details["names_at_the_top"] == details["constructor_wants_a_group"] == ""


@pytest.mark.slow
def test_launch_ends_ranks_that_hang(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    from rich.console import Console

    (tmp_path / "almost_ep.py").write_text(MODULE)
    monkeypatch.setenv("FAULT", "hang")
    monkeypatch.setenv("UCCL_EP_DEVICE", "cpu")
    monkeypatch.syspath_prepend(str(tmp_path))  # spawned ranks get this process's path
    only = ("names_at_the_top", "throughput_layout_ids_out_of_range")
    options = launch.ConformanceOptions("almost_ep", 2, 1, "cpu", only, 1, check_seconds=45.0)
    assert launch.run_conformance(options, True, Console()) == 1
    first, second = json.loads(capsys.readouterr().out)["checks"]
    assert (first["status"], second["status"]) == ("pass", "fail")
    assert "did not come back within 45 s" in second["detail"]


@pytest.mark.slow
def test_launch_leaves_no_rank_behind_when_it_is_killed(tmp_path: Path) -> None:
    import psutil

    (tmp_path / "almost_ep.py").write_text(MODULE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), ROOT]), "FAULT": "hang"}
    command = [sys.executable, "-m", "uccl_ep", "conformance", "almost_ep", "--ranks", "2", "--device", "cpu"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        ranks: list[psutil.Process] = []
        while len(ranks) < 2:
            assert run.poll() is None
            children = psutil.Process(run.pid).children()
            ranks = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
        run.kill()
    assert not psutil.wait_procs(ranks, timeout=400)[1]


@pytest.mark.parametrize(
    ("module", "ranks", "words"),
    [
        ("no_such_ep", 2, ["module must be", "got 'no_such_ep'."]),
        ("uccl_ep", 1, ["--ranks must be 2 to 64; got 1."]),
    ],
)
def test_launch_refusals_are_one_line(
    module: str, ranks: int, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["uccl-ep", "conformance", module, "--ranks", str(ranks), "--device", "cpu"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    error = capsys.readouterr().err
    assert ended.value.code == 2 and all(word in error for word in words), error
    assert "Traceback" not in error and error.count("\n") == 1

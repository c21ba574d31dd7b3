"""Processes of ranks: what they are started with, that all of them end, and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

import uccl_ep
from uccl_ep.tools.launch import Stopped, end, end_tree, signals_stop, start

SHOW = (
    "import os, sys; print('out', flush=True); "
    "print('err', os.environ['PYTHONPATH'], os.environ['RANK'], os.getsid(0), file=sys.stderr)"
)


@pytest.mark.parametrize("quiet", [False, True])
def test_launch_starts_this_package_in_a_session_of_its_own(tmp_path: Path, quiet: bool) -> None:
    process = start([sys.executable, "-c", SHOW], {"RANK": "3"}, tmp_path / "log", quiet)
    assert process.wait(timeout=30) == 0
    *before, line = (tmp_path / "log").read_text().splitlines()
    assert before == (["out"] if quiet else [])
    _, path, rank, session = line.split()
    assert path.split(os.pathsep)[0] == str(Path(uccl_ep.__file__).parent.parent)
    assert (rank, session) == ("3", str(process.pid))


def test_launch_gives_ranks_one_thread_unless_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for told, wanted in ((None, "1"), ("2", "2")):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if told:
            monkeypatch.setenv("OMP_NUM_THREADS", told)
        code = f"import os; assert os.environ['OMP_NUM_THREADS'] == '{wanted}'"
        assert start([sys.executable, "-c", code], {}, tmp_path / "log").wait(timeout=30) == 0


def test_launch_ends_what_still_runs(tmp_path: Path) -> None:
    hang = [sys.executable, "-c", "import time; time.sleep(600)"]
    processes = [start(hang, {}, tmp_path / "log") for _ in range(2)]
    processes.append(start([sys.executable, "-c", ""], {}, tmp_path / "log"))
    begin = time.monotonic()
    end(processes, patience_s=0.2)
    assert [p.returncode for p in processes[:2]] == [-signal.SIGKILL] * 2 and processes[2].returncode is not None
    assert time.monotonic() - begin < 50.0


def test_launch_end_tree_reaches_children_in_sessions_of_their_own() -> None:
    sleeper = "import time; time.sleep(300)"
    code = (
        f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', '{sleeper}'], start_new_session=True); "
    )
    code += "print(p.pid, flush=True); p.wait()"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = psutil.Process(int(process.stdout.readline()))
    end_tree(process)
    child.wait(timeout=30.0)
    assert process.returncode != 0 and not child.is_running()
    process.stdout.close()
    end_tree(process)  # of what has ended: nothing happens


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_launch_turns_signals_into_an_end_and_gives_them_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Stopped, match=f"stopped by {number.name}") as stopped, signals_stop():
        signal.raise_signal(number)
        threading.Event().wait(5)
    assert stopped.value.signal_number == number
    assert signal.getsignal(number) is before

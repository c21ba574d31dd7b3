"""Journals: what a process leaves that is killed, in the middle of a call or before it was ready; what an orderly end
leaves; what is kept of old ones; bytes that were damaged."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.uccl_ep.recorder.records import record
from uccl_ep import _native
from uccl_ep.errors import InvalidArgument
from uccl_ep.recorder import journal as journal_module
from uccl_ep.recorder.calls import CallLog
from uccl_ep.recorder.journal import KILLED, RUNNING, Journal, journals, prune, read_journal

ROOT = Path(__file__).resolve().parents[3]
RINGS = _native.events_bytes(2, 64)


@pytest.fixture(autouse=True)
def _own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MEMORY", tmp_path)


def test_recorder_journal_tells_of_calls_that_are_under_way() -> None:
    log = CallLog()
    log.journal = Journal(3, 0)
    log.journal.complete(record(3, 4, settings={}), Path("/nowhere"))
    with log.call("dispatch"):
        pass
    with pytest.raises(KeyError), log.call("combine"):
        raise KeyError
    running = log.begin("low_latency_dispatch", (), 17)
    told = read_journal(log.journal.path)
    assert (told.rank, told.num_ranks, told.reason) == (3, 4, RUNNING)
    assert [(c.name, c.number, c.error, c.end_ns != 0) for c in told.calls] == [
        ("dispatch", 1, "", True),
        ("combine", 1, "KeyError", True),
        ("low_latency_dispatch", 17, "", False),
    ]
    log.end(running)
    assert all(call.end_ns >= call.begin_ns > 0 for call in read_journal(log.journal.path).calls)
    log.journal.remove()
    assert journals() == []


@pytest.mark.parametrize("shape", [[], [7], [16, 256], [2, 32, 256], [1, 2, 3, 4], [1, 2, 3, 4, 5], [3, 1 << 33]])
def test_recorder_journal_has_the_shape_of_the_first_tensor(shape: list[int]) -> None:
    log = CallLog()
    log.journal = Journal(0, 0)
    log.journal.complete(record(0, settings={}), Path("/nowhere"))
    log.end(log.begin("combine", (torch.empty(shape, device="meta"), torch.zeros(9))))
    told = read_journal(log.journal.path).calls[-1].shapes
    assert told == ([[size % 2**32 for size in shape[:4]]] if shape else [])


def test_recorder_journal_keeps_the_last_calls_and_any_number_of_names() -> None:
    log = CallLog()
    log.journal = Journal(0, 0)
    log.journal.complete(record(0, settings={}), Path("/nowhere"))
    for number in range(700):
        with log.call(f"call {number % 150}", number + 1):
            pass
    kept = read_journal(log.journal.path).calls
    assert [call.number for call in kept] == list(range(189, 701))
    assert all(call.name for call in kept)  # beyond 128 names, the last place is shared


CHILD = """
import sys, time
from pathlib import Path
from tests.uccl_ep.recorder.records import record
from uccl_ep import _native
from uccl_ep.recorder import journal
from uccl_ep.recorder.calls import CallLog
journal.MEMORY = Path(sys.argv[1])
log = CallLog()
log.journal = journal.Journal(1, _native.events_bytes(1, 64))
if sys.argv[2] != "early":
    log.journal.complete(record(1, settings={}), Path("/nowhere"))
log.begin("low_latency_combine", (), 5)
print("ready", flush=True)
if sys.argv[2] == "raise":
    raise ValueError("a bug of the program's")
if sys.argv[2] != "end":
    time.sleep(60)
"""


@pytest.mark.mostly_slow
@pytest.mark.parametrize(
    ("how", "left"), [("kill", True), ("terminate", True), ("raise", True), ("end", False), ("early", None)]
)
def test_recorder_journal_of_a_process_that_ended(tmp_path: Path, how: str, left: bool | None) -> None:
    command = [sys.executable, "-c", CHILD, str(tmp_path), how]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        if how in ("kill", "early"):
            child.kill()
        elif how == "terminate":
            child.send_signal(signal.SIGTERM)
        child.wait(20)
    found = journals()
    if left is None:
        with pytest.raises(InvalidArgument, match="not ready"):
            read_journal(found[0])
        return
    assert len(found) == left
    if left:
        told = read_journal(found[0])
        assert told.reason == KILLED and told.calls[-1].name == "low_latency_combine" and told.calls[-1].end_ns == 0
        assert told.written_ns == max(told.calls[-1].begin_ns, record(1).written_ns)


def test_recorder_journal_of_an_ended_process_goes_when_there_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "KEPT", 3)
    folder = journal_module.journal_folder()
    mine = Journal(0, 0)
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    space = mine.path.name.split(".")[1].split("-")[0]
    for number in range(6):
        path = folder / f"{int(ended.stdout)}.{space}-rank0-{number}{journal_module.SUFFIX}"
        path.write_bytes(b"x" * 10)
        os.utime(path, (time.time() - 100 + number,) * 2)
    elsewhere = folder / f"1.77-rank0-x{journal_module.SUFFIX}"  # of another container: it may be running
    elsewhere.write_bytes(b"")
    prune(folder)
    kept = {
        path.name.removesuffix(journal_module.SUFFIX).rpartition("-")[2] for path in journals() if path != mine.path
    }
    assert mine.path in journals() and kept == {"3", "4", "5", "x"}
    monkeypatch.setattr(journal_module, "KEPT_BYTES", 15)
    prune(folder)
    assert len(journals()) == 3  # the newest of those that ended, this process's, the other container's


def test_recorder_journal_of_an_old_job_that_has_just_ended_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "KEPT", 2)
    folder = journal_module.journal_folder()
    space = Journal(0, 0).path.name.split(".")[1].split("-")[0]

    def ended(name: str, pid: int) -> Path:
        path = folder / f"{pid}.{space}-rank0-{name}{journal_module.SUFFIX}"
        path.write_bytes(b"x")
        return path

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as job:
        long = ended("long", job.pid)
        os.utime(long, (time.time() - 1000,) * 2)  # when its Buffer was made
        others = [ended(str(number), 1 << 22) for number in range(2)]
        prune(folder)
        assert {long, *others} == set(journals())
        job.kill()
    (newer := ended("newer", 1 << 22)).touch()
    prune(folder)
    assert set(journals()) == {long, newer}
    assert journal_module._lives(long) is False and not long.stat().st_mode & stat.S_IWUSR


def test_recorder_journal_asks_once_for_each_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with a Buffer for each layer has as many journals, and each start of a Buffer looks at all of them."""
    asked: list[int] = []
    birth = journal_module._birth
    monkeypatch.setattr(journal_module, "_birth", lambda pid: asked.append(pid) or birth(pid))
    made = [Journal(0, 0) for _ in range(5)]
    asked.clear()
    prune(journal_module.journal_folder())
    assert asked == [os.getpid()] and len(journals()) == len(made)


def test_recorder_journal_without_room_or_memory_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        Journal(0, RINGS)
    assert journals() == []
    monkeypatch.setattr(journal_module, "MEMORY", Path("/proc/none"))
    with pytest.raises(OSError, match="/proc/none"):
        Journal(0, RINGS)


def test_recorder_journal_damaged_bytes_never_raise_anything_else(tmp_path: Path) -> None:
    log = CallLog()
    log.journal = Journal(1, RINGS)
    log.journal.complete(record(1, settings={"proxy_threads": 2}), Path("/nowhere"))
    with log.call("dispatch"):
        pass
    whole = log.journal.path.read_bytes()
    generator = random.Random(3)
    for _ in range(200):
        data = bytearray(whole)
        for _ in range(generator.randrange(1, 6)):
            data[generator.choice([generator.randrange(len(data)), -generator.randrange(1, 40)])] = generator.randrange(
                256
            )
        damaged = tmp_path / "damaged"
        damaged.write_bytes(data if generator.random() < 0.8 else data[: generator.randrange(len(data))])
        try:
            read_journal(damaged)
        except InvalidArgument:
            pass

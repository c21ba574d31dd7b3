"""Real Buffers: a rank that waits in vain leaves a record and says where, a trace is left at the end, off is off, and
what goes wrong with a record never hides the error that it is about.
"""

from __future__ import annotations

import os
import pickle
import stat
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from uccl_ep import Buffer, PeerTimeout, ThreadGroup, UcclEpError, run_ranks
from uccl_ep._native import EventKind
from uccl_ep.errors import attach
from uccl_ep.recorder.find import read_all
from uccl_ep.recorder.record import SUFFIX, read
from uccl_ep.recorder.recorder import default_folder, prune
from uccl_ep.tools.explain.chrome import trace_of
from uccl_ep.tools.explain.story import read_story

MIB = 1 << 20
Variables = Callable[..., None]


def barriers_until_one_stays_away(report: Callable[[PeerTimeout], Any]) -> list[Any]:
    """Two ranks on two nodes; the second does not come to the third barrier before the first has given up."""
    given_up = threading.Event()

    def body(group: ThreadGroup) -> Any:
        buffer = Buffer(group, MIB)
        for _ in range(2):
            buffer.barrier()
        try:
            if group.rank() == 1:
                return given_up.wait(30)
            with pytest.raises(PeerTimeout) as caught:
                buffer.barrier()
            return report(caught.value)
        finally:
            given_up.set()
            buffer.destroy()

    return run_ranks(2, body)


def test_recorder_fault_leaves_a_record(variables: Variables, tmp_path: Path) -> None:
    variables(RANKS_PER_NODE=1, TIMEOUT_S=0.5, FLIGHT_RECORDER=tmp_path)
    error = barriers_until_one_stays_away(lambda e: e)[0]
    record = read(Path(error.flight_record))
    assert Path(error.flight_record).parent == tmp_path and record.file_name == Path(error.flight_record).name
    said = "\n".join([str(error), *getattr(error, "__notes__", [])])
    assert error.flight_record in said and f"uccl-ep explain {tmp_path}" in said and "others can" not in said
    assert pickle.loads(pickle.dumps(error)).flight_record == error.flight_record  # to a parent process
    assert (record.rank, record.num_ranks, record.blamed, record.fault["peer"] >= 1) == (0, 2, 1, True)
    assert record.error.startswith("PeerTimeout: rank 1") and record.settings["timeout_s"] == 0.5
    assert record.progress[3][1] == [1, 0]  # the barrier's
    assert record.calls[-1].name == "barrier" and record.calls[-1].number == 3 and record.calls[-1].end_ns == 0
    assert [name for _, name in record.calls[-1].kernels] == ["rank_barrier"]
    kinds = {kind for _, kind, *_ in record.workers[0].events.tolist()}
    assert {EventKind.BARRIER, EventKind.ARRIVAL, EventKind.FAULT} <= kinds
    story = read_story([record])
    assert story.root_cause == 1 and story.waits[0].phase == "a barrier" and story.ranks[0].open


def test_recorder_folder_that_others_write_to_is_said(variables: Variables, tmp_path: Path) -> None:
    """A job may collect its records where all its users write; what is told from there need not be its own."""
    variables(RANKS_PER_NODE=1, TIMEOUT_S=0.5, FLIGHT_RECORDER=tmp_path)
    tmp_path.chmod(0o1777)
    error = barriers_until_one_stays_away(lambda e: e)[0]
    said = "\n".join([str(error), *getattr(error, "__notes__", [])])
    assert Path(error.flight_record).stat().st_mode & 0o777 == 0o600
    assert f"others can write to {tmp_path}" in said


def test_recorder_dump_at_any_time(variables: Variables, tmp_path: Path) -> None:
    variables(RANKS_PER_NODE=1, FLIGHT_RECORDER=tmp_path / "faults")

    def body(group: ThreadGroup) -> str:
        buffer = Buffer(group, MIB)
        buffer.barrier()
        path = buffer.dump_flight_record(str(tmp_path / "asked"))
        buffer.barrier()
        assert Path(buffer.dump_flight_record()).parent == tmp_path / "faults"
        buffer.destroy()
        return path

    paths = run_ranks(2, body)
    records = read_all([tmp_path / "asked"])
    assert sorted(paths) == sorted(str(tmp_path / "asked" / r.file_name) for r in records) and len(records) == 2
    assert all(not r.fault and r.reason == "the program asked for it" for r in records)
    assert records[0].session == records[1].session and read_story(records).root_cause is None


def test_recorder_trace_has_every_command(variables: Variables, tmp_path: Path) -> None:
    variables(RANKS_PER_NODE=1, TRACE=tmp_path / "steps")

    def body(group: ThreadGroup) -> int:
        hint = Buffer.get_low_latency_rdma_size_hint(4, 128, 2, 2)
        buffer = Buffer(group, 0, hint, low_latency_mode=True)
        x, ids = torch.ones(4, 128).bfloat16(), torch.tensor([[0, 1]] * 4)
        rows, _, handle, _, hook = buffer.low_latency_dispatch(x, ids, 4, 2, use_fp8=False, return_recv_hook=True)
        assert hook is not None
        hook()
        buffer.low_latency_combine(rows, ids, torch.ones(4, 2), handle)
        buffer.barrier()
        commands = buffer.stats()["proxy"]["writes"]
        buffer.destroy()
        return int(commands)

    commands = run_ranks(2, body)
    records = read_all([tmp_path / "steps"])
    assert [r.rank for r in records] == [0, 1]
    for record, writes in zip(records, commands, strict=True):
        events = [row for worker in record.workers for row in worker.events.tolist()]
        counted = {kind: sum(row[1] == kind for row in events) for kind in EventKind}
        assert counted[EventKind.POPPED] == counted[EventKind.POSTED] == counted[EventKind.COMPLETED] >= writes > 0
        assert counted[EventKind.ARRIVAL] > 0 and counted[EventKind.PUBLISHED] >= 2
        names = [call.name for call in record.calls]
        assert names[:3] == ["low_latency_dispatch", "low_latency_dispatch (receive)", "low_latency_combine"]
        assert record.calls[0].shapes == [[4, 128], [4, 2]] and all(call.end_ns for call in record.calls)
    trace = trace_of(records)
    assert trace["otherData"]["every_command"] and {row["pid"] for row in trace["traceEvents"]} == {0, 1}


def test_recorder_off_is_off(variables: Variables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    variables(RANKS_PER_NODE=1, TIMEOUT_S=0.5, FLIGHT_RECORDER="off")
    error = barriers_until_one_stays_away(lambda e: e)[0]
    assert error.flight_record == "" and not getattr(error, "__notes__", []) and not list(tmp_path.iterdir())


def test_recorder_trouble_with_the_record_does_not_hide_the_error(variables: Variables, tmp_path: Path) -> None:
    variables(RANKS_PER_NODE=1, TIMEOUT_S=0.5, FLIGHT_RECORDER=tmp_path / "gone" / "records")
    (tmp_path / "gone").write_text("a file is in the way")
    error = barriers_until_one_stays_away(lambda e: e)[0]
    said = "\n".join([str(error), *getattr(error, "__notes__", [])])
    assert error.peer == 1 and error.flight_record == "" and "could not be written" in said


def test_recorder_note_before_python_311() -> None:
    class Old(UcclEpError):
        @property
        def add_note(self) -> Any:  # hasattr says no
            raise AttributeError("add_note")

    error = Old("what happened")
    attach(error, "where to look")
    assert str(error) == "what happened\nwhere to look"


def test_recorder_default_folder_is_private_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = default_folder()
    assert folder.parent == tmp_path and stat.S_IMODE(folder.stat().st_mode) == 0o700
    for age in range(6):
        path = folder / f"{age}{SUFFIX}"
        path.write_text("")
        os.utime(path, (1000 - age, 1000 - age))
    (folder / "notes").write_text("not ours to remove")
    prune(folder, 2)
    assert sorted(p.name for p in folder.iterdir()) == [f"0{SUFFIX}", f"1{SUFFIX}", "notes"]
    folder.chmod(0o777)
    with pytest.raises(OSError, match=r"others can write to .*UCCL_EP_FLIGHT_RECORDER"):
        default_folder()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(OSError, match="UCCL_EP_FLIGHT_RECORDER"):
        default_folder()

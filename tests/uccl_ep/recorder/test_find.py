"""Records of one job: of several the last; with journals, and journals alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.uccl_ep.recorder.records import WALL, record
from uccl_ep.errors import InvalidArgument
from uccl_ep.recorder import journal as journal_module
from uccl_ep.recorder.find import read_all
from uccl_ep.recorder.journal import KILLED, RUNNING, Journal
from uccl_ep.recorder.record import write


@pytest.fixture(autouse=True)
def _own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MEMORY", tmp_path / "memory")
    (tmp_path / "memory").mkdir()


def ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "_lives", lambda path: False)


def journal(rank: int, folder: Path = Path("/nowhere"), **changes: Any) -> Journal:
    made = Journal(rank, 0)
    made.complete(record(rank, settings={}, **changes), folder)
    return made


def test_recorder_find_reads_the_last_job(tmp_path: Path) -> None:
    for rank in (2, 0):
        write(record(rank), tmp_path)
    write(record(1, session=77, wall_s=WALL - 60), tmp_path)
    (tmp_path / "notes.txt").write_text("not a record")
    assert [r.rank for r in read_all([tmp_path])] == [0, 2]
    older = tmp_path / "older"
    write(record(0, reason="older", wall_s=WALL - 1), older)
    assert [r.reason for r in read_all([older, tmp_path / "1234abcd-rank0.uccl-ep"])] == ["the program asked for it"]
    (tmp_path / "new").mkdir()
    with pytest.raises(InvalidArgument, match="UCCL_EP_FLIGHT_RECORDER"):
        read_all([tmp_path / "new"])
    with pytest.raises(InvalidArgument, match=r"notes\.txt"):
        read_all([tmp_path / "notes.txt"])


def test_recorder_find_adds_journals_of_the_same_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(record(0, 3), tmp_path / "records")
    kept = [journal(0, num_ranks=3), journal(2, num_ranks=3), journal(1, num_ranks=3, session=99)]
    ended(monkeypatch)
    found = read_all([tmp_path / "records"])
    assert [(r.rank, r.reason) for r in found] == [(0, "the program asked for it"), (2, KILLED)]
    assert len(kept) == 3


def test_recorder_find_takes_journals_that_were_meant_for_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    kept = [journal(rank, here) for rank in (0, 1)]
    kept += [journal(0, there, session=5)]
    ended(monkeypatch)
    assert [r.rank for r in read_all([here])] == [0, 1] and [r.session for r in read_all([there])] == [5]
    with pytest.raises(InvalidArgument, match="no flight record"):
        read_all([tmp_path / "neither"])
    assert len(kept) == 3


def test_recorder_find_tells_of_a_running_job_where_no_other_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = journal(0, tmp_path)
    assert [r.reason for r in read_all([tmp_path])] == [RUNNING]
    write(record(1, session=8, wall_s=WALL - 1e6), tmp_path)
    assert [r.session for r in read_all([tmp_path])] == [8]
    assert running.path.exists()


def test_recorder_find_a_copied_journal_is_of_a_rank_that_ended(tmp_path: Path) -> None:
    running = journal(3, num_ranks=5)
    (tmp_path / "copied").mkdir()
    shutil.copy(running.path, tmp_path / "copied")
    running.remove()
    (told,) = read_all([tmp_path / "copied"])
    assert (told.rank, told.reason) == (3, KILLED)

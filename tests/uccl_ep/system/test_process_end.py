"""A program that destroys nothing ends all the same, and its Buffers say goodbye."""

from __future__ import annotations

import subprocess
import sys
import weakref

import pytest

from uccl_ep import InvalidArgument
from uccl_ep.system import process_end

FORGETFUL = """
import threading, weakref
from uccl_ep import BucketBuffer, Buffer, ElasticBuffer, EPBuffer, ThreadGroup

class Kept:  # in a cycle with what it keeps, as a module's globals are: only the end of the process ends it
    pass

kept = Kept()
kept.me = kept
kept.buffers = []
def rank(group):
    kept.buffers.append(Buffer(group, 1 << 20))
    kept.buffers.append(ElasticBuffer(group, num_max_tokens_per_rank=4, hidden=128, num_topk=2))
    kept.buffers.append(EPBuffer(group, num_max_tokens_per_rank=4, hidden=128, num_topk=2))
    kept.buffers.append(BucketBuffer(group, 2 << 20))
threads = [threading.Thread(target=rank, args=(group,)) for group in ThreadGroup.create(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(kept.buffers) == 8
"""


@pytest.mark.mostly_slow
@pytest.mark.parametrize("ending", ["", "raise ValueError('of the program')", "raise SystemExit(1)"])
def test_process_end_a_program_that_destroys_nothing_ends(ending: str) -> None:
    """The threads that a goodbye needs do not run when Python takes its objects apart."""
    done = subprocess.run([sys.executable, "-c", FORGETFUL + ending], capture_output=True, text=True, timeout=100)
    said = [line for line in done.stderr.splitlines() if "Error" in line]
    assert done.returncode == (1 if ending else 0), done.stderr
    assert "never destroyed" not in done.stderr  # nobody said that he would
    assert said == (["ValueError: of the program"] if "Value" in ending else []), done.stderr


@pytest.mark.mostly_slow
@pytest.mark.parametrize("ending", ["", "raise ValueError('of the program')"])
def test_process_end_an_error_is_not_followed_by_what_it_kept_from_being_destroyed(ending: str) -> None:
    program = "import uccl_ep\nb = uccl_ep.Buffer(uccl_ep.ThreadGroup.create(1)[0], 1 << 20, explicitly_destroy=True)\n"
    done = subprocess.run([sys.executable, "-c", program + ending], capture_output=True, text=True, timeout=100)
    assert ("never destroyed" in done.stderr) == (not ending), done.stderr
    assert ("ValueError: of the program" in done.stderr) == bool(ending), done.stderr


def test_process_end_what_cannot_end_with_the_process_does_not_keep_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_end, "_forgotten", weakref.WeakSet())
    told: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: told.append(error))

    class Busy:
        tries = 0

        def __del__(self) -> None:
            self.tries += 1
            if self.tries == 1:
                raise InvalidArgument("a call is under way")

    two = [Busy(), Busy()]
    for one in two:
        process_end.end_with_process(one)
    process_end._end_all()
    assert [one.tries for one in two] == [1, 1]
    assert [str(error) for error in told] == ["a call is under way"] * 2

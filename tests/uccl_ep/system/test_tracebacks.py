"""What a program prints that ends by an error: ours is short, others and explained ones are whole, hooks are kept."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from uccl_ep.errors import InvalidArgument, PeerLost
from uccl_ep.system import tracebacks

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import sys
import uccl_ep


def layer():
    {line}


{before}
layer()
"""
OURS = "uccl_ep.Buffer(None, 0)"


def printed(tmp_path: Path, line: str, before: str = "", **variables: str) -> str:
    (tmp_path / "job.py").write_text(PROGRAM.format(line=line, before=before), encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    done = subprocess.run([sys.executable, "job.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    return done.stderr


def test_tracebacks_of_ours_have_the_callers_lines_alone(tmp_path: Path) -> None:
    text = printed(tmp_path, OURS)
    assert "in layer" in text and "InvalidArgument: " in text and text.endswith(f"{tracebacks.LEFT_OUT}\n")
    assert f"uccl_ep{os.sep}" not in text and len(text.splitlines()) < 12


@pytest.mark.slow
def test_tracebacks_are_whole_when_everything_is_explained(tmp_path: Path) -> None:
    text = printed(tmp_path, OURS, UCCL_EP_EXPLAIN="1")
    assert f"uccl_ep{os.sep}buffer.py" in text and tracebacks.LEFT_OUT not in text


@pytest.mark.slow
def test_tracebacks_of_others_are_pythons(tmp_path: Path) -> None:
    text = printed(tmp_path, "raise KeyError('mine')", "try:\n    " + OURS + "\nexcept ValueError:\n    pass")
    assert "KeyError: 'mine'" in text and tracebacks.LEFT_OUT not in text


def test_tracebacks_last_words_are_of_an_error_that_is_this_ranks_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracebacks, "_uncaught", None)
    assert tracebacks.last_words() == ""
    said = {}
    for error in (ValueError("two\n  lines"), KeyboardInterrupt(), PeerLost(rank=0, peer=1), SystemExit(1)):
        try:
            raise error
        except BaseException:
            said[type(error).__name__] = tracebacks.last_words()
    assert said == {
        "ValueError": "ValueError: two lines",
        "KeyboardInterrupt": "KeyboardInterrupt",
        "PeerLost": "",
        "SystemExit": "",
    }
    monkeypatch.setattr(tracebacks, "_uncaught", InvalidArgument("x" * 1000))
    assert len(tracebacks.last_words()) == 300 and tracebacks.last_words().startswith("InvalidArgument: x")


FAILING = """
import atexit, sys, uccl_ep
from uccl_ep.system import tracebacks
tracebacks.shorten(lambda: False)
atexit.register(lambda: print("said", tracebacks.last_words()))
raise KeyError("mine")
"""


def test_tracebacks_last_words_are_of_what_nobody_caught() -> None:
    done = subprocess.run([sys.executable, "-c", FAILING], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == "said KeyError: 'mine'\n"


def test_tracebacks_are_printed_by_the_hook_that_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch's, which puts the rank in front of each line."""
    seen: list[BaseException] = []
    monkeypatch.setattr(tracebacks, "_uncaught", None)
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: seen.append(error))
    for _ in range(2):
        tracebacks.shorten(lambda: False)
    error = InvalidArgument("no")
    sys.excepthook(InvalidArgument, error, None)
    assert seen == [error] and tracebacks.LEFT_OUT in "".join(traceback.format_exception(error))

"""tests.tour.lines: a line is found when it comes, and what never comes is told with what did."""

from __future__ import annotations

import subprocess

import pytest

from tests.tour.lines import Lines

LIMIT_S = 20.0


def run(script: str) -> Lines:
    process = subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return Lines(process)


def test_tour_lines_come_while_the_process_runs() -> None:
    lines = run("echo rank 2 is process 17; read go; echo done; exit 3")
    assert lines.wait_for(r"rank (\d)", LIMIT_S)[1] == "2"
    assert lines.process.poll() is None
    assert lines.process.stdin is not None
    lines.process.stdin.close()
    assert lines.wait_for("^done$", LIMIT_S)
    assert lines.wait_for("rank", LIMIT_S), "what has come can be asked for again"
    assert lines.finish(LIMIT_S) == 3 and lines.all() == ["rank 2 is process 17", "done"]


def test_tour_lines_that_never_come() -> None:
    ended = run("echo something else")
    with pytest.raises(TimeoutError, match="the process ended(.|\n)*something else"):
        ended.wait_for("rank", LIMIT_S)
    hangs = run("echo started; read go")
    with pytest.raises(TimeoutError, match="not within 0 s"):
        hangs.wait_for("rank", 0.2)
    with pytest.raises(TimeoutError, match="has not ended"):
        hangs.finish(0.1)
    assert hangs.process.stdin is not None
    hangs.process.stdin.close()
    hangs.finish(LIMIT_S)

"""Findings and verdicts: what blocks, what only weakens, and that no check can end an examination."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.uccl_ep.tools.doctor.hosts import host
from uccl_ep.tools.doctor.record import (
    MISSING,
    NOT_NEEDED,
    READY,
    Answer,
    Check,
    Finding,
    examine,
    judge,
    lacking,
    missing,
    not_needed,
    ready,
    short,
)


def finding(answer: Answer, path: str = "tcp", name: str = "a check") -> Finding:
    return Finding(path, name, answer.state, answer.found, answer.needed, answer.fix, answer.blocks)


@pytest.mark.parametrize(
    "answers, state, words",
    [
        ([ready("x")], READY, "can be used"),
        ([ready("x"), not_needed("y")], READY, "can be used"),
        ([ready("x"), lacking("y", "z", "do")], READY, "but look at: check 1"),
        ([missing("y", "z", "do"), lacking("y", "z", "do")], MISSING, "cannot be used: check 0"),
        ([not_needed("no such NIC"), not_needed("no such NIC")], NOT_NEEDED, "no such NIC"),
        ([], NOT_NEEDED, "nothing was looked at"),
    ],
)
def test_record_verdicts_follow_from_findings(answers: list[Answer], state: str, words: str) -> None:
    findings = [finding(answer, name=f"check {i}") for i, answer in enumerate(answers)]
    other = finding(missing("a", "b", "c"), path="efa")
    verdict = judge("tcp", [*findings, other])
    assert verdict.state == state and words in verdict.words and verdict.path == "tcp"


@pytest.mark.parametrize(
    "error, found",
    [
        (PermissionError(13, "Permission denied", "/proc/x"), "not known: /proc/x: Permission denied"),
        (OSError("odd"), "not known: odd"),
        (ValueError("no number"), "the check failed (ValueError: no number)"),
        (RecursionError("deep"), "RecursionError"),
    ],
)
def test_record_a_check_that_fails_is_a_finding(tmp_path: Path, error: Exception, found: str) -> None:
    def broken(_: Any) -> Answer:
        raise error

    seen = examine(Check("efa", "ports", broken), host(tmp_path))
    assert (seen.path, seen.name, seen.state, seen.blocks) == ("efa", "ports", MISSING, False)
    assert found in seen.found and seen.fix


def test_record_findings_are_one_line_of_bounded_length(tmp_path: Path) -> None:
    seen = examine(Check("cpu", "x", lambda _: ready("a\n  b\t" + "c" * 5000)), host(tmp_path))
    assert seen.found.startswith("a b c") and len(seen.found) == 600 and seen.found.endswith("...")
    assert short("x" * 600) == "x" * 600 and short("") == ""

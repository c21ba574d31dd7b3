"""Findings and verdicts: what blocks, what only weakens, and that no check can end an examination."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.uccl_ep.tools.doctor.hosts import host
from uccl_ep.tools.doctor.record import (
    MISSING,
    NO_DEVICE,
    NOT_NEEDED,
    OK,
    SLOW,
    UNKNOWN,
    Answer,
    Check,
    Finding,
    examine,
    judge,
    missing,
    no_device,
    not_needed,
    ok,
    short,
    slow,
    unknown,
)


def finding(answer: Answer, path: str = "tcp", name: str = "a check") -> Finding:
    return Finding(path, name, answer.state, answer.found, answer.needed, answer.fix)


@pytest.mark.parametrize(
    "answers, state, words",
    [
        ([ok("x")], OK, "can be used"),
        ([ok("x"), not_needed("y")], OK, "can be used"),
        ([ok("x"), slow("y", "z", "do")], SLOW, "but look at: check 1"),
        ([ok("x"), unknown("y", "z", "do")], OK, "but look at: check 1"),
        ([no_device("no such NIC"), not_needed("y")], NO_DEVICE, "no such NIC"),
        ([missing("y", "z", "do"), slow("y", "z", "do")], MISSING, "cannot be used: check 0"),
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
        (PermissionError(13, "Permission denied", "/proc/x"), "/proc/x: Permission denied"),
        (OSError("odd"), "odd"),
        (ValueError("no number"), "the check failed (ValueError: no number)"),
        (RecursionError("deep"), "RecursionError"),
    ],
)
def test_record_a_check_that_fails_is_a_finding(tmp_path: Path, error: Exception, found: str) -> None:
    def broken(_: Any) -> Answer:
        raise error

    seen = examine(Check("efa", "ports", broken), host(tmp_path))
    assert (seen.path, seen.name, seen.state) == ("efa", "ports", UNKNOWN)
    assert found in seen.found and seen.fix


def test_record_findings_are_one_line_of_bounded_length(tmp_path: Path) -> None:
    seen = examine(Check("cpu", "x", lambda _: ok("a\n  b\t" + "c" * 5000)), host(tmp_path))
    assert seen.found.startswith("a b c") and len(seen.found) == 600 and seen.found.endswith("...")
    assert short("x" * 600) == "x" * 600 and short("") == ""

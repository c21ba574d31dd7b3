"""The table and the JSON of a conformance run, and its totals."""

from __future__ import annotations

import io
import json

from rich.console import Console

from uccl_ep.tools.conformance.options import ConformanceOptions
from uccl_ep.tools.conformance.registry import Check
from uccl_ep.tools.conformance.report import Following, print_json, print_table, totals
from uccl_ep.tools.conformance.runner import FAILED, PASSED, SKIPPED, Outcome

OPTIONS = ConformanceOptions("some_ep", 4, 2)
ABOUT = {"version": "1.2", "from": "a/b.py", "device": "cpu"}
OUTCOMES = [
    Outcome("rows", "A.5", True, "Rows come in order.", PASSED, "", 0.25),
    Outcome("sums", "B", True, "Sums are rounded once.", FAILED, "rank 1: combined_x [oops] differs", 1.0),
    Outcome("twice", "B", False, "Once.", FAILED, "twice", 0.0),
    Outcome("masks", "A.6", True, "Masks hold.", SKIPPED, "not here", 0.0),
]


def shown(outcomes: list[Outcome], width: int = 160) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_table(OPTIONS, ABOUT, outcomes, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_report_table_says_everything() -> None:
    text = shown(OUTCOMES)
    for words in ("some_ep 1.2 (a/b.py) on cpu, 4 ranks, 2 node(s)", "Rows come in order.", "combined_x [oops] differs",
                  "not here", "1 passed, 1 failed, 1 skipped, 1 differ where the contract is open", "does not conform",
                  "A.5 throughput: layout, dispatch, combine", "open"):  # fmt: skip
        assert words in text, words
    assert "Rows come in order." not in shown(OUTCOMES, width=100)  # no room: only problems are told
    assert "conforms: 1 passed, 0 failed" in shown(OUTCOMES[:1])


def test_report_of_failures_only() -> None:
    console = Console(file=io.StringIO(), width=160)
    print_table(OPTIONS, ABOUT, OUTCOMES, console, only_failed=True)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "combined_x [oops] differs" in text and "rows" not in text and "A.5" not in text
    assert "1 passed, 1 failed, 1 skipped" in text
    console = Console(file=io.StringIO(), width=160)
    print_table(OPTIONS, ABOUT, OUTCOMES[:1], console, only_failed=True)
    assert console.file.getvalue() == "some_ep conforms: 1 passed, 0 failed, 0 skipped.\n"  # type: ignore[attr-defined]


def test_report_json_is_one_object() -> None:
    console = Console(file=io.StringIO(), width=40)
    print_json(OPTIONS, ABOUT, OUTCOMES, console)
    result = json.loads(console.file.getvalue())  # type: ignore[attr-defined]
    assert result["module"] == {"name": "some_ep", **ABOUT} and result["conforms"] is False
    assert result["totals"] == totals(OUTCOMES) == {"passed": 1, "failed": 1, "open": 1, "skipped": 1}
    assert [c["status"] for c in result["checks"]] == ["pass", "fail", "fail", "skip"]
    assert result["checks"][1]["detail"] == OUTCOMES[1].detail


def test_report_optional_failures_conform() -> None:
    console = Console(file=io.StringIO())
    print_json(OPTIONS, ABOUT, OUTCOMES[2:], console)
    assert json.loads(console.file.getvalue())["conforms"] is True  # type: ignore[attr-defined]


def test_report_bar_follows() -> None:
    with Following(2, show=False) as following:
        following.begin(Check("rows", "A.5", True, True, lambda world: None))
        following.end(OUTCOMES[0])
        (task,) = following._progress.tasks
        assert (task.completed, task.total, task.description) == (1, 2, "rows")

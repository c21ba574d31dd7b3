"""The figures of a run of fault plans: one JSON line each, and a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults.summary import VARIABLE, Line, Summary

LINES = [
    Line("kill 3", "passed", 0.25, 4.0, 3),
    Line("stop 1", "passed", 3.5, 9.0, 3),
    Line("cut 0", "skipped", note="iproute2 is not installed"),
    Line("stop 2", "failed", leaks=2),
]


def test_summary_writes_each_line_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "plans.jsonl"))
    summary = Summary()
    for number, line in enumerate(LINES, start=1):
        summary.add(line)
        assert len((tmp_path / "plans.jsonl").read_text().splitlines()) == number
    read = [json.loads(text) for text in (tmp_path / "plans.jsonl").read_text().splitlines()]
    assert [entry["outcome"] for entry in read] == ["passed", "passed", "skipped", "failed"]
    assert read[0]["slowest_s"] == 0.25 and read[2]["note"]


def test_summary_table_and_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    summary = Summary()
    for line in LINES:
        summary.add(line)
    assert summary.totals() == ("fault plans: 2 passed, 1 failed, 1 skipped; slowest survivor's report 3.50 s; 2 leaks")
    rows = summary.table().splitlines()
    assert len(rows) == 6 and "0.25s" in rows[1] and "iproute2" in rows[3] and rows[5] == summary.totals()

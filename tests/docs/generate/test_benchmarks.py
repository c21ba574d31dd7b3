"""Figures come from the files and only from there; without files the page says that nothing was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from docs.generate import benchmarks
from docs.generate.benchmarks import ROOT, benchmark_tables, results


def write(folder: Path, name: str, content: Any) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


def test_docs_benchmarks_without_files(tmp_path: Path) -> None:
    assert "Nothing has been measured" in benchmark_tables(tmp_path)


def test_docs_benchmarks_of_a_file(tmp_path: Path) -> None:
    rows = [{"peer": "gloo", "ratio": 4.25, "ok": True, "each": [1, 2]}, {"peer": "mpi", "ratio": 12345.6, "ok": False}]
    content = {
        "fingerprint": {"cpu": "x|y", "cores": 2, "libraries": {"torch": "2.13"}},
        "started": "today",
        "quick": False,
        "rows": rows,
        "limits": {"bytes": 3, "time_s": 0.5},
        "raw": [[1, 2], [3]],
    }
    write(tmp_path, "cpu/one.json", content)
    text = benchmark_tables(tmp_path)
    assert "### `bench/results/cpu/one.json`" in text
    assert "Machine: cpu x|y; cores 2." in text
    assert "| started | today |" in text and "| quick | no |" in text
    assert "| peer | ratio | ok |\n|---|---|---|\n| gloo | 4.25 | yes |\n| mpi | 12346 | no |" in text
    assert "| bytes | 3 |\n| time s | 0.5 |" in text
    assert "**raw**: 2 values, in the file." in text


def test_docs_benchmarks_of_a_plain_list(tmp_path: Path) -> None:
    write(tmp_path, "list.json", [{"a": 1}, {"a": None}])
    assert "| a |\n|---|\n| 1 |\n|  |" in benchmark_tables(tmp_path)


def test_docs_benchmarks_known_kinds_have_their_own_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the renderer of `uccl-ep bench render`; without torch by the plain tables."""
    from uccl_ep.tools.bench import render

    monkeypatch.setitem(render.TABLES, "made up", lambda found: f"{len(found)} from {found[0][render.SOURCE]}")
    write(tmp_path, "a.json", {"benchmark": "made up"})
    write(tmp_path, "b.json", {"benchmark": "unknown", "x": 1})
    text = benchmark_tables(tmp_path)
    assert text.startswith("1 from a.json") and "### `bench/results/b.json`" in text and "results/a.json" not in text
    monkeypatch.setattr(benchmarks, "_known_kinds", set)
    assert "### `bench/results/a.json`" in benchmark_tables(tmp_path)


def test_docs_benchmarks_show_a_check_of_a_gpu_as_it_prints_itself(tmp_path: Path) -> None:
    ended = {"name": "sanitize", "status": "ok", "why": "", "seconds": 9.5, "targets": []}
    run = {"tool": "memcheck", "ranks": 1, "status": "clean", "says": "0 errors"}
    check = {
        "benchmark": "device_check",
        "started": "t",
        "device": "cuda",
        "quick": False,
        "seconds": 9.5,
        "targets": [],
    }
    for name in ("h100/1.json", "h100/2.json"):
        write(tmp_path, name, {**check, "steps": [{**ended, "result": {"runs": [run]}}]})
    text = benchmark_tables(tmp_path)
    assert (
        text.startswith("### `bench/results/h100/2.json`\n\n```text\n")
        and text.count("memcheck, 1 rank(s): clean") == 2
    )


def test_docs_benchmarks_refuse_a_broken_file(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    with pytest.raises(json.JSONDecodeError):
        benchmark_tables(tmp_path)


def test_docs_benchmarks_of_ours() -> None:
    """Whatever lies in bench/results is shown, file by file."""
    text = benchmark_tables()
    for name in results(ROOT / "bench/results"):
        assert name in text
    assert text.strip()

"""The native benchmarks are found, tools come from beside Python first, and a failed build is told in full."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench import programs


def test_bench_programs_are_the_sources() -> None:
    assert {"ring_bench", "proxy_costs", "proxy_idle"} <= set(programs.NAMES)


def test_bench_programs_tool_beside_python_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ninja").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert programs.tool("ninja") == str(tmp_path / "ninja")
    with pytest.raises(RuntimeError, match="pip install no-such-tool"):
        programs.tool("no-such-tool")


def test_bench_programs_failed_build_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[list[str]] = []

    def run(command: list[str]) -> tuple[int, str]:
        asked.append(command)
        return (1, "error: it is broken") if "--build" in command else (0, "")

    monkeypatch.setattr(programs, "FOLDER", tmp_path)
    monkeypatch.setattr(programs, "tool", lambda name: name)
    monkeypatch.setattr(programs, "_run", run)
    with pytest.raises(RuntimeError, match="it is broken"):
        programs.build(("ring_bench",))
    assert len(asked) == 2 and asked[1][-2:] == ["--target", "ring_bench"]
    monkeypatch.setattr(programs, "_run", lambda command: (1, "moved"))
    with pytest.raises(RuntimeError, match="could not configure.*\nmoved"):
        programs.build(("ring_bench",))

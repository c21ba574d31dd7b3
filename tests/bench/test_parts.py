"""Parts of `make bench`: commands that end well, badly or never; targets of idle proxies; what runs when."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.parts import Failed, all_parts, command_part, idle_targets, output, peers_part

PYTHON = sys.executable


def test_bench_parts_output_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert output([PYTHON, "-c", "print('x' * 3)"], 30.0, log) == "xxx\n" == log.read_text()


def test_bench_parts_a_failure_is_in_the_commands_words(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(Failed, match="status 3: the reason"):
        output([PYTHON, "-c", "print('first'); print('the reason'); raise SystemExit(3)"], 30.0, log)
    assert log.read_text().startswith("first")
    with pytest.raises(Failed, match="status 1: no output"):
        output([PYTHON, "-c", "raise SystemExit(1)"], 30.0)


def test_bench_parts_what_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(300)'])"
    with pytest.raises(Failed, match="not done after 1 s"):
        output([PYTHON, "-c", code], 1.0)  # the child holds the pipe: this would wait for it


def test_bench_parts_idle_targets() -> None:
    wakes = {"wake_us": {"p50": 20.0, "p99": 70.0}, "bare_wake_us": {"p50": 15.0, "p99": 60.0}}
    found = idle_targets({"core_percent_per_thread": 0.9, **wakes})
    assert [(t["measured"], t["met"], t["at_least"]) for t in found] == [(0.9, True, False), (70.0, False, False)]
    assert found[1]["at_best"] == {"of": "a bare thread", "measured": 60.0}


def test_bench_parts_fill_in_the_folder(tmp_path: Path) -> None:
    part = command_part("version", "", 60.0, ["version", "{folder}"])
    with pytest.raises(Failed):
        part.run(tmp_path, 60.0)  # `version` takes no argument, and says which one it was given
    assert tmp_path.name in (tmp_path / "version.log").read_text()


def test_bench_parts_cover_the_worlds_of_the_issue() -> None:
    parts = all_parts()
    names = [part.name for part in parts]
    assert len(set(names)) == len(names) and names[0] == "build"
    for mode in ("throughput", "low-latency"):
        assert {f"{mode}-2x1", f"{mode}-4x1", f"{mode}-8x1", f"{mode}-4x2", f"{mode}-4x1-private"} <= set(names)
    assert "low-latency-4x2-direct" in names
    assert {"ring", "idle", "costs", "bytes", "memory"} <= set(names)
    assert "on 2 nodes over tcp" in peers_part("throughput", 4, 2, 1.0, 1.0).what

"""One rank's process: it tells its error in a file and ends; where results and errors lie."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.uccl_ep.tools.demo.worlds import small
from uccl_ep.tools.demo.job import OPTIONS_FILE, error_file, result_file
from uccl_ep.tools.demo.worker import loopback_interface


def test_a_rank_that_cannot_start_says_why_and_ends(tmp_path: Path) -> None:
    small().save(tmp_path / OPTIONS_FILE)
    environment = {k: v for k, v in os.environ.items() if k not in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")}
    environment.update(RANK="3", WORLD_SIZE="4")
    command = [sys.executable, "-m", "uccl_ep.tools.demo.worker", str(tmp_path)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50)
    assert ended.returncode == 1
    assert ended.stdout == ""
    details = json.loads(error_file(tmp_path, 3).read_text())
    assert "MASTER_ADDR" in details["text"]
    assert "worker.py" in details["trace"]
    assert not result_file(tmp_path, 3).exists()


def test_files_of_different_ranks_differ(tmp_path: Path) -> None:
    names = {function(tmp_path, rank) for function in (result_file, error_file) for rank in range(12)}
    assert len(names) == 24


def test_loopback_interface_is_one_of_this_host() -> None:
    name = loopback_interface()
    assert name is None or name.startswith("lo")

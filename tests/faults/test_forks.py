"""Children of fork() that end in every way: they come to their end, and ranks and proxies of the parent go on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.faults.forked import ENDS


@pytest.mark.timeout(120)
@pytest.mark.parametrize("proxy", ["thread", "process"])
@pytest.mark.parametrize("ranks", [1, 4])
def test_forks_end_without_a_trace(ranks: int, proxy: str) -> None:
    """Four ranks are two nodes over tcp, whose peers would see an end of a connection."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("UCCL_EP_")}
    command = [sys.executable, "-W", "error::UserWarning", "-m", "tests.faults.forked", str(ranks), proxy]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines() == [*(f"{how} 0" for how in ENDS), "exact"], done.stderr
    assert (done.returncode, done.stderr) == (0, "")

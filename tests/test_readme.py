"""The README's program is a job that runs as printed; the README is short and leads to what exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
LIMIT_S = 120


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 20)  # four processes that load torch, on two busy cores
def test_readme_program_runs_as_printed(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README, re.S)
    name, command = program.splitlines()[0].removeprefix("# ").split(": ")
    (tmp_path / name).write_text(program, encoding="utf-8")
    assert command.startswith("torchrun ")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", *command.split()[1:]],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    # Where Python does not buffer, a line and its end are two writes, and ranks write between them.
    assert sorted(re.findall(r"rank (\d): received \d+ rows", done.stdout)) == list("0123")


def test_readme_is_read_in_a_minute() -> None:
    assert len(README.splitlines()) <= 100
    assert README.index("**Status: alpha.**") < README.index("## Why") < README.index("## Install")


def test_readme_leads_to_what_exists() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README) + re.findall(r'(?:src|srcset)="([^"]+)"', README)
    local = [target for target in targets if not target.startswith("https://")]
    assert len(local) > 10
    assert not [target for target in local if not (ROOT / target).exists()]

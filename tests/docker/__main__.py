"""`python -m tests.docker`: what CI runs of this folder. With a clean root the test in it; without, the one that stands
for it in an environment, and then status 77 (NOT RUN), with what to do: a pass by half is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.docker import clean_root

STATUS_NOT_RUN = 77


def main() -> int:
    """The exit status: pytest's, or 77."""
    why = clean_root.unavailable()
    chosen = "fresh_environment" if why else "clean_root"
    status = int(pytest.main(["-m", "slow", "-k", chosen, str(Path(__file__).parent), *sys.argv[1:]]))
    if status == 0 and why:
        print(f"NOT RUN: {why}", flush=True)
        return STATUS_NOT_RUN
    return status


if __name__ == "__main__":
    sys.exit(main())

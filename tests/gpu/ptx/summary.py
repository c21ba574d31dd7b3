"""What `make test-ptx` has executed: tests note it, a line each; `python -m tests.gpu.ptx.summary` prints the table.

`--begin` forgets what an earlier run has noted.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from typing import Any

from tests.kernels.ptx import ROOT

NOTES = ROOT / "build/ptx/run.jsonl"


def note(**what: Any) -> None:
    """Keeps a line; processes append side by side."""
    NOTES.parent.mkdir(parents=True, exist_ok=True)
    with NOTES.open("a") as file:
        file.write(json.dumps(what) + "\n")


def table(notes: list[dict[str, Any]]) -> str:
    """Kernels by architecture, then what is known of mutants."""
    launches: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    bodies: dict[str, set[str]] = defaultdict(set)
    seeds: dict[str, set[int]] = defaultdict(set)
    for one in notes:
        if "arch" not in one:
            continue
        bodies[one["arch"]].add(one["body"])
        seeds[one["arch"]].add(one["seed"])
        for kernel, count in one["launches"].items():
            launches[one["arch"], kernel].update(launches=count, executed=one["executed"][kernel])
    lines = [f"{'architecture':16}{'kernel':30}{'launches':>10}{'instructions of lanes':>24}"]
    for (arch, kernel), count in sorted(launches.items()):
        lines.append(f"{arch:16}{kernel:30}{count['launches']:10,}{count['executed']:24,}")
    for arch in sorted(bodies):
        total = sum(count["executed"] for (of, _), count in launches.items() if of == arch)
        lines.append(f"{arch}: {len(bodies[arch])} bodies, seeds {sorted(seeds[arch])}, {total:,} instructions")
    tried = [one for one in notes if "mutant" in one]
    found = sum(one["found"] for one in tried)
    lines.append(f"mutants of this run: {len(tried)} tried, {found} found; all: python -m tests.gpu.ptx.mutants")
    return "\n".join(lines)


def main() -> None:
    """Prints the table, or forgets."""
    if sys.argv[1:] == ["--begin"]:
        NOTES.unlink(missing_ok=True)
    else:
        print(table([json.loads(line) for line in NOTES.read_text().splitlines()] if NOTES.exists() else []))


if __name__ == "__main__":
    main()

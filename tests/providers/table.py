"""The one table of `make test-providers`: a row a driver and release, and below it what failed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """What one driver of one release did.

    Attributes:
        refused: why nothing was run over it: what our transport says, or that the release lacks the driver.
        failed: names of tests, each with its first line.
    """

    provider: str
    release: str
    refused: str = ""
    passed: int = 0
    failed: list[str] = field(default_factory=list)


def read_row(provider: str, release: str, output: str, code: int) -> Row:
    """From what the program printed. One that was killed has failed, whatever it had printed."""
    refused = re.search(r"^refused: (.*)$", output, re.M)
    if refused and code == 0:
        return Row(provider, release, refused[1])
    failed = [f"{name}: {why.strip()}" for name, why in re.findall(r"^FAILED  (\S+)\n(.*)$", output, re.M)]
    if code != 0 and not failed:
        failed = [f"exit code {code} behind {output.strip().splitlines()[-1] if output.strip() else 'no output'}"]
    return Row(provider, release, "", len(re.findall(r"^ok ", output, re.M)), failed)


def render(rows: list[Row], missing: list[str]) -> str:
    """The table as text. What could not be run is repeated at its end, where it is seen."""
    lines = ["", f"{'driver':<10} {'rdma-core':<12} {'passed':>6} {'failed':>6}"]
    for row in rows:
        lines.append(f"{row.provider:<10} {row.release:<12} {row.passed:>6} {len(row.failed):>6}  {row.refused}".rstrip())
    lines += [f"FAILED {row.provider} {row.release} {text}" for row in rows for text in row.failed]
    lines += [f"NOT RUN, SKIPPED: {text}" for text in missing]
    return "\n".join(lines)

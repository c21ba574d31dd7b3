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
        buffer_rows: rows that `Buffer` received and summed, each compared with the reference. gpu_rows: of
            them, zero-copy rows on a GPU, whose memory libfabric does not reach.
        judged: of each rule that was broken on purpose, what came of it.
    """

    provider: str
    release: str
    refused: str = ""
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    buffer_rows: int = 0
    gpu_rows: int = 0
    judged: dict[str, str] = field(default_factory=dict)


def read_row(provider: str, release: str, output: str, code: int) -> Row:
    """From what the program printed. One that was killed has failed, whatever it had printed."""
    refused = re.search(r"^refused: (.*)$", output, re.M)
    if refused and code == 0:
        return Row(provider, release, refused[1])
    failed = [f"{name}: {why.strip()}" for name, why in re.findall(r"^FAILED  (\S+)\n(.*)$", output, re.M)]
    if code != 0 and not failed:
        failed = [f"exit code {code} behind {output.strip().splitlines()[-1] if output.strip() else 'no output'}"]
    judged = dict(re.findall(r"^judged: (.*?): (.*)$", output, re.M))
    return Row(provider, release, "", len(re.findall(r"^ok ", output, re.M)), failed, judged=judged)


def render(rows: list[Row], missing: list[str]) -> str:
    """The table as text. What could not be run is repeated at its end, where it is seen."""
    lines = ["", f"{'driver':<10} {'rdma-core':<12} {'passed':>6} {'failed':>6} {'Buffer, rows':>12} {'on a GPU':>8}"]
    for row in rows:
        counts = f"{row.passed:>6} {len(row.failed):>6} {row.buffer_rows:>12} {row.gpu_rows:>8}"
        lines.append(f"{row.provider:<10} {row.release:<12} {counts}  {row.refused}".rstrip())
    ran = [row for row in rows if row.judged]
    for what in dict.fromkeys(text for row in ran for text in row.judged):
        lines += ["", f"broken on purpose: {what}"]
        lines += [f"  {row.provider:<10} {row.release:<12} {row.judged[what]}" for row in ran if what in row.judged]
    lines += [f"FAILED {row.provider} {row.release} {text}" for row in rows for text in row.failed]
    lines += [f"NOT RUN, SKIPPED: {text}" for text in missing]
    return "\n".join(lines)

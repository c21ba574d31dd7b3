"""Step: our transport's rate and bandwidth beside perftest's, in the same guest, one after the other and again.

Both ends on one device: over the virtual cable packets come out of order now and then, and the second that a repeat
takes is what would be measured.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import time

from tests.rdma.inside.context import GID, Context
from tests.rdma.inside.report import Report
from tests.rdma.inside.sides import PATIENT, connected, native

_DEVICE = "rxe0"
_PAIRS = 3
_LEAST_RATIO = 0.9  # of perftest's bandwidth, 7 KB writes
_SIZES = {7168: 6000, 8: 20000}  # bytes of a write: how many
_FIGURES = re.compile(r"^\s*\d+\s+\d+\s+[\d.]+\s+([\d.]+)\s+([\d.]+)", re.MULTILINE)


def run(context: Context, report: Report) -> None:
    for size, count in _SIZES.items():
        ours, theirs = [], []
        for number in range(_PAIRS):  # interleaved: the machine's speed changes from second to second
            ours.append(_ours(context, size, count))
            theirs.append(perftest(size, count, 18500 + number))
        mine, other = statistics.median(ours), statistics.median(theirs)
        ratio = mine / other
        figure = f"{mine / 1e3:.1f} k writes/s, {mine * size / 1e6:.1f} MB/s; perftest {other / 1e3:.1f} k/s, "
        figure += f"{other * size / 1e6:.1f} MB/s; ratio {ratio:.2f}"
        report.add(f"{size} byte writes", figure, size != 7168 or ratio >= _LEAST_RATIO)


def _ours(context: Context, size: int, count: int) -> float:
    """Writes a second, each with its immediate, which the receiver takes."""
    with connected(
        *(native(context.programs, rank, device=_DEVICE, in_flight=128, timeout=PATIENT) for rank in range(2))
    ) as (a, b):
        a.ask("write", 1, 200, size, 0, 30)
        b.ask("expect", 200, 30)
        b.tell("expect", count, 60)
        done = a.ask("write", 1, count, size, 1, 60)
        assert done["completed"] == count, done
        assert b.answer()["arrived"] == count
        return float(count / done["seconds"])


def perftest(size: int, count: int, port: int) -> float:
    """Writes a second of ib_write_bw (plain writes, without an immediate) with as many open."""
    common = ["ib_write_bw", "-x", str(GID), "-F", "-s", str(size), "-n", str(count), "-t", "128", "-p", str(port)]
    common += ["-d", _DEVICE, "-u", str(PATIENT)]
    server = subprocess.Popen(common, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):  # until it listens
            if f":{port} " in subprocess.run(["ss", "-tln"], capture_output=True, text=True).stdout:
                break
            time.sleep(0.1)
        client = subprocess.run([*common, "127.0.0.1"], capture_output=True, text=True, timeout=60)
        found = _FIGURES.search(client.stdout)
        if client.returncode != 0 or found is None:
            raise RuntimeError(f"ib_write_bw: {client.stdout}{client.stderr}")
        return float(found[2]) * 1e6  # the last column: millions of messages a second
    finally:
        server.kill()  # it has ended already, unless the client failed
        server.wait()

"""Step: our transport's rate and bandwidth beside perftest's, in the same guest, one after the other.

Both ends on one device: over the virtual cable packets come out of order now and then, and the second that a repeat
takes is what would be measured. Where the guest's clock counts instructions, a rate is what both ends and the kernel
between them execute, on one processor, so the receiver's work counts too; runs repeat within a thousandth.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import time

from tests.rdma.inside.context import GID, Context
from tests.rdma.inside.report import Report
from tests.rdma.inside.sides import PATIENT, connected, native

_DEVICE = "rxe0"
_DEPTH = 128  # writes open at once, of both
_BATCH = 16  # of ours that go out with one doorbell (native/side.cpp)
_LEAST_RATIO = 0.9  # of perftest's bandwidth, 7 KB writes
_SIZES = {7168: 4800, 8: 16000}  # bytes of a write: how many, in whole batches
_FIGURES = re.compile(r"^\s*\d+\s+\d+\s+[\d.]+\s+([\d.]+)\s+([\d.]+)", re.MULTILINE)
_CONDITIONS = f"""one queue pair, {_DEPTH} writes open
ours: each write with its immediate, which the receiver takes and posts a receive for; up to {_BATCH} writes a doorbell
ib_write_bw: plain writes of which the receiver knows nothing; one a doorbell, and {_BATCH} in the second figure"""


def run(context: Context, report: Report) -> None:
    counted = os.environ.get("UCCL_EP_GUEST_CLOCK") == "instructions"
    for size, count in _SIZES.items():
        ours, theirs, batched = [], [], []
        for number in range(1 if counted else 3):  # interleaved: a host's speed changes from second to second
            ours.append(_ours(context, size, count))
            theirs.append(perftest(size, count, 18500 + 2 * number))
            batched.append(perftest(size, count, 18501 + 2 * number, "-l", str(_BATCH)))
        report.add(f"{size} byte writes", *compared(size, ours, theirs, batched))
    for line in _CONDITIONS.splitlines():
        report.note("  conditions", line)
    report.note("  conditions", f"clock: {'instructions, one processor' if counted else 'the host, so an idle one'}")


def compared(size: int, ours: list[float], theirs: list[float], batched: list[float]) -> tuple[str, bool]:
    """The row's figure, from writes a second; whether it is what it must be."""
    mine, other, more = (statistics.median(rates) for rates in (ours, theirs, batched))
    figure = f"{mine / 1e3:.1f} k writes/s, {mine * size / 1e6:.1f} MB/s; "
    figure += f"ib_write_bw {other / 1e3:.1f} k/s, {other * size / 1e6:.1f} MB/s, {more / 1e3:.1f} k/s; "
    figure += f"ratio {mine / other:.2f}, {mine / more:.2f}"
    return figure, size != 7168 or mine / other >= _LEAST_RATIO


def _ours(context: Context, size: int, count: int) -> float:
    """Writes a second, each with its immediate, which the receiver takes."""
    with connected(
        *(native(context.programs, rank, device=_DEVICE, in_flight=_DEPTH, timeout=PATIENT) for rank in range(2))
    ) as (a, b):
        a.ask("write", 1, 200, size, 0, 30)
        b.ask("expect", 200, 30)
        b.tell("expect", count, 60)
        done = a.ask("write", 1, count, size, 1, 60)
        assert done["completed"] == count, done
        assert b.answer()["arrived"] == count
        return float(count / done["seconds"])


def perftest(size: int, count: int, port: int, *more: str) -> float:
    """Writes a second of ib_write_bw (plain writes, without an immediate) with as many open; `more` are its options."""
    common = ["ib_write_bw", "-x", str(GID), "-F", "-s", str(size), "-n", str(count), "-p", str(port)]
    common += ["-t", str(_DEPTH), "-d", _DEVICE, "-u", str(PATIENT), *more]
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

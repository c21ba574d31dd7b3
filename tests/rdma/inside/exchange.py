"""Step: writes with immediates between two processes across the cable, ours with ours and ours with pyverbs."""

from __future__ import annotations

from tests.rdma.inside.context import Context
from tests.rdma.inside.report import Report
from tests.rdma.inside.sides import PATIENT, Side, connected, native, pyverbs

_SIZES = (0, 1, 8, 513, 4096, 7168, 65536)


def run(context: Context, report: Report) -> None:
    for queue_pairs in (1, 4):
        with connected(*(native(context.programs, r, qps=queue_pairs, timeout=PATIENT) for r in range(2))) as (a, b):
            writes, moved = both_ways(a, b, 40)
            report.add(f"ours with ours, {queue_pairs} queue pairs", f"{writes:,} writes, {moved:,} bytes, all right")
            _by_queue_pair(report, a, writes // 2, moved // 2)
    for queue_pairs in (1, 2):
        options = {"qps": queue_pairs, "timeout": PATIENT}
        ours, theirs = native(context.programs, 0, **options), pyverbs(1, **options)
        with connected(ours, theirs) as (a, b):
            writes, moved = both_ways(a, b, 12)
            figure = f"{writes:,} writes both ways, {moved:,} bytes, all right"
            report.add(f"ours with pyverbs, {queue_pairs} queue pairs", figure)


def both_ways(a: Side, b: Side, count: int, ranks: tuple[int, int] = (0, 1)) -> tuple[int, int]:
    """Writes of many sizes each way, every byte and immediate checked; (writes, bytes).

    Args:
        ranks: of `a` and `b`.
    """
    writes = moved = 0
    for number, size in enumerate(_SIZES):
        for sender, receiver, peer, source in ((a, b, ranks[1], ranks[0]), (b, a, ranks[0], ranks[1])):
            first = 1000 * number + 7
            sender.ask("fill", number)
            receiver.tell("expect", count, 30)
            done = sender.ask("write", peer, count, size, first, 30)
            seen = receiver.answer()
            wanted = sum(range(first, first + count))
            assert done["completed"] == count and not done["events"], (sender.name, size, done)
            assert (seen["arrived"], seen["sum"], seen["from"]) == (count, wanted, source), (size, seen)
            assert receiver.ask("check", size * min(count, 8), number)["wrong"] == 0, (receiver.name, size)
            writes += count
            moved += count * size
    return writes, moved


def _by_queue_pair(report: Report, side: Side, writes: int, moved: int) -> None:
    """What each queue pair of rank 0 has carried; together they are what it was told to write."""
    for choice, reason in side.ask("notes"):
        if "queue pair" in choice.lower():
            report.add(f"  {choice}", reason)
    found = side.ask("counters")["queues"]
    for peer, number, count, size in found:
        report.add(f"  to rank {peer}, queue pair {number}", f"{count:,} writes, {size:,} bytes")
    whole = (sum(count for _, _, count, _ in found), sum(size for *_, size in found))
    report.add("  together", f"{whole[0]:,} writes, {whole[1]:,} bytes", whole == (writes, moved))

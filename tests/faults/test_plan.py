"""The table of fault plans: complete, readable, and refused where words do not go together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.plan import HARMS, LINKS, MID_STREAM, NETWORKS, NODES, POINTS, STARTING, Plan, parse, plans

TABLE = list(plans())


def test_plan_table_kills_every_rank_in_every_phase() -> None:
    dead = {(p.mode, p.point, p.rank) for p in TABLE if (p.harm, p.nodes) == ("kill", "2x2")}
    for mode, points in POINTS.items():
        for point in points.keys() - set(STARTING):
            assert {(mode, point, rank) for rank in range(4)} <= dead, (mode, point)


def test_plan_table_has_every_word() -> None:
    assert {p.harm for p in TABLE} == set(HARMS)
    assert {p.nodes for p in TABLE} == set(NODES)
    assert {p.network for p in TABLE} == set(NETWORKS)
    assert {(p.mode, p.point) for p in TABLE if p.harm == "stop"} >= {
        (mode, point) for mode, points in POINTS.items() for point in points.keys() - set(STARTING)
    }
    assert {p.proxy for p in TABLE} == {"thread", "process"}
    assert len({str(p) for p in TABLE}) == len(TABLE), "a plan twice"
    quick = [p for p in TABLE if p.quick]
    assert 5 <= len(quick) <= 12 and {"kill", "stop", "cut", "kill-proxy"} <= {p.harm for p in quick}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("kill 3 idle low_latency 2x2 tcp", "wanted are harm rank"),
        ("bite 3 idle low_latency 2x2 tcp thread", "harm 'bite'"),
        ("kill 4 idle low_latency 2x2 tcp thread", "rank '4'"),
        ("kill 3 barrier low_latency 2x2 tcp thread", "point 'barrier'"),
        ("kill 3 idle fast 2x2 tcp thread", "mode 'fast'"),
        ("kill 3 idle low_latency 5x5 tcp thread", "nodes '5x5'"),
        ("kill 3 idle low_latency 2x2 ether thread", "network 'ether'"),
        ("kill 3 idle low_latency 2x2 tcp fiber", "proxy 'fiber'"),
        ("cut 3 idle low_latency 2x2 tcp thread", "a link needs"),
        ("kill-proxy 3 idle low_latency 2x2 tcp thread", "only a proxy process"),
        ("kill 2 idle low_latency 1x3 tcp-apart thread", "several nodes"),
        ("leave 2 mid-dispatch throughput 2x2 tcp thread", "between calls"),
        ("pause 2 connecting throughput 2x2 tcp thread", "killed or stopped"),
        ("cut 2 mid-combine throughput 2x2 tcp-netns thread", "from outside"),
        ("cut 0 counted throughput 2x2 tcp-netns thread", "parts one rank"),
        ("stop 2 idle throughput 4x1 shared_memory-netns thread", "a rank is killed"),
    ],
)
def test_plan_refuses_what_does_not_go_together(line: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(line)


def test_plan_reads_a_table(tmp_path: Path) -> None:
    file = tmp_path / "plans.txt"
    file.write_text(
        "# nothing\n\nkill 3 idle low_latency 2x2 tcp thread  # why\nstop 0 barrier throughput 1x3 tcp thread quick\n"
    )
    first, second = plans(file)
    assert first == Plan("kill", 3, "idle", "low_latency", "2x2", "tcp", "thread")
    assert second.quick and str(second) == "stop 0 barrier throughput 1x3 tcp thread"


def test_plan_says_who_may_be_named_and_for_what() -> None:
    stopped = parse("stop 3 before-combine low_latency 2x2 tcp thread")
    assert (stopped.survivors, stopped.victims, stopped.kind) == ([0, 1, 2], [3], "PeerTimeout")
    assert all(stopped.phases(rank) == ("combine",) for rank in range(3))
    cut = parse("cut 2 idle low_latency 2x2 tcp-netns thread")
    assert (cut.survivors, cut.victims) == ([0, 1], [2, 3])
    late = parse("stop 3 dispatch-sent low_latency 2x2 tcp thread")
    assert late.phases(2) == ("combine", "dispatch") and late.phases(0) == ("combine",)
    for line, quorum in (
        ("part 2 idle low_latency 2x2 tcp-netns thread", [0, 1]),
        ("part 1 idle low_latency 2x2 tcp-netns thread", [0, 1]),
        ("part 0 idle low_latency 4x1 tcp-netns thread", [1, 2, 3]),
        ("kill 1 idle low_latency 4x1 shared_memory-netns thread", []),
        ("kill 0 idle low_latency 1x3 shared_memory-netns thread", [1]),
    ):
        assert parse(line).recovers and parse(line).quorum == quorum, line
    assert not cut.recovers
    assert parse("part 0 dispatch-sent low_latency 2+1 tcp-netns thread").beside == [1]
    assert cut.beside == late.beside == []
    killed = parse("kill 1 idle throughput 4x1 tcp-apart thread")
    assert killed.kind == "PeerLost" and killed.limit_s < stopped.limit_s and len(killed.phases(0)) > 1
    for plan in TABLE:
        assert plan.rank in plan.victims and plan.survivors
        assert not set(plan.survivors) & set(plan.victims)
        assert plan.point not in MID_STREAM or plan.held in plan.survivors
        assert plan.harm not in LINKS or plan.network == "tcp-netns"

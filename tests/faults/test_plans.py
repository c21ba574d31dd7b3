"""Every line of plans.txt: real ranks, one harmed at a known point; who reports what, how soon, and what is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.faults import network
from tests.faults.bodies import Fault
from tests.faults.fleet import Fleet, Place
from tests.faults.network import Network
from tests.faults.plan import LINKS, MID_STREAM, STARTING, Plan, plans
from tests.faults.plan_bodies import planned
from tests.faults.summary import Line, Summary

DESTROY_S = 10.0  # drains for 2 s at most; a proxy that answers no more is given 2 s + 5 s before it is killed


@pytest.fixture(scope="module")
def summary() -> Iterator[Summary]:
    lines = Summary()
    yield lines
    print("\n" + lines.table())


@pytest.fixture(scope="module")
def no_network() -> str:
    return network.missing()


def _cases() -> list[object]:
    marks = {True: (), False: (pytest.mark.slow,)}
    return [pytest.param(plan, id=str(plan).replace(" ", "_"), marks=marks[plan.quick]) for plan in plans()]


@pytest.mark.parametrize("plan", _cases())
def test_plan(plan: Plan, summary: Summary, no_network: str, request: pytest.FixtureRequest) -> None:
    if plan.network.endswith("-netns") and no_network:
        summary.add(Line(str(plan), "skipped", note=no_network))
        pytest.skip(f"FAULT PLAN NOT RUN: network namespaces cannot be made: {no_network}")
    result = Result(plan)
    try:
        result.run()
    except BaseException:
        summary.add(Line(str(plan), "failed", leaks=result.leaks))
        raise
    summary.add(Line(str(plan), "passed", result.slowest_s, plan.limit_s, len(plan.survivors), result.leaks))


class Result:
    """A plan, and what was measured while it ran."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.slowest_s = 0.0
        self.leaks = 0

    def run(self) -> None:
        """Raises AssertionError on anything that is not as the plan has it."""
        plan = self.plan
        with ExitStack() as stack:
            hosts = None
            if plan.network.endswith("-netns"):
                alone = plan.network == "shared_memory-netns"
                hosts = stack.enter_context(Network(plan.world.ranks if alone else plan.topology.num_nodes))
            fleet = stack.enter_context(Fleet(plan.world, planned, plan, places=_places(plan, hosts)))
            if plan.point in STARTING:
                self._start(fleet)
            else:
                self._play(fleet, hosts)
        assert hosts is None or not hosts.left()

    def _start(self, fleet: Fleet) -> None:
        """The victim never comes to have a Buffer; the others' group tells them, or its time-out does."""
        plan = self.plan
        doomed_at = fleet.wait_for("doomed", [plan.rank])[plan.rank]
        fleet.remember()
        if plan.harm == "stop":
            fleet.wait_for_gather(plan.survivors, plan.limit_s)
            fleet.part(plan.rank)
            fleet.signal(plan.rank, signal.SIGKILL)
        for rank, fault in fleet.wait_for("fault", plan.survivors).items():
            assert fault.kind == "PeerLost" and "start-up" in fault.text, (rank, fault)
            assert f"rank {plan.rank}" in fault.text or f"peer {plan.rank}" in fault.text, (rank, fault)
            self.slowest_s = max(self.slowest_s, fault.at - doomed_at)
        assert self.slowest_s < plan.limit_s
        self._nothing_left(fleet, plan.survivors)

    def _play(self, fleet: Fleet, hosts: Network | None) -> None:
        plan = self.plan
        everybody = range(plan.world.ranks)
        fleet.wait_for("started", everybody)
        fleet.remember()
        for rank in everybody:
            fleet.answer(rank)
        if plan.point == "idle":
            fleet.wait_for("idle", everybody)
            fleet.answer(plan.rank)
        doomed_at = fleet.wait_for("doomed", [plan.rank])[plan.rank]
        self._harm(fleet, hosts)
        if plan.point == "idle":
            for rank in set(everybody) - {plan.rank}:
                fleet.answer(rank)
        elif plan.point in MID_STREAM:
            fleet.answer(plan.held)
        faults = fleet.wait_for("fault", plan.survivors)
        for rank, fault in faults.items():
            self._check(rank, fault)
            self.slowest_s = max(self.slowest_s, fault.at - doomed_at)
        assert self.slowest_s < plan.limit_s, {rank: fault.at - doomed_at for rank, fault in faults.items()}
        self._end(fleet)

    def _harm(self, fleet: Fleet, hosts: Network | None) -> None:
        """What the victim cannot do to itself."""
        plan = self.plan
        if plan.harm.endswith("-proxy"):
            (proxy,) = fleet.children(plan.rank)
            os.kill(proxy.pid, signal.SIGKILL if plan.harm == "kill-proxy" else signal.SIGSTOP)
        elif plan.harm in LINKS:
            assert hosts is not None
            fleet.wait_for("delivered", plan.beside)
            hosts.harm("cut" if plan.harm == "part" else plan.harm, plan.topology.node_of[plan.rank])
        else:
            return
        fleet.answer(plan.rank)

    def _check(self, rank: int, fault: Fault) -> None:
        plan = self.plan
        assert (fault.kind, fault.peer) == (plan.kind, fault.peer) and fault.peer in plan.victims, (rank, fault)
        assert fault.phase is not None and any(words in fault.phase for words in plan.phases(rank)), (rank, fault)
        assert f"rank {fault.peer} (host " in fault.text and f"reported by rank {rank}" in fault.text, (rank, fault)
        if plan.kind == "PeerTimeout":
            assert "waited " in fault.text, (rank, fault)
            if "(send)" not in fault.phase:  # that is a wait for room, not for arrivals
                assert "arrivals" in fault.text and fault.seen is not None, (rank, fault)
                assert fault.expected is None or fault.seen < fault.expected, (rank, fault)
            node = plan.topology.node_of
            assert node[rank] == node[fault.peer] or "last seen" in fault.text, (rank, fault)

    def _end(self, fleet: Fleet) -> None:
        """The survivors end, and those of the harmed who still can."""
        plan = self.plan
        if plan.harm == "pause":
            fleet.signal(plan.rank, signal.SIGCONT)
        cut_off = [rank for rank in plan.victims if rank != plan.rank or plan.harm not in ("kill", "stop", "leave")]
        if plan.harm != "pause":  # whom the others' silence ends
            for rank, fault in fleet.wait_for("fault", cut_off).items():
                own_proxy = rank == plan.rank and plan.harm in ("kill-proxy", "stop-proxy")
                assert fault.kind == ("TransportError" if own_proxy else "PeerTimeout"), (rank, fault)
                assert own_proxy or fault.peer != rank, (rank, fault)
        if plan.recovers:
            self._recover(fleet, sorted({*plan.survivors, *cut_off}))
            return
        for rank in plan.survivors:
            fleet.answer(rank)
        for rank, fault in fleet.wait_for("again", plan.survivors).items():
            assert fault is not None and fault.peer in plan.victims, f"rank {rank} went on after its fault: {fault}"
        if plan.harm == "pause":  # it finds that the others have gone
            for rank, fault in fleet.wait_for("fault", cut_off).items():
                itself = fault.kind == "TransportError" and "its own half" in fault.text
                assert itself or fault.kind in ("PeerLost", "PeerTimeout"), (rank, fault)
                assert itself or fault.peer in plan.survivors, (rank, fault)
        for rank in cut_off:
            fleet.answer(rank)
        if plan.harm == "stop":
            fleet.signal(plan.rank, signal.SIGKILL)
        ending = sorted({*plan.survivors, *cut_off})
        for rank, seconds in fleet.wait_for("destroyed", ending).items():
            assert seconds < DESTROY_S, f"rank {rank} took {seconds:.1f} s to destroy its buffer"
        for rank, untouched in fleet.wait_for("untouched", ending).items():
            assert untouched or plan.harm == "pause", f"rank {rank} saw the dead rank's memory change"
        self._nothing_left(fleet, [*ending, *([plan.rank] if plan.harm == "leave" else [])])

    def _recover(self, fleet: Fleet, living: list[int]) -> None:
        """No two groups go on, and whoever does not says why."""
        for rank in living:
            fleet.answer(rank)
        for rank, found in fleet.wait_for("recovered", living).items():
            if rank in self.plan.quorum:
                assert found == self.plan.quorum, (rank, found)
            else:
                assert isinstance(found, Fault) and found.kind == "NoQuorum", (rank, found)
                assert "allow_minority=True" in found.text and "recover(group)" in found.text, (rank, found)
        for rank in living:
            fleet.answer(rank)
        self._nothing_left(fleet, living)

    def _nothing_left(self, fleet: Fleet, ranks: list[int]) -> None:
        left = {rank: more for rank, more in fleet.wait_for("left", ranks).items() if more}
        self.leaks = sum(sum(more.values()) for more in left.values())
        assert not left, f"left behind in processes that go on: {left}"
        for rank in ranks:
            assert fleet.join(rank) == 0


def _places(plan: Plan, hosts: Network | None) -> list[Place] | None:
    if plan.network == "shared_memory-netns":
        assert hosts is not None
        return [Place("", hosts.name(rank)) for rank in range(plan.world.ranks)]
    if plan.network not in ("tcp-apart", "tcp-netns"):
        return None
    nodes = plan.topology.node_of
    if hosts is None:
        return [Place(f"host of node {node}") for node in nodes]
    return [Place(f"host of node {node}", hosts.name(node), hosts.address(node)) for node in nodes]

"""Fault plans: one line of plans.txt each, and what the survivors of each must report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.end_to_end.world import World
from uccl_ep.group.topology import Topology, split_into_nodes

TABLE = Path(__file__).with_name("plans.txt")
TIMEOUT_S = 3.0  # UCCL_EP_TIMEOUT_S of every plan

# Allowed on top: of a wait that begins when the harm is done, and of a loss that the kernel tells at once. Both hold on
# a machine five times as slow as two idle cores, where reports come within 0.2 s of the deadline, or of the death.
MARGIN_S = 6.0
LOST_WITHIN_S = 4.0

# What is done to the victim, and how its survivors must call it.
HARMS = {
    "kill": "PeerLost",  # SIGKILL by itself
    "leave": "PeerLost",  # destroy(), while others still need it
    "kill-proxy": "PeerLost",  # SIGKILL of its proxy process
    "stop": "PeerTimeout",  # SIGSTOP by itself, killed when all have reported
    "pause": "PeerTimeout",  # SIGSTOP by itself, SIGCONT when all have reported
    "stop-proxy": "PeerTimeout",  # SIGSTOP of its proxy process
    "cut": "PeerTimeout",  # the link of its host is set down
    "part": "PeerTimeout",  # the same; then all call recover()
    "mute": "PeerTimeout",  # what its host sends is dropped; it still hears the others
    "deaf": "PeerTimeout",  # what its host is sent is dropped; the others still hear it
}
LINKS = ("cut", "part", "mute", "deaf")

# Where a rank is when it is harmed, and what its survivors are in when all that it had sent has arrived.
POINTS = {
    "low_latency": {
        "before-dispatch": "dispatch",
        "dispatch-sent": "combine",
        "before-combine": "combine",
        "combine-sent": "dispatch",
        "idle": "dispatch",
        "construction": "",
        "connecting": "",
    },
    "throughput": {
        "before-dispatch": "the count exchange",
        "counted": "dispatch",
        "mid-dispatch": "dispatch",
        "before-combine": "combine",
        "mid-combine": "combine",
        "combined": "the count exchange",
        "barrier": "a barrier",
        "idle": "the count exchange",
        "construction": "",
        "connecting": "",
    },
}
STARTING = ("construction", "connecting")  # no Buffer yet
MID_STREAM = ("mid-dispatch", "mid-combine")

# Of `playing`: how many of its stops come before the point.
STAGES = {
    "before-dispatch": 0,
    "dispatch-sent": 1,
    "before-combine": 2,
    "combine-sent": 3,
    "combined": 3,
}
NODES = {"1x3": (3, 0), "2x2": (4, 2), "4x1": (4, 1), "2+1": (3, 2), "3x1": (3, 1)}  # (ranks, UCCL_EP_RANKS_PER_NODE)

# How ranks reach each other: over shared memory or tcp of one host; as if each node were a host of its own, so that
# nobody sees another's process; or as that with a network namespace for each. In shared_memory-netns each rank of one
# host has a namespace without a link; then all survivors call recover().
NETWORKS = ("shared_memory", "tcp", "tcp-apart", "tcp-netns", "shared_memory-netns")


@dataclass(frozen=True)
class Plan:
    """One line of the table."""

    harm: str
    rank: int
    point: str
    mode: str
    nodes: str
    network: str
    proxy: str
    quick: bool = False

    def __str__(self) -> str:
        return f"{self.harm} {self.rank} {self.point} {self.mode} {self.nodes} {self.network} {self.proxy}"

    @property
    def world(self) -> World:
        """The ranks and their settings."""
        ranks, per_node = NODES[self.nodes]
        transport = self.network.partition("-")[0]
        return World(ranks, per_node, transport, proxy=self.proxy, timeout_s=TIMEOUT_S)

    @property
    def topology(self) -> Topology:
        """Which rank is on which node."""
        return split_into_nodes(["host"] * self.world.ranks, self.world.ranks_per_node, 64)

    @property
    def survivors(self) -> list[int]:
        """Everybody but the victim; with a cut link, everybody that the cut does not part from the majority."""
        gone = self.topology.members(self.topology.node_of[self.rank]) if self.harm in LINKS else [self.rank]
        return [rank for rank in range(self.world.ranks) if rank not in gone]

    @property
    def victims(self) -> list[int]:
        """The ranks that survivors may name."""
        return [rank for rank in range(self.world.ranks) if rank not in self.survivors]

    @property
    def beside(self) -> list[int]:
        """Ranks that a link parts with the victim: what they have sent until its point has arrived too by then."""
        return [] if self.point == "idle" else [rank for rank in self.victims if rank != self.rank]

    @property
    def recovers(self) -> bool:
        """All that live call recover() after the fault."""
        return self.harm == "part" or self.network == "shared_memory-netns"

    @property
    def quorum(self) -> list[int]:
        """Who goes on then: of those who can talk to each other, the one group that is large enough."""
        living = [rank for rank in range(self.world.ranks) if rank != self.rank or self.harm == "part"]
        groups = [self.survivors, self.victims] if self.harm == "part" else [[rank] for rank in living]
        found = [g for g in groups if 2 * len(g) > len(living) or (2 * len(g) == len(living) and living[0] in g)]
        return found[0] if found else []

    @property
    def held(self) -> int:
        """Who lets a stream of the victim get stuck, so that it is harmed in the middle of it."""
        node = self.topology.node_of
        return max(self.survivors, key=lambda rank: (node[rank] != node[self.rank], rank))

    @property
    def limit_s(self) -> float:
        """Longest from the harm to a survivor's report."""
        if self.kind == "PeerLost" and self.point not in STARTING:
            return LOST_WITHIN_S
        return TIMEOUT_S + MARGIN_S

    @property
    def kind(self) -> str:
        """The error that survivors raise."""
        return HARMS[self.harm]

    def phases(self, rank: int) -> tuple[str, ...]:
        """Phases that survivor `rank` may name: exactly one for a silence, which all hear at the same wait.

        A loss is heard at once, so in the wait before or after too; a deaf rank goes on sending for a while, and one
        whose proxy is stopped goes on serving the ranks of its node.
        """
        points = POINTS[self.mode]
        if self.kind == "PeerLost" or self.harm in ("deaf", "stop-proxy"):
            return (*{phase for phase in points.values() if phase}, "get_dispatch_layout", "staging reuse")
        due = points[self.point]
        if self.point == "dispatch-sent" and self.topology.node_of[rank] == self.topology.node_of[self.rank]:
            return due, "dispatch"  # rows of other nodes that the victim takes in for its own may have come too late
        return (due,)


def parse(line: str) -> Plan:
    """One line of the table.

    Raises:
        ValueError: a word is not one of those allowed, or two do not go together; names it.
    """
    words = line.split()
    quick = words[-1] == "quick"
    if len(words) - quick != 7:
        raise ValueError(f"{line!r}: wanted are harm rank point mode nodes network proxy [quick]")
    harm, rank, point, mode, nodes, network, proxy = words[:7]
    allowed: list[tuple[str, str, object]] = [
        ("harm", harm, HARMS),
        ("mode", mode, POINTS),
        ("point", point, POINTS.get(mode, ())),
        ("nodes", nodes, NODES),
        ("network", network, NETWORKS),
        ("proxy", proxy, ("thread", "process")),
        ("rank", rank, [str(r) for r in range(NODES.get(nodes, (0, 0))[0])]),
    ]
    for name, word, words_allowed in allowed:
        if word not in words_allowed:  # type: ignore[operator]
            raise ValueError(f"{line!r}: {name} {word!r} is not one of {list(words_allowed)}")  # type: ignore[call-overload]
    plan = Plan(harm, int(rank), point, mode, nodes, network, proxy, quick)
    conflicts = {
        "a link needs network tcp-netns": harm in LINKS and network != "tcp-netns",
        "only a proxy process can be harmed": harm.endswith("-proxy") and proxy != "process",
        "hosts apart need several nodes": network in ("tcp-apart", "tcp-netns") and nodes == "1x3",
        "a rank that leaves does so between calls": harm == "leave" and point in (*STARTING, *MID_STREAM, "counted"),
        "before it has a Buffer, a rank is killed or stopped": point in STARTING and harm not in ("kill", "stop"),
        "a stream is parted from outside": point in MID_STREAM and harm in LINKS,
        "inside of a call, a link parts one rank": point == "counted" and plan.beside != [],
        "without links, a rank is killed": network == "shared_memory-netns" and (harm != "kill" or point in STARTING),
    }
    for why, wrong in conflicts.items():
        if wrong:
            raise ValueError(f"{line!r}: {why}")
    return plan


def plans(path: Path = TABLE) -> Iterator[Plan]:
    """The table's plans, in its order."""
    for line in path.read_text(encoding="ascii").splitlines():
        if line.split("#")[0].strip():
            yield parse(line.split("#")[0])

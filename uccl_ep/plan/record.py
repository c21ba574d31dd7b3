"""What a plan consists of: plain, frozen data that a table, JSON and the start of a Buffer are all made from."""

from __future__ import annotations

from dataclasses import dataclass

from uccl_ep.cost_model.expected_bytes import Traffic

ERROR, LOUD, QUIET = "error", "loud", "quiet"


@dataclass(frozen=True)
class Choice:
    """One decision.

    Attributes:
        what: "transport", "GPU", "NICs", ... chosen: what it came to. why: the reason.
        over: what else there was, each with what spoke against it; empty: nothing else.
    """

    what: str
    chosen: str
    why: str
    over: tuple[str, ...] = ()


@dataclass(frozen=True)
class Caution:
    """Something that costs speed or certainty, or that will fail.

    Attributes:
        level: ERROR: the job will not start. LOUD: also said at the start of a Buffer that was not asked to explain
            itself. QUIET: in plans and explanations only.
        kind: "shared NIC", "fallback", "mismatch", "distance", "shared GPU", "CPUs", "limits" or "refused".
        ranks: whom it concerns. fix: what to do.
    """

    level: str
    kind: str
    ranks: tuple[int, ...]
    text: str
    fix: str


@dataclass(frozen=True)
class NicPlan:
    """A port that a rank uses.

    Attributes:
        gbps: gigabits a second, 0.0: not known. mtu: bytes, 0: not known. distance: for people.
        gid: index in the port's table, -1: its LID. address: that entry, for people.
        shared_with: other ranks on the same port.
    """

    name: str
    port: int
    gbps: float
    mtu: int
    distance: str
    gid: int
    address: str
    shared_with: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}:{self.port}"


@dataclass(frozen=True)
class RankPlan:
    """One rank.

    Attributes:
        device: cpu, cuda or hip. gpu: its PCI address; empty: the CPU.
        where: where it computes, for people.
        registration: how NICs reach its rows: dmabuf, peer_memory or host.
        threads: proxy threads. cpus: what they are pinned to, in order; empty: not pinned.
        choices: of this rank, each with its reason and what it was chosen over.
    """

    rank: int
    host: str
    node: int
    device: str
    gpu: str
    where: str
    nics: tuple[NicPlan, ...]
    registration: str
    threads: int
    cpus: tuple[int, ...]
    choices: tuple[Choice, ...]

    @property
    def gbps(self) -> float:
        """Of all its NICs; 0.0: none, or not known."""
        return sum(nic.gbps for nic in self.nics)


@dataclass(frozen=True)
class BillLine:
    """Memory of one rank for one purpose; `reserved`: address space that is taken when it is written."""

    name: str
    num_bytes: int
    what_for: str
    reserved: bool = False


@dataclass(frozen=True)
class GroupPlan:
    """A whole group.

    Attributes:
        source: "before the job" or "at the start".
        choices: decisions that all ranks share: transport, provider, where rows lie.
        cautions: worst first.
        ranks: by rank; of very large groups at a start only the first (see `num_ranks`).
        locked_bytes: what one rank locks in memory.
        traffic: None where no sizes are known.
    """

    source: str
    num_ranks: int
    num_hosts: int
    num_nodes: int
    transport: str
    placement: str
    choices: tuple[Choice, ...]
    cautions: tuple[Caution, ...]
    ranks: tuple[RankPlan, ...]
    bill: tuple[BillLine, ...]
    locked_bytes: int
    traffic: Traffic | None = None

    @property
    def total_bytes(self) -> int:
        """Of the bill, without what is only reserved."""
        return sum(line.num_bytes for line in self.bill if not line.reserved)

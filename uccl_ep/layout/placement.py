"""Where the rows of all ranks lie, in the host's memory or in a GPU's, from facts that every rank has alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from uccl_ep.fabric.choice import GPU_MEMORY_FAMILIES
from uccl_ep.fabric.visibility import WORDS, GpuOrder, choose_way
from uccl_ep.group.handshake import Hello
from uccl_ep.group.topology import Topology


@dataclass(frozen=True)
class Placement:
    """Where the rows of all ranks lie: "host" (memfd) or "device" (the GPU's own memory), and why.

    Attributes:
        by_address: ranks whose NICs reach the GPU's memory by its address (a peer-memory module); the others' by a
            dma-buf.
        ways: by rank whose GPU's memory NICs write, how that is made visible, one of uccl_ep.fabric.visibility.WORDS,
            and why so.
    """

    where: str
    reason: str
    by_address: frozenset[int] = frozenset()
    ways: Mapping[int, tuple[str, str]] = field(default_factory=dict)


def choose_placement(hellos: Sequence[Hello], topology: Topology, family: str) -> Placement:
    """Where data regions lie, from facts that every rank has alike.

    A proxy of these families reads and writes rows with the CPU, so they can lie in a GPU's memory only where no proxy
    touches them: when all ranks reach each other by load and store.
    """
    if hellos[0].device == "cpu":
        return Placement("host", "kernels run on the CPU")
    if topology.num_nodes > 1:
        closed_to_nics = _closed_to_nics(hellos, family)
        if closed_to_nics:
            return Placement("host", closed_to_nics)
    processes = {i.process for i in hellos}
    closed = [i for i in hellos if not i.exportable]
    if len(processes) > 1 and closed:
        return Placement(
            "host", f"GPU {closed[0].gpu} of rank {closed[0].rank} cannot share its memory with other processes"
        )
    for process in processes:
        gpus = sorted({i.gpu for i in hellos if i.process == process})
        if len(gpus) > 1:
            return Placement("host", f"one process has ranks on several GPUs ({', '.join(gpus)})")
    if topology.num_nodes > 1:
        ways = {i.rank: str(i.fabric.get("gpu_memory")) for i in hellos}
        by_address = frozenset(rank for rank, way in ways.items() if way == "peer_memory")
        reason = f"NICs reach GPU memory ({family}, by {' and '.join(sorted(set(ways.values())))})"
        visible = _ways(hellos, topology, family)
        hidden = next((i for i in hellos if not visible[i.rank][0]), None)
        if hidden is not None:
            why = visible[hidden.rank][1]
            return Placement("host", f"what NICs write into the GPU of rank {hidden.rank} may be seen too late: {why}")
        said = dict.fromkeys(f"{WORDS[way]} ({why})" for way, why in visible.values())
        return Placement("device", f"{reason}; {' or '.join(said)}", by_address, visible)
    return Placement("device", "all ranks are on one node and reach each other's GPU memory")


def _ways(hellos: Sequence[Hello], topology: Topology, family: str) -> dict[int, tuple[str, str]]:
    """By rank: how what NICs write into its GPU is made visible, and why so."""
    cells = [topology.cell_of[i.rank] for i in hellos]
    return {
        i.rank: choose_way(GpuOrder.told(i.fabric), family, cells.count(topology.cell_of[i.rank]) > 1) for i in hellos
    }


def _closed_to_nics(hellos: Sequence[Hello], family: str) -> str:
    """Why rows between nodes cannot lie in GPU memory; empty: they can."""
    if family not in GPU_MEMORY_FAMILIES:
        return f"proxies read and write rows with the CPU ({family}), so they lie in pinned memory"
    for i in hellos:
        if i.fabric.get("gpu_memory") not in ("dmabuf", "peer_memory"):
            why = i.fabric.get("gpu_memory_reason") or "it has not said how"
            return f"no NIC reaches the GPU memory of rank {i.rank} ({i.hostname}): {why}"
    return ""

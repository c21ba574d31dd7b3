"""What a proxy thread without work does: it naps, or keeps its core.

Kernels on a GPU cannot end a nap of the proxy: with graphs nothing announces them, and a phase begins in the middle of
a kernel. So each hop would cost half a nap on average, and the slowest rank decides. Where every thread of the host's
ranks has a core, the proxy's keep theirs; where threads outnumber cores, a nap is what lets another rank work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable

from uccl_ep.fabric.facts import NIC_FAMILIES
from uccl_ep.system.cgroups import Cgroups


def cores_of(pids: Iterable[int], affinity: Callable[[int], Collection[int]] = os.sched_getaffinity) -> int:
    """Cores that these processes may use, all together. One that has ended or is hidden has this process's."""
    cores: set[int] = set()
    for pid in pids:
        try:
            cores |= set(affinity(pid))
        except OSError:
            cores |= set(affinity(0))
    limit = Cgroups().cpu_limit()
    return min(len(cores), int(limit)) if limit else len(cores)


def may_nap(wanted: str, gpu: bool, family: str, cores: int, threads: int) -> tuple[bool, str]:
    """(whether a proxy thread without work naps, why).

    Args:
        wanted: UCCL_EP_PROXY_IDLE.
        gpu: kernels run on a GPU.
        cores, threads: of all ranks of the host; of each rank, its proxy threads and the one that launches kernels.
    """
    if wanted != "auto":
        return wanted == "nap", f"UCCL_EP_PROXY_IDLE={wanted}"
    if not gpu:
        return True, "kernels run on CPUs, which they share with the proxy"
    if family not in NIC_FAMILIES:
        return True, f"{family} needs the CPU for every byte"
    if threads > cores:
        return True, f"{threads} threads of this host's ranks have {cores} cores"
    return False, f"{threads} threads of this host's ranks have {cores} cores, and a GPU cannot end a nap"

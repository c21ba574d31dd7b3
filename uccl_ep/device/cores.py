"""How many cores a rank's kernels may keep busy on a CPU: what its process is allowed, shared with its host's ranks."""

from __future__ import annotations

import os

from uccl_ep.system.cgroups import Cgroups

MOST_THREADS = 8
"""More move no more rows: by then memory is the limit."""


def cores_allowed(cpus: int | None = None, cgroups: Cgroups = Cgroups()) -> float:  # noqa: B008 - frozen
    """Cores that this process may use: its affinity, or less where a cgroup allows less time.

    Args:
        cpus: of its affinity; None: as the system says.
    """
    allowed, limit = float(cpus or len(os.sched_getaffinity(0))), cgroups.cpu_limit()
    return min(allowed, limit) if limit else allowed


def kernel_threads(allowed: float, ranks: int, proxy_threads: int) -> int:
    """Worker threads of a kernel: the rank's share of the cores, less what its proxy may need, 1 to MOST_THREADS.

    Args:
        allowed: cores for all `ranks` of the host. proxy_threads: of each of them.
    """
    return min(MOST_THREADS, max(1, int(allowed / ranks) - proxy_threads))

"""How many cores a rank's kernels may keep busy on a CPU: what its process is allowed, shared with its host's ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uccl_ep.tools.doctor.host import Host

MOST_THREADS = 8
"""More move no more rows: by then memory is the limit."""


def cores_allowed(host: Host | None = None) -> float:
    """Cores that this process may use: its affinity, or less where a cgroup allows less time.

    Args:
        host: where to look; None: this machine.
    """
    from uccl_ep.tools.doctor.host import Host
    from uccl_ep.tools.doctor.limits import cpu_limit

    host = Host() if host is None else host
    allowed, limit = float(len(host.cpus())), cpu_limit(host)
    return min(allowed, limit) if limit else allowed


def kernel_threads(allowed: float, ranks: int, proxy_threads: int) -> int:
    """Worker threads of a kernel: the rank's share of the cores, less what its proxy may need, 1 to MOST_THREADS.

    Args:
        allowed: cores for all `ranks` of the host. proxy_threads: of each of them.
    """
    return min(MOST_THREADS, max(1, int(allowed / ranks) - proxy_threads))

"""Everything that a rank knows at one moment, as a Record. Reads shared memory; waits for nobody."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from uccl_ep import _native
from uccl_ep._native import Phase
from uccl_ep.group.self_description import installed_version
from uccl_ep.recorder.record import Call, Record, WorkerEvents

if TYPE_CHECKING:
    from uccl_ep.session.session import Session


def collect(session: Session, calls: list[Call], workers: list[WorkerEvents], reason: str) -> Record:
    """The record of a session's rank. Its peer statistics are left out where reading them would wait for a GPU.

    Args:
        calls, workers: what its recorder holds.
        reason: why.
    """
    me = session.hellos[session.rank]
    counters, peers = session.regions.read_counters()
    fault = _native.read_fault(session.regions.control.address) or {}
    return Record(
        rank=session.rank,
        num_ranks=session.num_ranks,
        session=session.life,
        host=me.hostname,
        host_id=me.host_id,
        pid=os.getpid(),
        reason=reason,
        error="",
        blamed=-1,
        written_ns=time.monotonic_ns(),
        wall_s=time.time(),
        node_of=[int(node) for node in session.topology.node_of],
        absent=sorted(session.absent),
        hostnames=session.hostnames,
        family=session.family,
        device=me.device,
        masked=_masked(session),
        fault=dict(fault),
        last_kernel=session.last_kernel,
        progress=[[_halves(w) for w in row] for row in _words(session, session.plan.control.progress)],
        flags=_words(session, session.plan.control.flag),
        counters=counters,
        peers=peers,
        kernels=session.peer_stats.tolist(),
        settings={name: _plain(value) for name, value in asdict(session.settings).items()},
        versions=_versions(),
        calls=calls,
        workers=workers,
    )


def _words(session: Session, offset: Any) -> list[list[int]]:
    """A word of the own control segment for each phase and rank."""
    ranks = range(session.num_ranks)
    return [
        [session.regions.control_word(session.rank, offset(phase, r)) for r in ranks] for phase in range(len(Phase))
    ]


def _halves(word: int) -> list[int]:
    return [word >> 32, word & 0xFFFFFFFF]


def _masked(session: Session) -> list[int]:
    """Ranks that the proxy is told to leave out, and kernels leave out: no look at the GPU."""
    excluded = session.plan.control.excluded
    at = [session.regions.control_word(session.rank, excluded(r)) for r in range(session.num_ranks)]
    return [rank for rank, word in enumerate(at) if word]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "kernel": platform.release()}
    names = ("uccl-ep", "torch")
    return versions | {name: installed_version(name) or "not installed as a package" for name in names}

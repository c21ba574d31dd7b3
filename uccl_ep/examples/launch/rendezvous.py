"""Where a rank stands in a job, and the torch ProcessGroup made of it: for launchers that torch knows nothing of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from torch import distributed

MEET_S = 300.0
"""How long ranks wait for each other: hosts and pods of a job start at different times."""


@dataclass(frozen=True)
class Place:
    """One rank of a job.

    Attributes:
        rank, size: its number and how many there are.
        address, port: where rank 0 listens; a name or an address that every host can reach.
    """

    rank: int
    size: int
    address: str
    port: int

    def join(self) -> distributed.ProcessGroup:
        """The group of all ranks of the job; end it with torch.distributed.destroy_process_group. Collective.

        Raises:
            torch.distributed.DistError: a rank did not come within MEET_S.
        """
        host = f"[{self.address}]" if ":" in self.address else self.address
        meet = f"tcp://{host}:{self.port}"
        limit = timedelta(seconds=MEET_S)
        distributed.init_process_group("gloo", init_method=meet, rank=self.rank, world_size=self.size, timeout=limit)
        group = distributed.group.WORLD
        assert group is not None  # init_process_group has made it
        return group


def number(environment: Mapping[str, str], name: str, least: int, launcher: str) -> int:
    """A whole number that a launcher gives its processes.

    Raises:
        ValueError: it is not there, or no number of at least `least`.
    """
    text = environment.get(name, "")
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"{name}={text!r}: a whole number from {least} on is needed. Was this started by {launcher}?")
    return int(text)

"""A driver's side: the group of ranks, references by value, and telling the runner what came out.

Drivers hold no line about uccl_ep: `import deep_ep` in the integrator's code finds us because `uccl-ep run` started
the process. `World` checks that, so a driver cannot pass by running on something else.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from tests.integrations.report import TOLD, Row, tell

GROUP_TIMEOUT = timedelta(seconds=300)  # ranks share cores with whatever else runs
_NODES = "4 as 2 nodes"
_FP8_MAX = 448.0


class World:
    """One rank of a driver."""

    def __init__(self) -> None:
        job = Path(os.environ["INTEGRATION_JOB"])
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._told = job / TOLD
        self._integrator = os.environ["INTEGRATION_NAME"]
        self._version = version(os.environ["INTEGRATION_PACKAGE"])
        torch.set_num_threads(1)
        distributed.init_process_group(
            "gloo", init_method=f"file://{job / 'rendezvous'}", rank=self.rank, world_size=self.size,
            timeout=GROUP_TIMEOUT,
        )  # fmt: skip
        self.group = distributed.group.WORLD
        self._check_whose_deep_ep_it_is()

    def _check_whose_deep_ep_it_is(self) -> None:
        import deep_ep

        if "+uccl.ep." not in deep_ep.__version__ or not deep_ep.Buffer.__module__.startswith("uccl_ep."):
            raise RuntimeError(f"deep_ep is {deep_ep.__version__}, {deep_ep.Buffer.__module__}, not uccl_ep")

    def row(self, path: str, error: float, tolerance: float) -> None:
        """Collective: the largest error of all ranks is told once."""
        largest = torch.tensor([error if error == error else float("inf")], dtype=torch.float64)
        distributed.all_reduce(largest, distributed.ReduceOp.MAX)
        if self.rank == 0:
            tell(self._told, "row", Row(self._integrator, self._version, _NODES, path, largest.item(), tolerance))

    def shim(self, what: str) -> None:
        """Something of the integrator's surroundings, never of the code under test, that was replaced."""
        if self.rank == 0:
            tell(self._told, "shim", what)

    def note(self, what: str) -> None:
        if self.rank == 0:
            tell(self._told, "note", what)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order."""
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value)
        return values

    def close(self) -> None:
        distributed.barrier()
        distributed.destroy_process_group()


@contextmanager
def world() -> Iterator[World]:
    """A World that ends well, unless the body failed: then its peers must not be waited for."""
    warnings.filterwarnings("ignore", category=UserWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)
    one = World()
    yield one
    one.close()


def relative(got: Tensor, wanted: Tensor) -> float:
    """Largest difference, as a share of the largest wanted value; infinite when the shapes differ."""
    if got.shape != wanted.shape:
        return float("inf")
    if wanted.numel() == 0:
        return 0.0
    scale = wanted.double().abs().max().clamp(min=1e-12)
    return float((got.double() - wanted.double()).abs().max() / scale)


def seeded(seed: int, draw: Callable[..., Tensor], *shape: int) -> Tensor:
    """draw(*shape, generator=...) that all ranks can repeat."""
    return draw(*shape, generator=torch.Generator().manual_seed(seed))


def quantized(x: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """FP8 rows [T, H] and row-major float32 scales [T, H / block]: what integrators' GPU kernels make of bf16 rows."""
    blocks = x.float().view(x.shape[0], x.shape[1] // block, block)
    scales = blocks.abs().amax(-1).clamp(min=1e-10) / _FP8_MAX
    return (blocks / scales.unsqueeze(-1)).view(x.shape).to(torch.float8_e4m3fn), scales

"""What a check works with: the module, this rank's place, buffers, inputs of all ranks, and soft comparisons.

Comparisons note problems and go on: a rank that stopped at the first one would leave the others waiting in the next
collective call. Inputs are a function of the seed and the check's name, so each rank knows all ranks' inputs and
computes the whole expected result by itself (`uccl_ep.reference.calls`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from uccl_ep.group.group import as_group
from uccl_ep.reference import CaseShape, RandomCase, random_case

Tensor = torch.Tensor

HIDDEN = 2048
"""Channels: the smallest number that upstream's low-latency kernels are compiled for."""
MAX_TOKENS = 24
"""Tokens of a rank at most; times any number of ranks it is a multiple of 4, which upstream asks for."""
LOCAL_EXPERTS = 3
"""Experts of a rank: odd, so that nothing rests on a power of two."""
TOPK = 4
RANKS_OF_A_NODE = 8  # what DeepEP's layout counts with
MAX_PROBLEMS = 6


class World:
    """One rank's view of a run. `problems` are those of the check that runs."""

    def __init__(self, module: ModuleType | Any, group: Any, device: str, ranks_per_node: int, seed: int) -> None:
        self.module = module
        self.group = group
        self._exchange = as_group(group)
        self.rank, self.size = self._exchange.rank(), self._exchange.size()
        self.device = torch.device(device)
        self.ranks_per_node = ranks_per_node
        self.seed = seed
        self.check_name = ""
        self.problems: list[str] = []
        self._buffers: dict[str, Any] = {}

    @property
    def one_node(self) -> bool:
        """Whether all ranks share a node."""
        return self.size <= self.ranks_per_node

    @property
    def num_experts(self) -> int:
        """E of every case."""
        return LOCAL_EXPERTS * self.size

    # ---- problems ----------------------------------------------------------------------------------------------

    def note(self, problem: str) -> None:
        """Remembers a problem; the check goes on."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)

    def expect(self, holds: object, problem: str) -> bool:
        """Notes `problem` unless `holds`; returns whether it does."""
        if not holds:
            self.note(problem)
        return bool(holds)

    def equal(self, what: str, got: Any, wanted: Any) -> None:
        """Two plain values, or two tensors: shape, dtype and every bit. `wanted` may be on the host."""
        if not isinstance(wanted, Tensor):
            self.expect(type(got) is type(wanted) and got == wanted, f"{what} is {got!r}, not {wanted!r}")
            return
        if not self.expect(isinstance(got, Tensor), f"{what} is a {type(got).__name__}, not a tensor"):
            return
        if got.shape != wanted.shape or got.dtype != wanted.dtype:
            self.note(f"{what} is {tuple(got.shape)} {got.dtype}, not {tuple(wanted.shape)} {wanted.dtype}")
            return
        differing = (bits(got) != bits(wanted)).flatten()
        if bool(differing.any()):
            first = int(differing.nonzero()[0]) // max(1, differing.numel() // max(1, wanted.shape[0]))
            self.note(f"{what}: {int(differing.sum())} of {differing.numel()} bytes differ, first in row {first}")

    def refused(self, what: str, call: Callable[[], object], kinds: tuple[type[BaseException], ...] = ()) -> None:
        """The call must raise (one of `kinds`, if any are given). DeepEP asserts; any Exception says no as well."""
        try:
            call()
        except Exception as error:  # of whatever class the library has
            right = not kinds or isinstance(error, kinds)
            names = " or ".join(kind.__name__ for kind in kinds)
            self.expect(right, f"{what}: raised {type(error).__name__}, not {names}")
        else:
            self.note(f"{what}: accepted")

    # ---- inputs ------------------------------------------------------------------------------------------------

    def case(self, turn: int = 0, traffic: str = "some_unused", max_tokens: int = MAX_TOKENS) -> RandomCase:
        """Inputs of all ranks, on the host, the same on each of them; `turn` tells cases of one check apart."""
        shape = CaseShape(self.size, self.num_experts, min(TOPK, self.num_experts), HIDDEN, max_tokens)
        return random_case(self._number(turn), shape, traffic)

    def rows(self, turn: int, *shape: int) -> Tensor:
        """Random bf16 on the host, by `turn`: what experts might have computed."""
        generator = torch.Generator().manual_seed(self._number(turn) + 1)
        return torch.randn(*shape, generator=generator).bfloat16()

    def _number(self, turn: int) -> int:
        return (self.seed << 20) + zlib.crc32(self.check_name.encode()) % 65536 * 16 + turn

    def put(self, tensor: Tensor) -> Tensor:
        """The tensor where the library wants it."""
        return tensor.to(self.device)

    # ---- collective --------------------------------------------------------------------------------------------

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value. Collective."""
        return self._exchange.all_gather_object(value)

    def buffer(self, kind: str) -> Any:
        """The buffer of a kind (see new_buffer), made when first asked for. Collective."""
        if kind not in self._buffers:
            self._buffers[kind] = self.new_buffer(kind)
        return self._buffers[kind]

    def new_buffer(self, kind: str, **arguments: Any) -> Any:
        """A buffer as an integrator makes it. Collective.

        Args:
            kind: "throughput" or "low_latency" (V1's Buffer), "elastic" (V2's ElasticBuffer, rows in a fixed order), or
                "elastic_once" (the same, and combine sums all rows of a token at once).
        """
        if kind.startswith("elastic"):
            sizes: dict[str, Any] = {"num_max_tokens_per_rank": MAX_TOKENS, "hidden": HIDDEN, "num_topk": TOPK}
            flags = {"deterministic": True, "allow_multiple_reduction": kind == "elastic", "explicitly_destroy": True}
            return self.module.ElasticBuffer(self.group, **{**sizes, **flags, **arguments})
        cls = self.module.Buffer
        if kind == "throughput":
            hints = [cls.get_dispatch_config(self.size), cls.get_combine_config(self.size)]
            nvl = max(config.get_nvl_buffer_size_hint(2 * HIDDEN, self.size) for config in hints)
            rdma = max(config.get_rdma_buffer_size_hint(2 * HIDDEN, self.size) for config in hints)
            return cls(self.group, nvl, rdma, explicitly_destroy=True, **arguments)
        size = cls.get_low_latency_rdma_size_hint(MAX_TOKENS, HIDDEN, self.size, self.num_experts)
        settings = {"low_latency_mode": True, "num_qps_per_rank": LOCAL_EXPERTS, "explicitly_destroy": True}
        return cls(self.group, 0, size, **settings, **arguments)

    def drop_buffers(self) -> None:
        """Destroys what `buffer` made: at the end, and after a check that failed in the middle of calls."""
        buffers, self._buffers = list(self._buffers.values()), {}
        for buffer in buffers:
            buffer.destroy()


def bits(tensor: Tensor) -> Tensor:
    """The bytes of a tensor in its logical order, on the host: [rows..., bytes of an element]."""
    plain = tensor.detach().cpu()
    own = torch.empty(plain.shape, dtype=plain.dtype).copy_(plain)  # strides of its own
    return own.reshape(-1, 1).view(torch.uint8) if own.numel() else torch.empty(0, 1, dtype=torch.uint8)

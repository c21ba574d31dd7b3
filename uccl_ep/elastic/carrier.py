"""Bytes of tensors from rank to rank, as rows of a throughput dispatch: what V2.5 moves besides tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from uccl_ep import _native
from uccl_ep.buffer import Buffer
from uccl_ep.config import Config
from uccl_ep.errors import Described, refuse
from uccl_ep.sizes import round_up

Tensor = torch.Tensor
_MOST_WIDTH, _LEAST_WIDTH = 8192, 256  # bytes of a row
_ROWS_IN_RING = 8  # of one channel, so that small memory still has a stream that flows


class Carrier:
    """Sends items (equally many bytes each, as many on every rank) to any ranks.

    Rows are written once into the memory of each node that wants them, by our proxies, and every rank there reads them;
    an item that several ranks of a node want crosses the network once. Counts are exchanged, so a call waits on the
    host, also on a GPU.
    """

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        unit = buffer._session.plan.throughput.unit_bytes
        self._width = min(_MOST_WIDTH, max(_LEAST_WIDTH, unit // _ROWS_IN_RING // 128 * 128))

    def carry(
        self, name: str, parts: Sequence[Tensor], to: Tensor, expected: Sequence[int], config: Config | None = None
    ) -> Tensor:
        """Collective. `parts` side by side are the items: uint8 [items, bytes] each.

        Args:
            name: the argument that `to` and `expected` were made of, for the error.
            to: bool [items, N] in host memory: which ranks get an item.
            expected: how many items come from each rank, as this rank sees it.

        Returns:
            uint8 [sum of expected, bytes]: the items in the order of (source rank, item).

        Raises:
            InvalidArgument: a rank sent another number of items than expected.
        """
        bytes_each = sum(part.shape[1] for part in parts)
        pieces = [self._carry(name, piece, to, expected, config) for piece in self._pieces(parts, bytes_each)]
        if len(pieces) == 1:
            return pieces[0]
        return torch.cat(pieces, 1) if pieces else parts[0].new_empty(sum(expected), 0)

    def _pieces(self, parts: Sequence[Tensor], bytes_each: int) -> Iterator[Tensor]:
        """The items, cut by columns so that a dispatch has no more rows than it may."""
        items = parts[0].shape[0]
        whole = parts[0] if len(parts) == 1 else torch.cat(list(parts), 1)
        span = max(1, _native.MAX_TOKENS_PER_RANK // max(1, items)) * self._width
        for begin in range(0, bytes_each, span):
            yield whole[:, begin : begin + span]

    def _carry(self, name: str, piece: Tensor, to: Tensor, expected: Sequence[int], config: Config | None) -> Tensor:
        items, size = piece.shape
        rows_each = -(-size // self._width)
        width = round_up(-(-size // rows_each), 16)
        padding = rows_each * width - size
        if padding or not piece.is_contiguous() or piece.data_ptr() % 16:
            piece = torch.nn.functional.pad(piece, (0, padding))
        # bf16, because a handle's combine makes room for rows of as many bf16 channels.
        rows = piece.contiguous().view(torch.bfloat16).view(items * rows_each, width // 2)
        received, _, _, _, handle, _ = self._dispatch(rows, self._layout(to, rows_each), config)
        self._check(name, handle.routing.recv_tokens.sum(1).tolist(), [count * rows_each for count in expected])
        items_received: Tensor = received.view(torch.uint8).view(-1, rows_each * width)
        return items_received[:, :size]

    def _dispatch(
        self, rows: Tensor, layout: tuple[Tensor, Tensor | None, Tensor], config: Config | None
    ) -> tuple[Any, ...]:
        per_rank, per_node, in_rank = layout
        return self._buffer.dispatch(
            rows,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_node,
            num_tokens_per_expert=per_rank,  # as if each rank had one expert
            is_token_in_rank=in_rank,
            config=config,
        )

    def _layout(self, to: Tensor, rows_each: int) -> tuple[Tensor, Tensor | None, Tensor]:
        """(rows for each rank, for each node, where each row goes), as get_dispatch_layout counts them."""
        topology, where = self._buffer._session.topology, self._buffer._device.where
        per_node = None
        if topology.num_nodes > 1:
            nodes = [to[:, topology.members(node)].any(1) for node in range(topology.num_nodes)]
            per_node = (torch.stack(nodes, 1).sum(0) * rows_each).to(where, torch.int32)
        per_rank = (to.sum(0) * rows_each).to(where, torch.int32)
        return per_rank, per_node, to.repeat_interleave(rows_each, 0).to(where)

    @staticmethod
    def _check(name: str, came: Sequence[int], expected: Sequence[int]) -> None:
        for rank, (rows, wanted) in enumerate(zip(came, expected, strict=True)):
            if rows != wanted:
                refuse(
                    name,
                    Described(f"one by which rank {rank} sends {rows} rows here, where this rank's says {wanted}"),
                    "the same on all ranks",
                )

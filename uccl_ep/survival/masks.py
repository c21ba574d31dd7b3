"""The masks of a Buffer: ranks that both modes leave out, in place and without anybody's agreement (enable_shrink).

A mask is this rank's own observation that another fails. Who is a *member* is another matter, which all survivors agree
on (uccl_ep/survival/recovery.py); a rank that is no member is masked for good.
"""

from __future__ import annotations

import torch

from uccl_ep import checks
from uccl_ep.device.protocol import Device
from uccl_ep.errors import InvalidArgument, NotSupported, refuse
from uccl_ep.low_latency.launch import LowLatency
from uccl_ep.session.session import Session
from uccl_ep.throughput.launch import Throughput


class Masks:
    """The masks of a Buffer in one of its lives. Buffer documents the calls.

    Args:
        low_latency, throughput: are told, since what they have left out cannot always come back.
    """

    def __init__(self, session: Session, device: Device, low_latency: LowLatency, throughput: Throughput) -> None:
        self._session, self._device = session, device
        self._low_latency, self._throughput = low_latency, throughput
        self._num_ranks = session.num_ranks

    def update(self, rank_to_mask: int, mask: bool) -> None:
        """Masks a rank, or takes the mask away."""
        self._check()
        if not 0 <= rank_to_mask < self._num_ranks:
            refuse("rank_to_mask", rank_to_mask, f"0 to {self._num_ranks - 1}")
        if not mask and rank_to_mask in self._session.absent:
            refuse("rank_to_mask", rank_to_mask, "a rank that takes part", "See members() and recover(group=...).")
        if not mask:
            self._check_unmask({rank_to_mask})
        self._set_mask(rank_to_mask, mask)

    def query(self, mask_status: torch.Tensor) -> None:
        """Writes all masks into `mask_status`."""
        self._check()
        status = checks.check_vector("mask_status", mask_status, torch.int32, self._num_ranks)
        if status is None:
            refuse("mask_status", None, f"an int32 tensor of {self._num_ranks} elements")
        self._device.check_tensor("mask_status", status)
        self._device.catch_up()  # a kernel may mask a rank
        status.copy_(self._session.mask)

    def clean(self) -> None:
        """Takes every mask away but those of ranks that are no members."""
        self._check()
        members = set(range(self._num_ranks)) - self._session.absent
        self._check_unmask(members)
        for rank in sorted(members):
            self._set_mask(rank, False)

    def _set_mask(self, rank: int, mask: bool) -> None:
        self._session.leave_out(rank, bool(mask))
        self._low_latency.note_masked(rank, mask)
        self._throughput.note_masked(rank, mask)

    def _check_unmask(self, ranks: set[int]) -> None:
        late = self._low_latency.late(ranks)
        if late:
            raise NotSupported(
                f"unmasking rank(s) {', '.join(map(str, late))}: a rank of another node that low-latency calls left "
                "out cannot come back to this life of the Buffer. recover(group=...) begins one with everybody."
            )
        late = self._throughput.late(ranks)
        if late:
            raise NotSupported(
                f"unmasking rank(s) {', '.join(map(str, late))}: a rank that a throughput dispatch left out cannot "
                "come back to this life of the Buffer. recover(group=...) begins one with everybody."
            )

    def _check(self) -> None:
        if not self._session.shrink:
            raise InvalidArgument("mask methods need a Buffer made with enable_shrink=True")

"""The mask calls of Buffer: ranks that both modes leave out, in place and without anybody's agreement (enable_shrink).

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
from uccl_ep.system.ownership import in_turn
from uccl_ep.throughput.launch import Throughput


class MaskApi:
    """What Buffer inherits."""

    group_size: int
    enable_shrink: bool
    _device: Device
    _low_latency: LowLatency
    _throughput: Throughput

    @property
    def _session(self) -> Session:
        raise AttributeError("_session")  # Buffer has it

    @in_turn("low_latency_update_mask_buffer")
    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Masks a rank (mask=True) or takes the mask away. Masks hold for both modes, whatever upstream's name says.

        Nothing is sent to a masked rank, nothing is expected from it, and combine leaves its experts out without
        renormalising weights. A throughput handle keeps the masks that its dispatch met.

        Raises:
            NotSupported: the mask is to be taken from a rank that has missed what cannot be made up for: a low-latency
                call, when it is on another node, or any throughput dispatch.
        """
        self._check_mask()
        if not 0 <= rank_to_mask < self.group_size:
            refuse("rank_to_mask", rank_to_mask, f"0 to {self.group_size - 1}")
        if not mask and rank_to_mask in self._session.absent:
            refuse("rank_to_mask", rank_to_mask, "a rank that takes part", "See members() and recover(group=...).")
        if not mask:
            self._check_unmask({rank_to_mask})
        self._set_mask(rank_to_mask, mask)

    @in_turn("low_latency_query_mask_buffer")
    def low_latency_query_mask_buffer(self, mask_status: torch.Tensor) -> None:
        """Writes the mask into `mask_status` (int32 [N]): 1 = masked."""
        self._check_mask()
        status = checks.check_vector("mask_status", mask_status, torch.int32, self.group_size)
        if status is None:
            refuse("mask_status", None, f"an int32 tensor of {self.group_size} elements")
        self._device.check_tensor("mask_status", status)
        self._device.catch_up()  # a kernel may mask a rank
        status.copy_(self._session.mask)

    @in_turn("low_latency_clean_mask_buffer")
    def low_latency_clean_mask_buffer(self) -> None:
        """Takes every mask away; ranks that are no members keep theirs. Raises as low_latency_update_mask_buffer."""
        self._check_mask()
        members = set(range(self.group_size)) - self._session.absent
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

    def _check_mask(self) -> None:
        if not self.enable_shrink:
            raise InvalidArgument("mask methods need a Buffer made with enable_shrink=True")
        _ = self._session

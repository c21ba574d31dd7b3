"""The masks of a Buffer: ranks that both modes leave out, in place and without anybody's agreement (enable_shrink).

A mask that no call has met is taken away at once. Else both ranks of a pair must meet first (returning.py): the next
call does that.

A mask is this rank's own observation that another fails. Who is a *member* is another matter, which all survivors agree
on (uccl_ep/survival/recovery.py); a rank that is no member is masked for good.
"""

from __future__ import annotations

import torch

from uccl_ep import checks
from uccl_ep.device.protocol import Device
from uccl_ep.errors import InvalidArgument, NotSupported, PeerLost, refuse
from uccl_ep.low_latency.launch import LowLatency
from uccl_ep.session.barrier import Collective
from uccl_ep.session.session import Session
from uccl_ep.survival.returning import Returning
from uccl_ep.throughput.launch import Throughput


class Masks:
    """The masks of a Buffer in one of its lives. Buffer documents the calls.

    Args:
        low_latency, throughput: are told, since what they have left out must meet again, or cannot come back.
        collective: the barriers, which ranks may have missed too.
    """

    def __init__(
        self,
        session: Session,
        device: Device,
        low_latency: LowLatency,
        throughput: Throughput,
        collective: Collective,
    ) -> None:
        self._session, self._device = session, device
        self._low_latency, self._throughput = low_latency, throughput
        self._returning: Returning | None = None
        if session.shrink:
            self._returning = Returning(session, device, low_latency, collective, self._take_away)
        self._num_ranks = session.num_ranks

    def update(self, rank_to_mask: int, mask: bool) -> None:
        """Masks a rank, or takes the mask away."""
        self._check()
        if not 0 <= rank_to_mask < self._num_ranks:
            refuse("rank_to_mask", rank_to_mask, f"0 to {self._num_ranks - 1}")
        if not mask and rank_to_mask in self._session.absent:
            refuse("rank_to_mask", rank_to_mask, "a rank that takes part", "See members() and recover(group=...).")
        self._device.catch_up()  # a kernel may mask a rank
        if mask:
            self._mask(rank_to_mask)
        else:
            self._unmask({rank_to_mask})

    def query(self, mask_status: torch.Tensor) -> None:
        """Writes all masks into `mask_status`."""
        self._check()
        status = checks.check_vector("mask_status", mask_status, torch.int32, self._num_ranks)
        if status is None:
            refuse("mask_status", None, f"an int32 tensor of {self._num_ranks} elements")
        self._device.check_tensor("mask_status", status)
        self._session.settle()
        self._device.catch_up()  # a kernel may mask a rank
        status.copy_(self._session.mask)

    def clean(self) -> None:
        """Takes every mask away but those of ranks that are no members."""
        self._check()
        self._device.catch_up()
        members = set(range(self._num_ranks)) - self._session.absent
        self._unmask(members)

    def agree(self, timeout_s: float | None) -> list[int]:
        """Masks, on all ranks that are left, whom one of them masks."""
        returning = self._check()
        session = self._session
        deadline_s = session.settings.timeout_s if timeout_s is None else timeout_s
        if type(deadline_s) not in (int, float) or not 0 < deadline_s < float("inf"):
            refuse("timeout_s", timeout_s, "seconds, more than 0")
        session.check()
        session.settle()
        self._device.begin()
        self._device.check_host_wait()
        self._device.catch_up()
        masked = self.masked()
        try:
            agreed = returning.agree(masked, deadline_s)
        except PeerLost:
            for rank in set(range(self._num_ranks)) - masked - {session.rank}:
                session.leave_out(rank, True)
            raise
        for rank in agreed - masked:  # others may have made calls without it
            session.leave_out(rank, True)
        return sorted(agreed)

    def masked(self) -> set[int]:
        """Whom this rank leaves out, members or not."""
        return set(self._session.mask.nonzero().flatten().tolist())

    def _mask(self, rank: int) -> None:
        returning = self._check()
        returning.cancel(rank)
        if not self._session.mask[rank]:
            self._low_latency.note_masked(rank, True)
            self._throughput.note_masked(rank, True)
        self._session.leave_out(rank, True)

    def _unmask(self, ranks: set[int]) -> None:
        self._check_unmask(ranks)
        late = set(self._low_latency.late(ranks))
        for rank in sorted(ranks - late):
            self._take_away(rank)
        if late:
            self._check().ask(late)

    def _take_away(self, rank: int) -> None:
        self._session.leave_out(rank, False)
        self._low_latency.note_masked(rank, False)
        self._throughput.note_masked(rank, False)

    def _check_unmask(self, ranks: set[int]) -> None:
        gone = [rank for rank in self._low_latency.late(ranks) if self._session.has_gone(rank)]
        if gone:
            raise NotSupported(
                f"unmasking rank(s) {', '.join(map(str, gone))}: a rank that has ended, or was so long silent that "
                "what was on its way to it had to be given up, cannot come back to this life of the Buffer. "
                "recover(group=...) begins one with everybody."
            )
        late = self._throughput.late(ranks)
        if late:
            raise NotSupported(
                f"unmasking rank(s) {', '.join(map(str, late))}: a rank that a throughput dispatch left out cannot "
                "come back to this life of the Buffer. recover(group=...) begins one with everybody."
            )

    def _check(self) -> Returning:
        if self._returning is None:
            raise InvalidArgument("mask methods need a Buffer made with enable_shrink=True")
        return self._returning

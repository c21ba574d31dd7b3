"""Captured low-latency calls that go on in the next life of their Buffer.

What such a call was told when it was captured is fixed: sizes and layouts, and the addresses of the rank's tables,
words and counters. All else stands in the tables, which change: who takes part, and where everybody's memory is. So
where the next life would tell its kernels the same, it takes over the three addresses, and a replay is a call of it.

While they build, the ranks tell each other whether it would (Ready.graphs). If one that has graphs needs others, all of
them capture anew. Those that join learn the sizes: calls of other sizes have barriers around them, on all ranks alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from uccl_ep._native import LowLatencyCalls, RankContext
from uccl_ep.device.protocol import Device
from uccl_ep.errors import InvalidArgument
from uccl_ep.low_latency.launch import LowLatency, Sizes
from uccl_ep.session.session import Session

if TYPE_CHECKING:
    from uccl_ep.gpu.memory import GpuRegions
    from uccl_ep.survival.life import Life

_OTHERS = [0]  # needs other graphs


def _of_gpu(session: Session) -> GpuRegions:
    return cast("GpuRegions", session.regions)  # nothing is captured on a CPU


class Captured:
    """The captured calls of one life, for the next one.

    Attributes:
        sizes: of all of them.
    """

    def __init__(self, life: Life, sizes: Sizes) -> None:
        self._low_latency = life.low_latency_half
        self.sizes = sizes
        self._regions, self._tag = _of_gpu(life.session), life.session.context.tag
        self._words = self._regions.kernel_words
        self._before = self._told(life.device, self._low_latency, life.session.context)

    def told_in(self, life: Life, session: Session) -> list[int]:
        """What this rank says of them (Ready.graphs) to the ranks of the next life, whose session is about to begin."""
        _, context = _of_gpu(session).kernel_words.told_at(self._words)
        context.tag = self._tag  # which each graph has of its own
        try:
            now = self._told(life.device, life.low_latency_half, context)
        except InvalidArgument:  # they do not fit into the next life's memory
            return _OTHERS
        return list(self.sizes) if now == self._before else _OTHERS

    def _told(self, device: Device, low_latency: LowLatency, context: RankContext) -> tuple[object, ...]:
        """What every kernel of such calls is told alike in a life, and by what its grid is cut. They have the counters
        that they had when they were captured."""
        layout, form = low_latency.sums.lay_out(*self.sizes)
        calls = LowLatencyCalls(context, layout, self.sizes[2], self._low_latency.counters, device.shape)
        one = calls.dispatch_recv(
            None, format=0, recv_x=None, recv_scales=None, recv_count=None, src_info=None, layout_range=None,
            cumulative_stats=None, wait_stats=None,
        )  # fmt: skip
        return form.reduces, one.args, one.blocks, one.warps, device.share

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Within it, what they name outlives its life."""
        places = self._words.hold()
        try:
            yield
        finally:
            for place in places:
                place.drop()

    def go_on_in(self, life: Life) -> bool:
        """Makes them calls of the next life, before its first call and when no kernel of theirs runs. Whether they are:
        not where the ranks have not agreed on it, nor where they may name zero-copy rows, which go with their life."""
        if life.session.graphs != self.sizes or self._regions.handed_out:
            return False
        life.session.context = _of_gpu(life.session).move_words(self._words)
        life.low_latency_half.go_on(self._low_latency)
        return True

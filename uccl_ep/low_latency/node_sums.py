"""What a Buffer's combines that are reduced in the node need besides their two halves: the form that is used, and the
sums that this rank owes other nodes' ranks."""

from __future__ import annotations

from collections import deque
from typing import Any, NoReturn

from uccl_ep import _native
from uccl_ep.device.protocol import Device
from uccl_ep.errors import refuse
from uccl_ep.layout.combine_form import CombineForm, by_model, form_of_call, room_for_sums
from uccl_ep.layout.combine_formats import RowFormat
from uccl_ep.layout.plan import low_latency_layout
from uccl_ep.session.session import Session
from uccl_ep.sizes import format_bytes

_DIRECT = CombineForm(False, "no call yet")


class Sums:
    """Of one LowLatency.

    A kernel between the halves sums rows and sends the sums (kernels/low_latency/combine_reduce.h). It waits for other
    ranks' sending halves, so a sending half must not wait for it: with a receive hook it is queued by whatever
    low-latency half this rank queues next, else at once. Other ranks' receiving halves wait for it, which is why it
    must be queued before this rank waits for anything else of theirs.

    Attributes:
        owed: kernels that `catch_up` queues, with the tensors that they use.
    """

    def __init__(self, session: Session, device: Device) -> None:
        self._session, self._device = session, device
        self._form = _DIRECT
        self.owed: list[tuple[_native.Launch, tuple[Any, ...]]] = []
        self._kept: deque[tuple[Any, ...]] = deque(maxlen=4)  # no more than two calls are outstanding

    def lay_out(self, max_tokens: int, hidden: int, num_experts: int) -> tuple[_native.LowLatencyLayout, CombineForm]:
        """The layout for these sizes, and the form of its combines.

        With auto there is room for sums where the model wants them and num_rdma_bytes
        allows.

        Raises:
            InvalidArgument: the sizes are out of range or do not fit into num_rdma_bytes.
        """
        plan, settings, ranks = self._session.plan, self._session.settings, self._session.num_ranks
        if not 1 <= max_tokens <= _native.MAX_TOKENS_PER_RANK:
            refuse("num_max_dispatch_tokens_per_rank", max_tokens, f"1 to {_native.MAX_TOKENS_PER_RANK}")
        if hidden % 8 or not 8 <= hidden <= _native.MAX_HIDDEN:
            refuse("hidden", hidden, f"a multiple of 8 up to {_native.MAX_HIDDEN}")
        if num_experts % ranks or not 1 <= num_experts <= _native.MAX_EXPERTS:
            refuse("num_experts", num_experts, f"a multiple of the {ranks} ranks up to {_native.MAX_EXPERTS}")
        layout = low_latency_layout(max_tokens, hidden, num_experts, plan.topology, plan.low_latency_base, settings)
        form = room_for_sums(settings, plan.topology)
        if form.reduces and settings.low_latency_combine == "auto":
            sizes = (max_tokens, hidden, num_experts)
            form = by_model(sizes, plan.topology, settings.low_latency_topk, self._session.family)
            if form.reduces and layout.bytes() > plan.low_latency_budget:
                form = CombineForm(False, f"num_rdma_bytes has no room for sums: {layout.bytes()} bytes", form.over)
            layout.reduces = int(form.reduces)
        if layout.bytes() > plan.low_latency_budget:
            refuse(
                "num_rdma_bytes",
                plan.low_latency_budget,
                f"at least {layout.bytes()} ({format_bytes(layout.bytes())}) for {max_tokens} tokens x {hidden} "
                f"channels on {plan.topology.num_nodes} node(s)",
                "Buffer.get_low_latency_rdma_size_hint gives it; set UCCL_EP_RANKS_PER_NODE where nodes are simulated.",
            )
        return layout, form

    def use(self, form: CombineForm) -> None:
        """From now on this is the form of calls, unless something about a call speaks against it."""
        if form != self._form and self._session.topology.num_nodes > 1:
            self._session.show((f"combine {form.name}", "; ".join((form.reason, *form.over))))
        self._form = self._session.combine_form = form

    def reduces(self, rows: RowFormat) -> bool:
        """Whether the next call, whose rows travel like this, is reduced in the node."""
        return self._form.reduces and form_of_call(self._form, rows, self._session.settings.low_latency_topk).reduces

    def refuse_topk(self, topk: int, most: int) -> NoReturn:
        """Raises InvalidArgument: tokens name more experts than memory is laid out for."""
        refuse(
            "topk_idx",
            topk,
            f"of up to {most} columns",
            "UCCL_EP_LOW_LATENCY_TOPK allows more, on all ranks.",
        )

    def owe(self, launch: _native.Launch, keep: tuple[Any, ...]) -> None:
        """A sending half has been queued whose rows this rank sums for others, by `launch`, which uses what is kept."""
        self.owed.append((launch, keep))

    def catch_up(self) -> None:
        """Queues what is owed, oldest first."""
        while self.owed:
            launch, keep = self.owed.pop(0)
            self._device.launch(launch)
            self._kept.append(keep)  # also when the caller has dropped the hook

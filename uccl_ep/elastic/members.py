"""Ranks of an ElasticBuffer join and leave while the others go on; what follows from who the members are."""

from __future__ import annotations

from typing import Any

from uccl_ep.buffer import Buffer
from uccl_ep.elastic import sizes
from uccl_ep.elastic.dispatch import ElasticDispatch
from uccl_ep.errors import refuse
from uccl_ep.group.group import as_group
from uccl_ep.system.ownership import Owner, in_turn


class ElasticMembers:
    """prepare_members() and switch_members() of an ElasticBuffer. Ours, not DeepEP's."""

    _owner: Owner
    _buffer: Buffer
    _computed: bool  # num_bytes, from the sizes
    _sizes: tuple[int, int, int]  # M, hidden, top-k
    _dispatch: ElasticDispatch
    group: Any
    num_bytes: int
    runtime: Any

    @in_turn("prepare_members")
    def prepare_members(self, group: Any, *, num_bytes: int | None = None, timeout_s: float | None = None) -> None:
        """Begins a change of members while calls go on; as Buffer.prepare_members().

        Args:
            group: of the next members; None: this rank leaves.
            num_bytes: of each next member, a multiple of 2 MiB; None: computed for the next group, where the
                constructor computed it, else as it is.
            timeout_s: how long building may take; None: UCCL_EP_TIMEOUT_S.

        Raises:
            InvalidArgument: a change is under way, or an argument is out of range; nothing was done.
        """
        if num_bytes is None:
            known = group is not None and self._computed
            num_bytes = sizes.buffer_size(as_group(group).size(), *self._sizes) if known else self.num_bytes
        elif isinstance(num_bytes, bool) or num_bytes <= 0 or num_bytes % sizes.GRANULE:
            refuse("num_bytes", num_bytes, "a multiple of 2 MiB", "ElasticBuffer.get_buffer_size_hint gives one.")
        self._buffer.prepare_members(group, num_nvl_bytes=num_bytes, timeout_s=timeout_s)

    @in_turn("switch_members")
    def switch_members(self) -> bool:
        """Ends a change of members at a step that all ranks agree on; as Buffer.switch_members(), with its errors.

        Returns:
            True: rank_idx, num_ranks and the like are those of the next members now, and handles from before refused.
        """
        switched = self._buffer.switch_members()
        if switched:
            self._meet()
        return switched

    def _meet(self) -> None:
        """The attributes of a Buffer with these members."""
        self.group, self.num_bytes, self.runtime = self._buffer.group, self._buffer.num_nvl_bytes, self._buffer.runtime
        self._dispatch = ElasticDispatch(self._buffer, self._sizes[0])
        self.rank_idx, self.num_ranks = self._buffer.rank, self._buffer.group_size
        topology = self._buffer._session.topology
        self.num_rdma_ranks, self.num_nvlink_ranks = topology.num_nodes, max(topology.sizes)
        # Every rank reads what it is sent where it landed: one logical domain, whatever the wires are.
        self.num_scaleout_ranks, self.num_scaleup_ranks = 1, self.num_ranks
        self.scaleout_rank_idx, self.scaleup_rank_idx = 0, self.rank_idx

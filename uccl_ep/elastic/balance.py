"""Expert load balancing in the buffer, as V2.5 has it: weights go to redundant experts, their gradients come back."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch

from uccl_ep import checks
from uccl_ep.buffer import Buffer
from uccl_ep.config import DEFAULT_NUM_SMS, Config
from uccl_ep.device.protocol import EventHandle
from uccl_ep.elastic.base import Region
from uccl_ep.elastic.carrier import Carrier
from uccl_ep.errors import Described, refuse
from uccl_ep.events import EventOverlap
from uccl_ep.group.topology import Topology
from uccl_ep.system.ownership import Owner, in_turn

Tensor = torch.Tensor
Event = EventOverlap[EventHandle]


class Redundant(NamedTuple):
    """A redundant expert: slot `slot` of rank `rank` holds local expert `expert` of rank `owner`."""

    rank: int
    slot: int
    owner: int
    expert: int


def read_mapping(mapping: Tensor, num_local: int, rank: int, topology: Topology) -> list[Redundant]:
    """The slots in use, ascending by rank, then slot; ranks are those of the group.

    Raises:
        InvalidArgument: not int32 [ranks of the group or of this rank's node, slots], an id out of range, or a rank's
            own expert in one of its slots.
    """
    name, node = "redundancy_mapping", topology.members(topology.node_of[rank])
    checks.check_matrix(name, mapping, (torch.int32,))
    if mapping.shape[0] not in (topology.num_ranks, len(node)):
        refuse(name, mapping, f"of one row for each of the {topology.num_ranks} ranks, or for each of a node's")
    domain = list(range(topology.num_ranks)) if mapping.shape[0] == topology.num_ranks else node
    found = []
    for row, ids in enumerate(mapping.tolist()):
        for slot, expert in enumerate(ids):
            if not -1 <= expert < len(domain) * num_local:
                refuse(f"{name}[{row}, {slot}]", expert, f"-1 (empty) or 0 to {len(domain) * num_local - 1}")
            if expert >= 0 and expert // num_local == row:
                refuse(f"{name}[{row}, {slot}]", expert, "an expert of another rank than the slot's")
            if expert >= 0:
                found.append(Redundant(domain[row], slot, domain[expert // num_local], expert % num_local))
    return found


class LoadBalancing:
    """The calls, for EPBuffer. Both are collective over the group, and wait on the host (see Carrier)."""

    _owner: Owner
    _rows: Buffer
    _carrier: Carrier
    _lb_region: Region
    num_lb_bytes: int

    @property
    def lb_storage(self) -> Tensor:
        """uint8 [num_lb_bytes]: the region that redundant experts' weights and gradients lie in."""
        return self._lb_region.storage

    def lb_get_theoretical_num_sms(self) -> int:
        """The SMs of lb_prefetch_weights and lb_reduce_grads when none are named: as many as a dispatch."""
        return DEFAULT_NUM_SMS

    @in_turn("lb_prefetch_weights")
    def lb_prefetch_weights(
        self,
        redundant_expert_weights: Sequence[Tensor] | Tensor,
        expert_weights: Sequence[Tensor] | Tensor,
        redundancy_mapping: Tensor,
        num_sms: int = 0,
        previous_event: EventHandle | None = None,
    ) -> Event:
        """Copies experts' weights into the slots that the mapping gives them; slots without an expert are left alone.

        Args:
            redundant_expert_weights: contiguous [slots, ...] of any dtype in the buffer's region; one or several
                tensors, such as weights and their scales.
            expert_weights: as many, contiguous [L, ...]; bytes of an expert as in its counterpart.
            redundancy_mapping: int32 [ranks, slots], the same on all of these ranks: which expert is in a rank's slot,
                -1 for none. Ranks are a node's, as upstream's (NVLink) domain has it, with experts 0 to ranks * L - 1
                of that node; or all of the group, which upstream does not have.
            num_sms: 0 means lb_get_theoretical_num_sms().
            previous_event: the call starts behind it; None: behind the current stream.

        Returns:
            An event; the current stream is behind the result in any case.

        Raises:
            InvalidArgument: before anything is sent, but for ranks whose mappings differ.
        """
        targets, sources = _listed(redundant_expert_weights), _listed(expert_weights)
        if len(targets) != len(sources) or not sources:
            refuse("expert_weights", Described(f"{len(sources)} tensors for {len(targets)}"), "as many, at least one")
        for target, source in zip(targets, sources, strict=True):
            self._check_pair("redundant_expert_weights", target, "expert_weights", source, redundancy_mapping)
            if len(source) != len(sources[0]):
                refuse("expert_weights", source, f"of {len(sources[0])} experts, as the first one")
        rank, parts = self._rows.rank, [_flat_bytes(source) for source in sources]
        assigned = read_mapping(redundancy_mapping, len(parts[0]), rank, self._rows._session.topology)
        to = torch.zeros(len(parts[0]), self._rows.group_size, dtype=torch.bool)
        for one in assigned:
            if one.owner == rank:
                to[one.expert, one.rank] = True
        own = [one for one in assigned if one.rank == rank]
        wanted = sorted({(one.owner, one.expert) for one in own})
        came = self._carry(parts, to, [owner for owner, _ in wanted], num_sms, previous_event)
        column = 0
        for target, part in zip(targets, parts, strict=True):
            flat = _flat_bytes(target)
            for one in own:
                row = wanted.index((one.owner, one.expert))
                flat[one.slot] = came[row, column : column + part.shape[1]]
            column += part.shape[1]
        return EventOverlap(EventHandle())

    @in_turn("lb_reduce_grads")
    def lb_reduce_grads(
        self,
        redundant_expert_grads: Tensor,
        expert_grads: Tensor,
        redundancy_mapping: Tensor,
        num_sms: int = 0,
        previous_event: EventHandle | None = None,
    ) -> Event:
        """Adds the gradients of redundant experts to those of the experts that they are copies of.

        They are added in f32 one after the other, by ascending rank, then slot: results are the same to the bit in
        every run. (Upstream leaves the order open.)

        Args:
            redundant_expert_grads: f32 [slots, hidden] in the buffer's region; only read.
            expert_grads: f32 [L, hidden], anywhere; added to.
            redundancy_mapping, num_sms, previous_event: as lb_prefetch_weights.

        Returns:
            An event; the current stream is behind the result in any case.

        Raises:
            InvalidArgument: before anything is sent, but for ranks whose mappings differ.
        """
        checks.check_matrix("redundant_expert_grads", redundant_expert_grads, (torch.float32,))
        checks.check_matrix("expert_grads", expert_grads, (torch.float32,))
        names = "redundant_expert_grads", "expert_grads"
        self._check_pair(names[0], redundant_expert_grads, names[1], expert_grads, redundancy_mapping)
        rank, topology = self._rows.rank, self._rows._session.topology
        assigned = read_mapping(redundancy_mapping, len(expert_grads), rank, topology)
        to = torch.zeros(redundancy_mapping.shape[1], topology.num_ranks, dtype=torch.bool)
        for one in assigned:
            if one.rank == rank:
                to[one.slot, one.owner] = True
        mine = [one for one in assigned if one.owner == rank]
        parts = [_flat_bytes(redundant_expert_grads)]
        came = self._carry(parts, to, [one.rank for one in mine], num_sms, previous_event)
        with torch.no_grad():
            for one, row in zip(mine, came.contiguous().view(torch.float32), strict=True):
                expert_grads[one.expert] += row
        return EventOverlap(EventHandle())

    def _carry(
        self, parts: Sequence[Tensor], to: Tensor, senders: list[int], num_sms: int, previous_event: Any
    ) -> Tensor:
        event = checks.event("previous_event", previous_event)
        if event is not None:
            event.current_stream_wait()
        sms = checks.check_int("num_sms", num_sms, 0, 1 << 16) or self.lb_get_theoretical_num_sms()
        expected = [senders.count(rank) for rank in range(self._rows.group_size)]
        return self._carrier.carry("redundancy_mapping", parts, to, expected, Config(sms))

    def _check_pair(self, name: str, target: Any, source_name: str, source: Any, mapping: Any) -> None:
        """A redundant tensor in the region, its counterpart, and a mapping of as many slots."""
        for label, tensor in ((name, target), (source_name, source)):
            if not isinstance(tensor, Tensor) or not tensor.dim() or not tensor.is_contiguous():
                refuse(label, tensor, "contiguous tensors with one row for each expert")
            self._rows._device.check_tensor(label, tensor)
        if not len(source):
            refuse(source_name, source, "of at least one expert")
        if not isinstance(mapping, Tensor) or mapping.dim() != 2 or mapping.shape[1] != len(target):
            refuse("redundancy_mapping", mapping, f"of {len(target)} columns, one for each redundant expert")
        if self._lb_region.offset_of(target) is None:
            hint = "Plan it with BufferAllocator, and pass the plan as lb_allocation_plan_or_num_bytes."
            refuse(name, Described("a tensor elsewhere"), "in this buffer's load-balancing region", hint)
        sizes = [prod(t.shape[1:]) * t.element_size() for t in (target, source)]
        if sizes[0] != sizes[1]:
            refuse(name, Described(f"{sizes[0]} bytes an expert"), f"{sizes[1]}, as {source_name} has")


def _listed(tensors: Sequence[Tensor] | Tensor) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _flat_bytes(tensor: Tensor) -> Tensor:
    """uint8 [rows, bytes of a row]."""
    return tensor.detach().view(len(tensor), prod(tensor.shape[1:])).view(torch.uint8)

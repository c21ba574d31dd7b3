"""A plan before the job: from a job's sizes, settings and its hosts' sysfs trees to all that would be decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from uccl_ep import _native
from uccl_ep.config import combine_config, dispatch_config
from uccl_ep.cost_model.expected_bytes import expect
from uccl_ep.errors import InvalidArgument
from uccl_ep.group.handshake import Hello
from uccl_ep.group.topology import Topology
from uccl_ep.layout.arrangement import Whole, arrange
from uccl_ep.layout.combine_form import CombineForm, by_model, room_for_sums
from uccl_ep.layout.plan import MemoryBill, MemoryPlan, low_latency_layout
from uccl_ep.plan.cautions import find_cautions
from uccl_ep.plan.fill import Agreed, fill, with_traffic
from uccl_ep.plan.record import Choice, GroupPlan
from uccl_ep.settings import Settings
from uccl_ep.sizes import round_up
from uccl_ep.tools.plan.imagine import Job, introduce

_BEFORE = "before the job"
_PRESUMED = "UCCL_EP_MNNVL=1 (presumed of all hosts: NVML can be asked when the job starts)"
_BF16_BYTES = 2
_ALIGN = 128


def make_plan(job: Job, settings: Settings) -> GroupPlan:
    """The plan, with cautions and expected bytes.

    Raises:
        InvalidArgument: sizes that no Buffer takes, or a network that cannot reach all ranks; as the job would say it.
    """
    job.check(_native.MAX_RANKS)
    told = introduce(job, settings)
    refused = next((i for i in told if i.error), None)
    if refused is not None:
        raise InvalidArgument(f"rank {refused.rank} ({refused.hostname}): {refused.error}")
    hosts = [i.host_id for i in told]
    whole = Whole(hosts, [i.domain for i in told], apart=job.shrink, rack_by=_PRESUMED if settings.mnnvl == "1" else "")
    agreed = Agreed(told, settings, arrange(settings, told, whole, 0))
    topology = agreed.topology
    plan = fill(agreed, _BEFORE, memory_of(job, agreed, Whole(hosts).split(settings)))
    rates = [rank.gbps for rank in plan.ranks if rank.gbps]
    slowest = min(rates) if len(rates) == len(plan.ranks) else 0.0
    reduces = False
    if job.load.mode == "low_latency" and topology.num_nodes > 1:
        form = combine_form(job, agreed)
        reduces = form.reduces
        plan = replace(plan, choices=(*plan.choices, Choice("combine", form.name, form.reason, form.over)))
    return with_traffic(find_cautions(plan, agreed), expect(job.load, topology, slowest, reduces))


def combine_form(job: Job, agreed: Agreed) -> CombineForm:
    """The form of low-latency combines, as a Buffer with room for it chooses (low_latency_sums.py)."""
    load, settings = job.load, agreed.settings
    form = room_for_sums(settings, agreed.topology)
    if form.reduces and settings.low_latency_combine == "auto":
        sizes = (load.tokens, load.hidden, load.experts)
        form = by_model(sizes, agreed.topology, settings.low_latency_topk, agreed.fabric.family)
    return form


def memory_of(job: Job, agreed: Agreed, whole: Topology) -> MemoryBill:
    """What a Buffer of this job takes, if it is made as DeepEP's callers do: with the size hints.

    Args:
        whole: the topology that hints are meant for: a cell a node.

    Raises:
        InvalidArgument: more than offsets on the wire can name.
    """
    load, low = job.load, job.load.mode == "low_latency"
    nvl = rdma = 0
    if low:
        layout = low_latency_layout(load.tokens, load.hidden, load.experts, whole, 0, agreed.settings)
        rdma = round_up(layout.bytes(), _ALIGN)
    else:
        row = _BF16_BYTES * load.hidden
        configs = (dispatch_config(job.ranks), combine_config(job.ranks))
        nvl = max(config.get_nvl_buffer_size_hint(row, job.ranks) for config in configs)
        rdma = max(config.get_rdma_buffer_size_hint(row, job.ranks) for config in configs)
    plan = MemoryPlan(agreed.topology, nvl, rdma, low, whole)
    if low and agreed.fabric.pins_memory:
        most = min(rdma, _native.MAX_REGION_BYTES - plan.zero_copy_offset)
        plan.reserve_zero_copy(most, True, agreed.fabric.registers_late, agreed.placement)
    _ = plan.flat_bytes
    return plan.bill(agreed.placement.where, agreed.placement.reason, _on_gpu(agreed.hellos))


def _on_gpu(told: Sequence[Hello]) -> bool:
    return told[0].device != "cpu"

"""How bytes that a NIC has written into a GPU's memory come to be seen no later than the flag that announces them.

The flag lies in the host's memory. The bytes take another way, which has a queue of its own, so whoever has read the
flag may still read what was there before; and every rank of a node reads rows that lie in the GPU of one of them. What
helps depends on the machine: the GPU's own order, a read by the same NIC, the GPU driver's flush, or rows in the host's
memory. (On Hopper the owner's kernels could wait and tell the others; no kernel does.) Bytes that NICs read need none
of it: a kernel that has written staged or zero-copy rows comes before the command that names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uccl_ep.gpu.driver import Facts

WORDS = {
    "none": "no flush",
    "owner": "no flush: only the GPU itself reads what NICs write there",
    "nic_read": "a NIC read before each batch of flags",
    "driver": "the GPU driver's flush before each batch of flags",
}  # by way
_TO_OWNER, _TO_ALL = 100, 200  # CUflushGPUDirectRDMAWritesScope, and what CUDA's attribute of the order says
_HOST_CALL = 1  # CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST
_ORDERED_SINCE = 90  # compute capability; NCCL flushes on older GPUs whatever their attribute says
_READING_FAMILIES = ("verbs",)  # whose lanes can read their own memory through a NIC


@dataclass(frozen=True)
class GpuOrder:
    """What a GPU promises of bytes that NICs write into its memory.

    Attributes:
        scope: whose kernels see them no later than a flag in the host's memory: "none", "owner" (its own) or "all".
        reason: why that is believed.
        no_flush: why its driver cannot make them visible from the proxy; empty: it can.
    """

    scope: str = "none"
    reason: str = "nothing is known of the GPU's order"
    no_flush: str = "nothing is known of its driver"

    @classmethod
    def told(cls, fabric: Mapping[str, Any]) -> GpuOrder:
        """What an Hello says (uccl_ep.fabric.facts)."""
        return cls(*(str(fabric.get(f"gpu_{name}", getattr(cls, name))) for name in ("scope", "reason", "no_flush")))


def order_of(facts: Facts, proxy: str) -> GpuOrder:
    """What is believed of a GPU.

    Args:
        proxy: UCCL_EP_PROXY: a process beside the rank has no context of its GPU.
    """
    if facts.arch.startswith("gfx"):
        return GpuOrder("none", "AMD promises no order of NICs' writes", "ROCm has no call for it")
    capability = int("".join(c for c in facts.arch if c.isdigit()) or 0)
    scope, reason = "none", "CUDA promises no order of NICs' writes for this GPU"
    if facts.coherent_host:
        reason = "rows and flags take different ways where the CPU has a coherent link to the GPU (NVLink-C2C)"
    elif facts.writes_ordering >= _TO_ALL:
        scope, reason = "all", "CUDA says that all GPUs see NICs' writes to this GPU in order"
    elif facts.writes_ordering >= _TO_OWNER and capability >= _ORDERED_SINCE:
        scope, reason = "owner", "CUDA says that this GPU, and no other, sees NICs' writes to it in order"
    elif facts.writes_ordering >= _TO_OWNER:
        reason = f"{facts.arch} is older than the GPUs whose own order is relied upon (sm_{_ORDERED_SINCE})"
    no_flush = ""
    if not facts.flush_options & _HOST_CALL:
        no_flush = "CUDA has no call for it on this GPU"
    elif proxy != "thread":
        no_flush = "the proxy's own process has no context of the GPU: set UCCL_EP_PROXY=thread"
    return GpuOrder(scope, reason, no_flush)


def choose_way(order: GpuOrder, family: str, others_read: bool) -> tuple[str, str]:
    """(one of WORDS, why) for a rank; an empty way: none, so that rows must lie in the host's memory.

    Args:
        others_read: other GPUs of the node read what NICs write into this one's memory.
    """
    if order.scope == "all":
        return "none", order.reason
    if order.scope == "owner" and not others_read:
        return "owner", order.reason
    if family in _READING_FAMILIES:
        return "nic_read", order.reason
    if not order.no_flush:
        return "driver", f"{order.reason}, and {family} has no read of its own memory"
    return "", f"{order.reason}; {family} has no read of its own memory; the driver's flush: {order.no_flush}"

"""Names of DeepEP that uccl_ep has and refuses: whoever calls one is told why, and `refused` on them tells tools."""

from __future__ import annotations

from typing import Any, NoReturn

from uccl_ep.errors import NotSupported

EXPERIMENTAL = "is experimental in DeepEP"
FORKS_CAST = (
    "rows are cast as DeepEP casts them, to e4m3 of x * (448 / amax), and not as the fork does. Leave it out, and cast "
    "with uccl_ep.reference.cast_fp8 where the same bits are wanted"
)
ONE_PATH = "dispatch and combine take whatever wires the ranks' hosts have: call those"


def refusal(name: str, why: str) -> Any:
    """A function or method that raises NotSupported, with both in the message. Its attribute `refused` is `why`."""

    def refuses(*arguments: Any, **keywords: Any) -> NoReturn:
        raise NotSupported(f"{name} is not in uccl_ep: {why}")

    refuses.__name__ = refuses.__qualname__ = name.rpartition(".")[2]
    refuses.__doc__ = f"Not in uccl_ep: {why}.\n\nRaises:\n    NotSupported: always."
    refuses.refused = why  # type: ignore[attr-defined]
    return refuses


def refused_class(name: str, why: str) -> type:
    """A class, for annotations and isinstance, whose construction raises NotSupported."""
    return type(name, (), {"__init__": refusal(name, why), "refused": why, "__doc__": f"Not in uccl_ep: {why}."})


class BranchCalls:
    """What single branches of DeepEP, and uccl's wrapper, add to V1's Buffer."""

    dispatch_pcie = refusal("Buffer.dispatch_pcie", ONE_PATH)
    combine_pcie = refusal("Buffer.combine_pcie", ONE_PATH)
    low_latency_dispatch_rocm = refusal("Buffer.low_latency_dispatch_rocm", ONE_PATH)
    low_latency_combine_rocm = refusal("Buffer.low_latency_combine_rocm", ONE_PATH)
    disable_ll_layered = refusal("Buffer.disable_ll_layered", "a row always crosses the network once for each node")
    reset_rdma_buffer = refusal("Buffer.reset_rdma_buffer", "nothing has to be reset between calls")
    connect_atomic_buffer = refusal("Buffer.connect_atomic_buffer", "a Buffer starts and connects its own proxies")

"""The tables of every UCCL_EP_* variable, by what it concerns, from the one place that reads them: settings.py."""

from __future__ import annotations

from docs.generate.markdown import table
from uccl_ep.settings import DescribedVariable, describe

GROUPS = {
    "Nodes and networks": "RANKS_PER_NODE TRANSPORT INTERFACE NICS PROVIDER",
    "InfiniBand, RoCE and EFA": "QUEUE_PAIRS GID_INDEX SERVICE_LEVEL TRAFFIC_CLASS HOP_LIMIT MTU UDP_SOURCE_PORT "
    "RELAXED_ORDERING",
    "Proxy and what is in flight": "PROXY PROXY_THREADS PIN_CPUS RINGS RING_CAPACITY MAX_IN_FLIGHT MAX_IN_FLIGHT_BYTES",
    "Modes and memory": "LOW_LATENCY_COMBINE LOW_LATENCY_TOPK TIMEOUT_S",
    "Device and kernels": "DEVICE GPU_MEMORY HOST_BLOCKS HOST_THREADS CACHE_DIR",
    "Observing and debugging": "EXPLAIN METRICS_PORT JOB_ID OBSERVE_DIR FLIGHT_RECORDER TRACE SHUFFLE_SEED AS_DEEP_EP",
}
"""Title -> names without their prefix; a test holds that each variable is in one."""


def settings_table() -> str:
    """A heading and a table for each group; a row for each variable."""
    rows = {row.name.removeprefix("UCCL_EP_"): row for row in describe()}
    parts = [f"### {title}\n\n{_table([rows[name] for name in names.split()])}" for title, names in GROUPS.items()]
    return "\n".join(parts)


def _table(rows: list[DescribedVariable]) -> str:
    cells = [
        [f"`{row.name}`", row.help, row.allowed, "" if row.default == "empty" else f"`{row.default}`"] for row in rows
    ]
    return table(["variable", "what it is for", "allowed", "default"], cells)

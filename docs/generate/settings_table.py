"""The tables of every UCCL_EP_* variable, by what it concerns, from the one place that reads them: settings.py."""

from __future__ import annotations

from docs.generate.markdown import table
from uccl_ep.settings import DescribedVariable, describe
from uccl_ep.system.site_settings import NOT_READ, READ

GROUPS = {
    "Nodes and networks": "RANKS_PER_NODE MNNVL TRANSPORT INTERFACE NICS PROVIDER",
    "InfiniBand, RoCE and EFA": "QUEUE_PAIRS GID_INDEX SERVICE_LEVEL TRAFFIC_CLASS HOP_LIMIT MTU UDP_SOURCE_PORT "
    "IB_TIMEOUT IB_RETRY_CNT RELAXED_ORDERING",
    "Proxy and what is in flight": "PROXY PROXY_THREADS PROXY_IDLE PIN_CPUS RINGS RING_CAPACITY "
    "MAX_IN_FLIGHT MAX_IN_FLIGHT_BYTES MAX_IN_FLIGHT_BYTES_ALL",
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


_HOW = {
    "nics": "names by their beginning, `=` for whole names, `^` to leave out, `:1` for a port. `NVSHMEM_HCA_LIST` has "
    "whole names and holds with `NVSHMEM_ENABLE_NIC_PE_MAPPING=1`. Not every host needs every name; EFA and Slingshot "
    "listen to UCCL's only",
    "gid_index": "RoCE ports only; -1: by rule",
    "traffic_class": "",
    "service_level": "on EFA UCCL's only",
    "ib_timeout": "",
    "ib_retry_cnt": "",
    "mnnvl": "NCCL's 0 and NVSHMEM's 1 forbid it; 1 of `USE_MNNVL` and a `NVLINK_DOMAIN_SIZE` above a host's 8 GPUs, "
    "which are DeepEP's hybrid buffer's, ask for it, where `USE_MNNVL` is not 0",
    "interface": "names by their beginning, `=` for whole names, `^` to leave out; for jobs on several hosts",
}


def site_settings_table() -> str:
    """Which of the others' variables give which of ours, and which are not read."""
    rows = []
    for field, how in _HOW.items():
        names = ", ".join(f"`{name}`" for of, name, _ in READ if of == field)
        rows.append([names, f"`UCCL_EP_{field.upper()}`", how])
    others = [[f"`{name}`", ", ".join(f"`{v}`" for v in fine), why] for name, fine, why, _ in NOT_READ]
    given = table(["the first of these that is set", "gives", "how it is read"], rows)
    return f"{given}\nNot read, and said so when set:\n\n{table(['variable', 'except', 'instead'], others)}"

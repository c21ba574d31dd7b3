"""UCCL-EP: expert-parallel dispatch and combine for Mixture-of-Experts models, on any device and any network.

    import uccl_ep as deep_ep

Names are loaded when first used: `import uccl_ep` is cheap and needs neither torch nor a device.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import int64 as topk_idx_t

    from uccl_ep.buffer import Buffer
    from uccl_ep.config import Config
    from uccl_ep.device import EventHandle
    from uccl_ep.errors import (
        InvalidArgument,
        NotSupported,
        PeerLost,
        PeerTimeout,
        SettingsMismatch,
        TransportError,
        UcclEpError,
    )
    from uccl_ep.events import EventOverlap
    from uccl_ep.memory import MemoryBill, memory_bill
    from uccl_ep.thread_group import ThreadGroup, run_ranks

__version__ = "0.1.0"

_HOME = {
    "Buffer": "buffer",
    "Config": "config",
    "EventHandle": "device",
    "EventOverlap": "events",
    "InvalidArgument": "errors",
    "MemoryBill": "memory",
    "NotSupported": "errors",
    "PeerLost": "errors",
    "PeerTimeout": "errors",
    "SettingsMismatch": "errors",
    "ThreadGroup": "thread_group",
    "TransportError": "errors",
    "UcclEpError": "errors",
    "memory_bill": "memory",
    "run_ranks": "thread_group",
}

__all__ = [
    "Buffer",
    "Config",
    "EventHandle",
    "EventOverlap",
    "InvalidArgument",
    "MemoryBill",
    "NotSupported",
    "PeerLost",
    "PeerTimeout",
    "SettingsMismatch",
    "ThreadGroup",
    "TransportError",
    "UcclEpError",
    "memory_bill",
    "run_ranks",
    "topk_idx_t",
]


def __getattr__(name: str) -> Any:
    if name == "topk_idx_t":
        import torch

        return torch.int64
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name))

"""UCCL-EP: expert-parallel dispatch and combine for Mixture-of-Experts models, on any device and any network.

    import uccl_ep as deep_ep          # or leave code as it is: uccl_ep.install_as_deep_ep(), `uccl-ep run`

Names are loaded when first used: `import uccl_ep` is cheap and needs neither torch nor a device.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import int64 as topk_idx_t

    from uccl_ep.buffer import Buffer
    from uccl_ep.config import Config
    from uccl_ep.device.protocol import EventHandle
    from uccl_ep.drop_in import install_as_deep_ep, uninstall_as_deep_ep
    from uccl_ep.elastic import BucketBuffer, BufferAllocator, ElasticBuffer, EPBuffer, EPHandle, HybridEPBuffer
    from uccl_ep.errors import InvalidArgument, NoQuorum, NotSupported, PeerLost, PeerTimeout, SettingsMismatch
    from uccl_ep.errors import TransportError as TransportError
    from uccl_ep.errors import UcclEpError as UcclEpError
    from uccl_ep.events import EventOverlap
    from uccl_ep.group.thread_group import ThreadGroup, run_ranks
    from uccl_ep.layout.plan import MemoryBill, memory_bill

__version__ = "0.1.0"

_NAMES = {
    "buffer": "Buffer",
    "config": "Config",
    "device.protocol": "EventHandle",
    "drop_in": "install_as_deep_ep uninstall_as_deep_ep",
    "elastic": "BucketBuffer BufferAllocator ElasticBuffer EPBuffer EPHandle HybridEPBuffer",
    "errors": "InvalidArgument NoQuorum NotSupported PeerLost PeerTimeout SettingsMismatch TransportError UcclEpError",
    "events": "EventOverlap",
    "layout.plan": "MemoryBill memory_bill",
    "group.thread_group": "ThreadGroup run_ranks",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "BucketBuffer",
    "Buffer",
    "BufferAllocator",
    "Config",
    "EPBuffer",
    "EPHandle",
    "ElasticBuffer",
    "EventHandle",
    "EventOverlap",
    "HybridEPBuffer",
    "InvalidArgument",
    "MemoryBill",
    "NoQuorum",
    "NotSupported",
    "PeerLost",
    "PeerTimeout",
    "SettingsMismatch",
    "ThreadGroup",
    "TransportError",
    "UcclEpError",
    "install_as_deep_ep",
    "memory_bill",
    "run_ranks",
    "topk_idx_t",
    "uninstall_as_deep_ep",
]


def __getattr__(name: str) -> Any:
    if name == "_native":
        return importlib.import_module(f"{__name__}.system.own_python").native_module()
    if name == "topk_idx_t":
        return importlib.import_module("torch").int64
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name))

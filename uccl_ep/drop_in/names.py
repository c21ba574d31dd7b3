"""Which names `deep_ep` and its submodules have, and where in uccl_ep each of them lives.

One table for both forms of the drop-in (the import hook here, the separate distribution in docker/deep_ep). Names are
resolved when they are first used, so `import deep_ep` cannot fail: a broken installation shows as an ImportError from
`from deep_ep import Buffer`, which is what integrators catch.
"""

from __future__ import annotations

import importlib
from collections.abc import MutableMapping
from typing import Any

from uccl_ep import __version__

API_VERSION = "2.1.0"
"""Upstream's release whose V1 and V2 interfaces these names follow."""

VERSION = f"{API_VERSION}+uccl.ep.{__version__}"
"""`deep_ep.__version__`: compares as upstream's release, and says whose code it is."""

_EVENTS = {"EventHandle": "uccl_ep.device.protocol", "EventOverlap": "uccl_ep.events"}

# Module, then name: the module that has it under the same name. Both event classes are in both modules, because
# integrators import them from either (upstream has dropped one of the four, and so turned Megatron's path off).
MODULES: dict[str, dict[str, str]] = {
    "deep_ep": {
        "Buffer": "uccl_ep.buffer",
        "Config": "uccl_ep.config",
        "EPHandle": "uccl_ep.elastic",
        "EPBuffer": "uccl_ep.elastic",
        "ElasticBuffer": "uccl_ep.elastic",
        "HybridEPBuffer": "uccl_ep.elastic",
        "topk_idx_t": "uccl_ep",
        **_EVENTS,
    },
    "deep_ep.buffer": {"Buffer": "uccl_ep.buffer", "Config": "uccl_ep.config", **_EVENTS},
    "deep_ep.hybrid_ep_buffer": {
        "HybridEPBuffer": "uccl_ep.elastic.hybrid",
        "indices_to_map": "uccl_ep.elastic.hybrid",
    },
    "deep_ep.utils": _EVENTS,
    "deep_ep_cpp": {"Config": "uccl_ep.config", "EventHandle": "uccl_ep.device.protocol", "topk_idx_t": "uccl_ep"},
}

PACKAGES = frozenset(name.rpartition(".")[0] for name in MODULES if "." in name)
TOP_LEVEL = frozenset(name.partition(".")[0] for name in MODULES)


def fill(module: str, namespace: MutableMapping[str, Any]) -> None:
    """Gives a module's namespace its names: `__getattr__`, `__dir__`, `__all__` and, at the top, `__version__`.

    Args:
        module: a key of `MODULES`.
        namespace: the module's `globals()`.
    """
    names = MODULES[module]
    submodules = [name.rpartition(".")[2] for name in MODULES if name.rpartition(".")[0] == module]

    def resolve(name: str) -> Any:
        if name in submodules:  # `deep_ep.utils.EventOverlap` without an import of `deep_ep.utils`
            return importlib.import_module(f"{module}.{name}")
        if name not in names:
            raise AttributeError(
                f"module {module!r} has no attribute {name!r} (uccl_ep {__version__} stands in for it)"
            )
        try:
            return namespace.setdefault(name, getattr(importlib.import_module(names[name]), name))
        except ImportError:
            raise
        except Exception as error:  # integrators catch ImportError only, and then go on without
            raise ImportError(f"{module}.{name}: {names[name]} cannot be loaded: {error}") from error

    namespace["__getattr__"] = resolve
    namespace["__all__"] = sorted(names)
    namespace["__dir__"] = lambda: sorted({*namespace, *names, *submodules})
    if "." not in module:
        namespace["__version__"] = VERSION

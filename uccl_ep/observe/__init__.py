"""Looking at a running job from outside: `uccl-ep top`, and metrics for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uccl_ep.observe.metrics import MetricsServer, serve_metrics

__all__ = ["MetricsServer", "serve_metrics"]


def __getattr__(name: str) -> Any:  # ranks import this package and serve nothing
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from uccl_ep.observe import metrics

    return getattr(metrics, name)

"""All checks, in the order in which they run: cheap ones about names first, ranks' calls later, masks last."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from uccl_ep.errors import refuse
from uccl_ep.tools.conformance.registry import CHECKS, Check

FILES = (
    "surface",
    "throughput_dispatch",
    "throughput_combine",
    "low_latency_dispatch",
    "low_latency_combine",
    "batches",
    "elastic_dispatch",
    "elastic_combine",
    "balance",
    "masks",
)
"""Files of this folder that have checks, in the order of the table."""


def chosen(only: Sequence[str] = ()) -> list[Check]:
    """The checks whose name has one of `only` in it; all of them when it is empty.

    Raises:
        InvalidArgument: an entry of `only` is in no name.
    """
    for file in FILES:
        importlib.import_module(f"uccl_ep.tools.conformance.{file}")  # registers its checks
    # Whoever imported one of them before has had its checks registered first.
    checks = sorted(CHECKS, key=lambda check: FILES.index(check.body.__module__.rpartition(".")[2]))
    for part in only:
        if not any(part in check.name for check in checks):
            names = ", ".join(check.name for check in checks)
            refuse("--only", part, "a part of a check's name", f"The checks are {names}.")
    return [check for check in checks if not only or any(part in check.name for part in only)]

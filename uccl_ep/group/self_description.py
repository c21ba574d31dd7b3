"""What a rank says of itself that may differ between ranks without harm to correctness, so that it can be
shown where they do.

Carried in the Hello as plain data; what comes from another rank is read field by field, and nothing else is
believed.
"""

from __future__ import annotations

import functools
import os
import platform
import resource
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from uccl_ep.settings import PREFIX, Settings

UNLIMITED = -1
# Settings that are a rank's own business, or that start-up compares by itself (session.py).
_OWN = frozenset(
    "pin_cpus nics interface cache_dir explain device shuffle_seed gid_index as_deep_ep flight_recorder site".split()
)


@dataclass(frozen=True)
class SelfDescription:
    """A rank as it describes itself.

    Attributes:
        num_cpus: that its process may run on; 0: it has not said. pin_cpus: of its proxy threads.
        proxy_threads: how many. locked_bytes: it may lock in memory; UNLIMITED.
        kernel, python, torch: versions. settings: UCCL_EP_* values by name, as text.
        suggested_cpus: near its GPU and nobody else's (before a job only).
    """

    num_cpus: int = 0
    pin_cpus: tuple[int, ...] = ()
    proxy_threads: int = 1
    locked_bytes: int = UNLIMITED
    kernel: str = ""
    python: str = ""
    torch: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    suggested_cpus: tuple[int, ...] = ()

    def plain(self) -> dict[str, Any]:
        """For an Hello."""
        return asdict(self)


@functools.cache
def installed_version(distribution: str) -> str:
    """Of a distribution; "" where it is not installed as one. Reading it takes milliseconds, so once for each."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def describe_self(settings: Settings) -> SelfDescription:
    """This rank's self_description."""
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    compared = {name: value for name, value in asdict(settings).items() if name not in _OWN}
    return SelfDescription(
        num_cpus=len(os.sched_getaffinity(0)),
        pin_cpus=settings.pin_cpus,
        proxy_threads=settings.proxy_threads,
        locked_bytes=UNLIMITED if soft == resource.RLIM_INFINITY else soft,
        kernel=platform.release(),
        python=platform.python_version(),
        torch=installed_version("torch"),
        settings=tuple((PREFIX + name.upper(), str(value)) for name, value in sorted(compared.items())),
    )


def read_portrait(values: Mapping[str, Any]) -> SelfDescription:
    """What another rank said; defaults for whatever it did not say in the form that is known here."""
    default = SelfDescription()
    pairs = values.get("settings")
    named = [pair for pair in pairs if _is_pair(pair)] if isinstance(pairs, (list, tuple)) else []
    return SelfDescription(
        num_cpus=_number(values.get("num_cpus"), default.num_cpus),
        pin_cpus=_numbers(values.get("pin_cpus")),
        proxy_threads=_number(values.get("proxy_threads"), default.proxy_threads),
        locked_bytes=_number(values.get("locked_bytes"), default.locked_bytes),
        kernel=_text(values.get("kernel")),
        python=_text(values.get("python")),
        torch=_text(values.get("torch")),
        settings=tuple((pair[0], pair[1]) for pair in named),
        suggested_cpus=_numbers(values.get("suggested_cpus")),
    )


def _number(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _numbers(values: object) -> tuple[int, ...]:
    if not isinstance(values, (list, tuple)):
        return ()
    return tuple(value for value in values if isinstance(value, int) and not isinstance(value, bool))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _is_pair(value: object) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(isinstance(part, str) for part in value)

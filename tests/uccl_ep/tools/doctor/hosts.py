"""Machines for the doctor's tests: recorded sysfs trees, /proc files, libraries and drivers that say what was set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.uccl_ep.fabric.machines import Recorded
from uccl_ep.tools.doctor.host import Host
from uccl_ep.tools.doctor.record import Answer, Finding

GIB = 1 << 30
UNLIMITED = (-1, -1)


class Library:
    """Stands for an opened shared library: each attribute is a function that gives a number."""

    def __init__(self, **answers: int) -> None:
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        if name not in self._answers:
            raise AttributeError(name)

        class Function:
            restype: Any = None

            def __call__(self, *arguments: Any) -> int:
                return value

        value = self._answers[name]
        return Function()


def present(name: str) -> Library:
    """Every library is there."""
    return Library(fi_version=1 << 16 | 22, hsa_amd_portable_export_dmabuf=0)


def absent(name: str) -> Any:
    """None is."""
    raise OSError(f"{name}: cannot open shared object file")


def host(tmp_path: Path, recorded: Recorded | None = None, proc: dict[str, str] | None = None, **changes: Any) -> Host:
    """A machine below `tmp_path`, without a variable set, with libraries, unlimited resources and four CPUs.

    Args:
        recorded: its sysfs, which tests share; none: an empty one that the test may change.
        proc: files below /proc, by path.
    """
    for name, text in (proc or {}).items():
        path = tmp_path / "proc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    values: dict[str, Any] = {
        "sys": changes.get("sys") or (recorded.tree() if recorded else Recorded().write(tmp_path / "sys")),
        "proc": str(tmp_path / "proc"),
        "dev": str(tmp_path / "dev"),
        "boot": str(tmp_path / "boot"),
        "environment": {},
        "load": present,
        "probe": lambda kind: {"error": "no driver here"},
        "networks": dict,
        "limits": dict,
        "cpus": lambda: frozenset(range(4)),
        "rlimit": lambda resource: UNLIMITED,
    }
    return Host(**{**values, **changes})


class Live(Host):
    """The same machine, examined as if it were this one: its devices are asked."""

    @property
    def recorded(self) -> bool:
        return False


def live(tmp_path: Path, recorded: Recorded | None = None, proc: dict[str, str] | None = None, **changes: Any) -> Host:
    """See `host`; its sysfs is its own, and the test may change it."""
    made = host(tmp_path, None, proc, sys=(recorded or Recorded()).write(tmp_path / "sys"), **changes)
    return Live(**{name: getattr(made, name) for name in Host.__dataclass_fields__})


def told(answer: Answer | Finding) -> str:
    """Its state."""
    return answer.state

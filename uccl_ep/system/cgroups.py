"""Memory and CPU time that a container or a batch system allows this process: cgroups of both versions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_V1_NO_LIMIT = 1 << 60  # cgroup v1 writes "no limit" as a huge number


@dataclass(frozen=True)
class Cgroups:
    """The limits of this process.

    Attributes:
        proc, sys: where the two file systems are mounted; a recorded tree has them elsewhere.
    """

    proc: str = "/proc"
    sys: str = "/sys"

    def memory_limit(self) -> int:
        """Bytes that the cgroup allows; 0: no limit is set, or none can be seen.

        Raises:
            OSError: a file is there and cannot be read. So do the other methods.
        """
        text = self._nearest("memory", "memory.max", "memory.limit_in_bytes")
        number = int(text) if text.isdecimal() else 0
        return number if number < _V1_NO_LIMIT else 0

    def cpu_limit(self) -> float:
        """CPUs' worth of time that the cgroup allows; 0.0: no limit is set, or none can be seen."""
        both = self._nearest("cpu", "cpu.max", "cpu.cfs_quota_us").split()
        if not both or not both[0].isdecimal():
            return 0.0
        period = both[1] if len(both) > 1 else self._nearest("cpu", "cpu.max", "cpu.cfs_period_us")
        return int(both[0]) / int(period) if period.isdecimal() and int(period) else 0.0

    def _nearest(self, controller: str, v2_file: str, v1_file: str) -> str:
        """The nearest limit that is set for this process, as its file has it; empty: none can be seen."""
        for folder, version in self._folders(controller):
            text = _text(Path(self.sys) / "fs/cgroup" / folder / (v2_file if version == 2 else v1_file))
            if text and not text.startswith(("max", "-1")):
                return text
        return ""

    def _folders(self, controller: str) -> Iterator[tuple[str, int]]:
        """(folder under the cgroup root, version), from this process's own upwards: any level may have the limit."""
        for line in _text(Path(self.proc) / "self/cgroup").splitlines():
            number, names, path = (line.split(":", 2) + ["", ""])[:3]
            if number == "0" and not names:
                prefix, version = "", 2
            elif controller in names.split(","):
                prefix, version = names, 1
            else:
                continue
            parts = [part for part in path.split("/") if part and part != ".."]
            for depth in range(len(parts), -1, -1):
                yield "/".join(filter(None, [prefix, *parts[:depth]])), version


def _text(path: Path) -> str:
    """The file's contents, stripped; empty where there is no such file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""

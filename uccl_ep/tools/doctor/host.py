"""What the checks look at: this machine, or a recorded sysfs tree, behind one object that tests fill as they like."""

from __future__ import annotations

import ctypes
import functools
import os
import resource
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uccl_ep.errors import InvalidArgument
from uccl_ep.fabric.facts import Facts, Limits, Probes, gather, limits_of_this_host, networks_of_this_host
from uccl_ep.fabric.gids import Networks
from uccl_ep.fabric.registration import IN_HOST_MEMORY
from uccl_ep.fabric.sysfs import Machine, read_machine
from uccl_ep.fabric.verbs_devices import Discovery, discover
from uccl_ep.settings import Settings
from uccl_ep.tools.doctor import gpu_probe

NVIDIA, AMD, AMAZON, MELLANOX = 0x10DE, 0x1002, 0x1D0F, 0x15B3
_CAP_IPC_LOCK = 14  # its holder may lock any amount of memory


@dataclass(frozen=True)
class Pci:
    """A PCI function: address and identity; 0 where a file does not say."""

    address: str
    vendor: int
    device: int
    pci_class: int  # the upper 16 of its 24 bits


@dataclass
class Host:
    """A machine as the checks see it.

    Attributes:
        sys, proc, dev, boot: roots of those trees.
        environment: of the process.
        load: opens a shared library; raises OSError.
        probe: asks the GPUs of "cuda" or "hip"; see `gpu_probe.run`.
        networks, limits, discover: see `fabric.facts` and `fabric.verbs_devices`; of this machine.
        which: the path of a program, or None.
    """

    sys: str = "/sys"
    proc: str = "/proc"
    dev: str = "/dev"
    boot: str = "/boot"
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    load: Callable[[str], Any] = ctypes.CDLL
    probe: Callable[[str], dict[str, Any]] = gpu_probe.run
    networks: Callable[[], Networks] = networks_of_this_host
    limits: Callable[[], Limits] = limits_of_this_host
    discover: Callable[[], Discovery] = discover
    cpus: Callable[[], frozenset[int]] = lambda: frozenset(os.sched_getaffinity(0))
    which: Callable[[str], str | None] = shutil.which
    rlimit: Callable[[int], tuple[int, int]] = resource.getrlimit

    @property
    def recorded(self) -> bool:
        """NICs and GPUs are those of a tree, so nothing of this machine's devices is to be asked."""
        return self.sys != "/sys"

    # ---- files -------------------------------------------------------------------------------------------------------

    def text(self, path: str) -> str:
        """A file's contents, stripped; raises OSError."""
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()

    def text_or(self, path: str, default: str = "") -> str:
        """The same; a file that is not there is `default`. One that cannot be read raises OSError."""
        try:
            return self.text(path)
        except (FileNotFoundError, NotADirectoryError):
            return default

    def has(self, path: str) -> bool:
        """Whether something is there."""
        return os.path.exists(path)

    def may_use(self, path: str) -> bool:
        """Whether this process may read and write a device file."""
        return os.access(path, os.R_OK | os.W_OK)

    # ---- what is there -----------------------------------------------------------------------------------------------

    @functools.cached_property
    def machine(self) -> Machine:
        """GPUs and NICs as sysfs has them."""
        return read_machine(self.sys)

    @functools.cached_property
    def pci(self) -> tuple[Pci, ...]:
        """All PCI functions that can be seen."""
        folder = Path(self.sys) / "bus/pci/devices"
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            return ()
        numbers = [[_hex(folder / name / file) for file in ("vendor", "device", "class")] for name in names]
        return tuple(Pci(name, v, d, c >> 8) for name, (v, d, c) in zip(names, numbers, strict=True))

    def gpus_of(self, vendor: int) -> list[str]:
        """PCI addresses of a vendor's GPUs."""
        own = {function.address for function in self.pci if function.vendor == vendor}
        return [gpu.address for gpu in self.machine.gpus if gpu.address in own]

    @functools.cached_property
    def cuda(self) -> dict[str, Any]:
        """What NVIDIA's driver says of its GPUs."""
        return self._probed("cuda")

    @functools.cached_property
    def hip(self) -> dict[str, Any]:
        """What AMD's driver says of its GPUs."""
        return self._probed("hip")

    def _probed(self, kind: str) -> dict[str, Any]:
        return {"error": "not asked: a recorded tree is judged"} if self.recorded else self.probe(kind)

    # ---- what is set -------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _settings(self) -> tuple[Settings, tuple[str, ...], str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                settings, problem = Settings.from_environment(self.environment), ""
            except InvalidArgument as error:
                settings, problem = Settings(), str(error)
        return settings, tuple(str(w.message) for w in caught), problem

    @property
    def settings(self) -> Settings:
        """UCCL_EP_* as a job would read them; defaults where one is refused (`settings_problem`)."""
        return self._settings[0]

    @property
    def settings_warnings(self) -> tuple[str, ...]:
        """Unknown names."""
        return self._settings[1]

    @property
    def settings_problem(self) -> str:
        """Why the variables are refused; empty: they are not."""
        return self._settings[2]

    def facts(self, gpu: str = "") -> Facts:
        """What a rank on that GPU (empty: on the CPU) would tell of its network; raises InvalidArgument."""
        nothing: dict[str, list[str]] = {}
        probes = Probes(
            root=self.sys,
            can_load=self.can_load,
            networks=(lambda: nothing) if self.recorded else self.networks,
            limits=dict if self.recorded else self.limits,
            cpus=self.cpus,
        )
        return gather(self.settings, gpu, lambda nics: IN_HOST_MEMORY, probes)

    # ---- libraries and limits ----------------------------------------------------------------------------------------

    def can_load(self, name: str) -> bool:
        """Whether a shared library opens."""
        return self.why_not(name) == ""

    def why_not(self, name: str) -> str:
        """Why a shared library does not open; empty: it does."""
        try:
            self.load(name)
        except OSError as error:
            return str(error) or "it cannot be loaded"
        return ""

    def loaded_from(self, name: str) -> str:
        """The file that an opened library came from; its name where that cannot be seen."""
        stem = name.split(".so")[0]
        with_paths = [line.split(None, 5) for line in self.text_or(f"{self.proc}/self/maps").splitlines()]
        for parts in with_paths:
            if len(parts) == 6 and os.path.basename(parts[5]).startswith(stem + "."):
                return parts[5]
        return name

    def locks_any_memory(self) -> bool:
        """Whether the locked-memory limit does not hold for this process."""
        for line in self.text_or(f"{self.proc}/self/status").splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_IPC_LOCK & 1)
        return False


def _hex(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii", errors="replace").strip(), 16)
    except (OSError, ValueError):
        return 0

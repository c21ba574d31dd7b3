"""The machine of `machine/` for Python: built when it is first asked for, driven through ctypes.

It knows streams, events and host threads as numbers; `executor.py` says what they are in the fake GPU.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
SOURCES = Path(__file__).resolve().parent / "machine"
FLAGS = (
    *("-std=c++20", "-O3", "-g", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Werror"),
    *(
        "-fno-strict-aliasing",
        "-ffp-contract=off",
    ),  # kernels' memory has no types here; rounding is part of the contract
)
KINDS = {"": 0, "device": 1, "pinned": 2, "tensor": 3, "shared": 4}
NEVER = (1 << 32) - 1  # of Machine's `lag`
_HEAD = 17
_MAX_WARPS = 1 << 14


@dataclass(frozen=True)
class Trips:
    """How often lanes wait for memory, one thing behind the other.

    Attributes:
        away, wide, line, near: the lane that waits longest uses what loads have brought that were on their way
            together. One of them was of another device's memory; else one was of 16 bytes; else one of a line of 128
            bytes that its block had not read yet; else none.
        host, flag: different words of pinned memory, and of other memory, that the lane with most reads with an order.
        fence: releases to the system of the lane with most.
    """

    away: int = 0
    wide: int = 0
    line: int = 0
    near: int = 0
    host: int = 0
    flag: int = 0
    fence: int = 0


@dataclass(frozen=True)
class Counts:
    """What one launch did. Accesses are of 16 bytes of global memory: those of the busiest lane, and of each warp's."""

    kernel: str
    grid: int
    warps: int  # a block
    instructions: int
    busiest_lane16: int
    host_reads: int  # sectors of 32 bytes of pinned memory that a warp read with an order; again counts once
    warp16: list[int]
    loaded: int = 0  # bytes of global memory, by loads of 16 bytes
    stored: int = 0  # bytes of global memory, by plain stores
    loaded_away: int = 0  # of those, of other devices
    stored_away: int = 0
    trips: Trips = Trips()
    plain_host_reads: int = (
        0  # as host_reads, by loads without an order of up to 8 bytes: words, where rows lie elsewhere
    )


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(_build()))
    pointer, number, text = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_char_p
    for name, result, arguments in (
        ("open", pointer, (number, ctypes.c_uint32, *[ctypes.c_bool] * 2, *[ctypes.c_uint32] * 3, number)),
        ("close", None, (pointer,)),
        ("free", None, (pointer,)),
        ("load", pointer, (pointer, text)),
        ("launch", pointer, (pointer, text, pointer, text, number, pointer, number)),
        ("snapshot", ctypes.c_uint32, (pointer, number)),
        ("record", ctypes.c_uint32, (pointer, ctypes.c_uint32)),
        ("wait", None, (pointer, ctypes.c_uint32, ctypes.c_uint32)),
        ("host_learns", None, (pointer, number, ctypes.c_uint32)),
        ("hosts_meet", None, (pointer,)),
        ("release", None, (pointer, ctypes.c_uint32)),
        ("region", None, (pointer, number, number, ctypes.c_uint32, ctypes.c_uint32)),
        ("tensor", None, (pointer, number, number)),
        ("flush", None, (pointer, ctypes.c_uint32)),
        ("occupy", None, (pointer, ctypes.c_uint32, ctypes.c_uint32)),
        ("mutate", pointer, (pointer, text, ctypes.c_uint32, text)),
        ("executed", number, (pointer, text, pointer, number)),
    ):
        function = getattr(library, f"ptx_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def _build() -> Path:
    """Compiles what has changed since the last time; processes take turns."""
    files = sorted(SOURCES.iterdir())
    digest = hashlib.sha256(b"".join(f.read_bytes() for f in files) + repr(FLAGS).encode()).hexdigest()[:16]
    folder = ROOT / "build/ptx"
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"machine-{digest}{sysconfig.get_config_var('SHLIB_SUFFIX')}"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            parts = {f: made.with_suffix(f".{f.stem}.o") for f in files if f.suffix == ".cpp"}
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(lambda part: _compile("-c", "-o", str(part[1]), str(part[0])), parts.items()))
            fresh = made.with_suffix(".new")
            _compile("-shared", "-o", str(fresh), *map(str, parts.values()))
            for part in parts.values():
                part.unlink()
            fresh.replace(made)
    return made


def _compile(*arguments: str) -> None:
    subprocess.run([*os.environ.get("CXX", "c++").split(), *FLAGS, *arguments], check=True, timeout=300)


class MachineError(Exception):
    """A kernel did what PTX does not allow, or what no GPU would have finished."""


class Machine:
    """A GPU, or several, as far as kernels see them.

    Args:
        seed: of the order in which lanes take turns.
        preempt: a lane gives way after one in so many instructions that order memory; 0: never.
        judge: whether accesses without order are found; without it kernels run several times faster.
        count: whether trips and words that lanes wait for are counted.
        lag: turns of lanes from when one has looked at what a NIC has written into "shared" memory until it sees that:
            on the GPU that the memory is of, and on others. NEVER: not before the flush.
        shared_bytes: shared memory of a processor.
        patience_s: how long blocks may have no room while all that run wait.
    """

    def __init__(
        self,
        seed: int = 1,
        preempt: int = 4,
        judge: bool = True,
        count: bool = True,
        lag: tuple[int, int] = (0, 0),
        shared_bytes: int = 228 << 10,
        patience_s: float = 4.0,
    ) -> None:
        self._calls = _library()
        self._machine: int | None = self._calls.ptx_open(
            seed, preempt, judge, count, *lag, shared_bytes, int(patience_s * 1e9)
        )

    def close(self) -> None:
        """Ends it; nothing may be running. Also when nobody holds it, as a launch does. Idempotent."""
        machine, self._machine = self._machine, None
        if machine is not None:
            self._calls.ptx_close(machine)

    __del__ = close

    def load(self, program: str) -> None:
        """Takes kernels as `lower` wrote them; one that it has by name already is left out."""
        self._checked(self._calls.ptx_load(self._machine, program.encode()))

    def launch(self, kernel: str, shape: tuple[int, ...], args: bytes) -> Counts:
        """Runs a kernel to its end.

        Args:
            kernel: its name.
            shape: blocks, lanes a block, bytes of shared memory, registers of a lane, stream, device, snapshot, GPU,
                its SMs.
            args: its argument struct.

        Raises:
            MachineError: what it did wrong, and where.
        """
        counts = (ctypes.c_uint64 * (_HEAD + _MAX_WARPS))()
        given = (ctypes.c_uint32 * len(shape))(*shape)
        self._checked(
            self._calls.ptx_launch(self._machine, kernel.encode(), given, args, len(args), counts, _MAX_WARPS)
        )
        grid, warps, instructions, busiest, host_reads, *moved_and_trips = counts[:_HEAD]
        of_warps = counts[_HEAD : _HEAD + grid * warps]
        loaded, stored, loaded_away, stored_away, *trips, plain = moved_and_trips
        return Counts(
            kernel,
            grid,
            warps,
            instructions,
            busiest,
            host_reads,
            of_warps,
            loaded,
            stored,
            loaded_away,
            stored_away,
            Trips(*trips),
            plain,
        )

    def snapshot(self, thread: int) -> int:
        """What a host thread knows by now, as an event; to be released."""
        return self._calls.ptx_snapshot(self._machine, thread)

    def record(self, stream: int) -> int:
        """What a stream's kernels did by now, as an event; to be released."""
        return self._calls.ptx_record(self._machine, stream)

    def wait(self, stream: int, event: int) -> None:
        """A stream goes on behind an event."""
        self._calls.ptx_wait(self._machine, stream, event)

    def host_learns(self, thread: int, event: int) -> None:
        """A host thread has waited for an event."""
        self._calls.ptx_host_learns(self._machine, thread, event)

    def hosts_meet(self) -> None:
        """Host threads have met in a barrier."""
        self._calls.ptx_hosts_meet(self._machine)

    def release(self, event: int) -> None:
        """An event will not be asked for again."""
        self._calls.ptx_release(self._machine, event)

    def region(self, address: int, num_bytes: int, kind: str, owner: int = 0) -> None:
        """Memory that kernels may use, by KINDS, and the device that it is of, 0: no matter which; "" ends it."""
        if num_bytes:
            self._calls.ptx_region(self._machine, address, num_bytes, KINDS[kind], owner)

    def tensor(self, address: int, num_bytes: int) -> None:
        """Memory of a tensor, which may be known already."""
        if num_bytes:
            self._calls.ptx_tensor(self._machine, address, num_bytes)

    def flush(self, owner: int) -> None:
        """What NICs have written into a device's memory so far is seen by all."""
        self._calls.ptx_flush(self._machine, owner)

    def occupy(self, gpu: int, num_sms: int) -> None:
        """So many of a GPU's processors are full of another process's kernels from now on."""
        self._calls.ptx_occupy(self._machine, gpu, num_sms)

    def mutate(self, kernel: str, instruction: int, how: str) -> None:
        """Changes how an instruction orders memory: "relax", "weaken", "narrow", "remove"; "" undoes it.

        Raises:
            MachineError: that is no change of this instruction.
        """
        self._checked(self._calls.ptx_mutate(self._machine, kernel.encode(), instruction, how.encode()))

    def executed(self, kernel: str) -> list[int]:
        """How often lanes executed each instruction of a kernel."""
        length = self._calls.ptx_executed(self._machine, kernel.encode(), None, 0)
        counts = (ctypes.c_uint64 * length)()
        self._calls.ptx_executed(self._machine, kernel.encode(), counts, length)
        return list(counts)

    def _checked(self, message: Any) -> None:
        if message:
            text = ctypes.string_at(message).decode()
            self._calls.ptx_free(message)
            raise MachineError(text)

"""The ring benchmark's native parts for Python: structs, and the host library, compiled where it runs."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from ctypes import POINTER, Structure, byref, c_int, c_uint32, c_uint64, c_void_p
from pathlib import Path

from uccl_ep.errors import UcclEpError

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ("bench_ring_producer", "bench_clock_answers")
_LIMIT_S = 120  # of compiling the host library


class RingView(Structure):
    """proxy/ring/layout.h; addresses as producers see them."""

    _fields_ = (
        ("slots", c_uint64),
        ("head", c_uint64),
        ("cached_tail", c_uint64),
        ("cached_done", c_uint64),
        ("tail", c_uint64),
        ("done", c_uint64),
        ("capacity", c_uint32),
        ("unused", c_uint32),
    )


class RingBenchArgs(Structure):
    """bench/device/ring_args.h."""

    _fields_ = (
        ("rings", c_uint64),
        ("abort", c_uint64),
        ("refused", c_uint64),
        ("round_trips", c_uint64),
        ("timeout_ns", c_uint64),
        ("interval", c_uint64),
        ("num_rings", c_uint32),
        ("width", c_uint32),
        ("pushes", c_uint32),
        ("stamped", c_uint32),
    )


class ClockBenchArgs(Structure):
    """bench/device/ring_args.h."""

    _fields_ = (
        ("question", c_uint64),
        ("answer", c_uint64),
        ("result", c_uint64),
        ("abort", c_uint64),
        ("timeout_ns", c_uint64),
        ("rounds", c_uint64),
    )


class ConsumerPlan(Structure):
    """bench/device/ring_host.h."""

    _fields_ = (
        ("rings", c_void_p),
        ("commands", c_void_p),
        ("samples", c_void_p),
        ("most_samples", c_uint64),
        ("timeout_ns", c_uint64),
        ("num_rings", c_uint32),
        ("capacity", c_uint32),
        ("num_threads", c_uint32),
        ("sample_every", c_uint32),
    )


class ConsumerReport(Structure):
    """bench/device/ring_host.h."""

    _fields_ = (
        ("taken", c_uint64),
        ("first_ns", c_uint64),
        ("last_ns", c_uint64),
        ("numbers", c_uint64),
        ("weighted", c_uint64),
        ("num_samples", c_uint64),
    )


RING_HEADER_BYTES = 256
_STRUCTS = (RingBenchArgs, ClockBenchArgs, ConsumerPlan, ConsumerReport, RingView)


def compile_host_library(folder: Path) -> Path:
    """ring_host.cpp as a shared library in `folder`, with CXX or the machine's compiler.

    Raises:
        UcclEpError: no compiler, or its error text.
    """
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise UcclEpError("the ring benchmark needs a C++20 compiler: none found (c++, g++, clang++); set CXX")
    target = folder / "libring_host.so"
    source = ROOT / "bench" / "device" / "ring_host.cpp"
    command = [compiler, "-std=c++20", "-O2", "-shared", "-fPIC", "-pthread", "-o", str(target), str(source)]
    command += [f"-I{path}" for path in (ROOT, ROOT / "proxy")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    if done.returncode != 0:
        raise UcclEpError(
            f"could not compile the ring benchmark's host side: {' '.join(command)}\n{done.stderr[-4000:]}"
        )
    return target


class HostLibrary:
    """ring_host.cpp, loaded. Calls release the GIL.

    Raises:
        UcclEpError: the library's structs are not those of this file.
    """

    def __init__(self, path: Path) -> None:
        self._native = ctypes.CDLL(str(path))
        self._native.bench_consumers_start.restype = c_void_p
        self._native.bench_consumers_start.argtypes = [POINTER(ConsumerPlan)]
        self._native.bench_consumers_join.argtypes = [c_void_p, POINTER(ConsumerReport)]
        self._native.bench_consumers_join.restype = c_int
        self._native.bench_ask.restype = c_uint64
        self._native.bench_ask.argtypes = [c_void_p, c_void_p, c_void_p, c_uint64, c_uint64]
        self._native.bench_produce_on_host.argtypes = [POINTER(RingBenchArgs), c_uint32, c_uint32]
        self._native.bench_answer_on_host.argtypes = [POINTER(ClockBenchArgs)]
        sizes = (c_uint64 * 6)()
        self._native.bench_sizes(sizes)
        here = [ctypes.sizeof(struct) for struct in _STRUCTS] + [RING_HEADER_BYTES]
        if list(sizes) != here:
            raise UcclEpError(f"the ring benchmark's structs differ: native {list(sizes)}, Python {here} bytes")

    def start_consumers(self, plan: ConsumerPlan) -> int:
        """Starts threads; what `plan` points at must live until join_consumers has returned."""
        return int(self._native.bench_consumers_start(byref(plan)))

    def join_consumers(self, consumers: int) -> tuple[bool, ConsumerReport]:
        """(every command came in time, what was seen)."""
        report = ConsumerReport()
        in_time = self._native.bench_consumers_join(consumers, byref(report))
        return bool(in_time), report

    def ask(self, question: int, answer: int, samples: int, rounds: int, timeout_ns: int) -> int:
        """How many questions the other clock answered in time; fills u64 [rounds][3]."""
        return int(self._native.bench_ask(question, answer, samples, rounds, timeout_ns))

    def produce(self, args: RingBenchArgs, warps: int, threads: int) -> None:
        """The producer kernel as host threads."""
        self._native.bench_produce_on_host(byref(args), warps, threads)

    def answer(self, args: ClockBenchArgs) -> None:
        """The clock kernel on the calling thread."""
        self._native.bench_answer_on_host(byref(args))

"""All kernels for one processor: from the cache where they are, else compiled, several at a time, with progress."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import uccl_ep
from uccl_ep import _native
from uccl_ep.gpu.cache import KernelCache, Obtained
from uccl_ep.gpu.compiler import Code, Compiler, Program, RuntimeCompiler, find_programs, flags, include_root, source_of

QUIET_S = 1.0  # compiling that ends sooner is not worth a line
MOST_THREADS = 16  # the compilers release the GIL; two at once take hardly longer than one (measured, NVRTC 13.0)
_HEADERS = ("kernels", "proxy/wire", "proxy/ring")


@dataclass(frozen=True)
class Built:
    """A program for a processor."""

    program: Program
    arch: str
    code: Code
    cached: bool  # read, not compiled


@dataclass(frozen=True)
class _Job:
    program: Program
    source: str
    key: str


def digest_of_headers(root: Path) -> str:
    """SHA-256 over the names and contents of everything that a kernel could include."""
    digest = hashlib.sha256()
    for folder in _HEADERS:
        for path in sorted((root / folder).rglob("*.h")):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def key_of(source: str, arch: str, compiler_version: str, headers: str) -> str:
    """The entry's name: whatever could change the code is in it."""
    parts = (uccl_ep.__version__, compiler_version, arch, *flags(arch), headers, source)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def native_shared_bytes(name: str, warps: int) -> int:
    """Dynamic shared memory that a launch gives a block, as the native module (warps of 32 lanes) has it. It depends on
    the argument's struct, not on its values; with 64 lanes a kernel needs no more."""
    return _native.shared_bytes(name, bytes(_native.kernel_arguments()[name]), warps)


def build(
    arch: str, compiler: Compiler | None = None, cache: KernelCache | None = None, root: Path | None = None
) -> tuple[Built, ...]:
    """Every kernel of the native module for a processor.

    Args:
        arch: sm_90a, gfx942, ...
        compiler, cache, root: the machine's own where None: NVRTC or hiprtc, the user's cache, the installed headers.

    Raises:
        UcclEpError: no compiler, or a compiler's error.
    """
    compiler = compiler if compiler is not None else RuntimeCompiler()
    cache = cache if cache is not None else KernelCache()
    root = root if root is not None else include_root()
    sizes, headers = dict(_native.kernel_arguments()), digest_of_headers(root)
    jobs = []
    for program in find_programs(root):
        source = source_of(program, arch, sizes, native_shared_bytes)
        jobs.append(_Job(program, source, key_of(source, arch, compiler.version, headers)))
    obtained: dict[str, Obtained] = {}
    for job in jobs:
        code = cache.load(job.key)
        if code is not None:
            obtained[job.key] = Obtained(code, True)
    missing = [job for job in jobs if job.key not in obtained]
    if missing:
        obtained |= _compile(missing, arch, compiler, cache, root)
        cache.prune(keep={job.key for job in jobs})
    return tuple(Built(job.program, arch, obtained[job.key].code, obtained[job.key].cached) for job in jobs)


def _compile(jobs: list[_Job], arch: str, compiler: Compiler, cache: KernelCache, root: Path) -> dict[str, Obtained]:
    """Each job once, here or in another process: first those that nobody works on, then what others have made."""

    def obtain(job: _Job, wait: bool) -> Obtained | None:
        make = functools.partial(compiler.compile, job.source, job.program.header, arch, root)
        return cache.obtain(job.key, make, wait)

    done: dict[str, Obtained] = {}
    threads = max(1, min(len(jobs), len(os.sched_getaffinity(0)), MOST_THREADS))
    with (
        progress(len(jobs), arch, sys.stderr) as show,
        concurrent.futures.ThreadPoolExecutor(threads, "uccl-ep-compile") as pool,
    ):
        for wait in (False, True):
            pending = {pool.submit(obtain, job, wait): job for job in jobs if job.key not in done}
            try:
                while pending:
                    finished, _ = concurrent.futures.wait(pending, QUIET_S / 4, concurrent.futures.FIRST_COMPLETED)
                    for future in finished:
                        result, job = future.result(), pending.pop(future)
                        if result is not None:
                            done[job.key] = result
                    show(len(done))
            finally:
                for future in pending:  # after an error: what has not begun does not begin
                    future.cancel()
    return done


@contextlib.contextmanager
def progress(total: int, arch: str, stream: TextIO) -> Iterator[Callable[[int], None]]:
    """Gives show(done). Prints nothing in the first second; then a moving line on a terminal, else a line a second, so
    that eight ranks in one log stay readable."""
    shown = -1
    started = last = time.monotonic()
    with contextlib.ExitStack() as open_status:
        status = None

        def show(done: int) -> None:
            nonlocal shown, status, last
            now = time.monotonic()
            if done == shown or now - started < QUIET_S or (now - last < QUIET_S and done < total):
                return
            shown, last = done, now
            text = f"compiling {total} kernels for {arch}: {done}/{total}"
            if not stream.isatty():
                print(f"uccl-ep: {text}", file=stream, flush=True)
            elif status is None:
                from rich.console import Console

                status = open_status.enter_context(Console(file=stream).status(text))
            else:
                status.update(text)

        yield show

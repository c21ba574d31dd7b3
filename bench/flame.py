"""`python -m bench.flame`: where the CPU time of our rounds goes, as flame graphs of one or two source trees.

Each tree's module is built with symbols and frame pointers in a scratch folder, and perf samples the CPU time of all
ranks. Only what runs inside of the module is shown, since a round's inputs and checks are torch's: kernels with what
they call, system calls and page faults included. Widths are CPU milliseconds of all ranks in a round, on one scale: in
a picture of two trees less is narrower.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.programs import ROOT, tool

MODULE = "_native"
HERTZ = 1999
MODES = ("throughput", "low-latency")
_LIMIT_S = 400.0
_KERNELS = ("throughput_", "low_latency_", "rank_barrier")
# Where the system takes over, and what that is called in a picture.
_SYSTEM = {"asm_exc_page_fault": "page fault", "entry_SYSCALL": "system call", "asm_sysvec": "interrupt"}
_FRAME_POINTERS = "-g1 -fno-omit-frame-pointer -mno-omit-leaf-frame-pointer"


@dataclass
class Profile:
    """CPU milliseconds of all ranks in a round by stack, outermost frame first, within our module."""

    name: str
    stacks: dict[tuple[str, ...], float] = field(default_factory=dict)

    @property
    def total_ms(self) -> float:
        """CPU milliseconds of a round."""
        return sum(self.stacks.values())

    def as_json(self) -> dict[str, Any]:
        """As the file has it: frames joined by semicolons, which is what flame graph tools read."""
        folded = {";".join(stack): round(ms, 4) for stack, ms in sorted(self.stacks.items())}
        return {"name": self.name, "ms_per_round": round(self.total_ms, 3), "stacks": folded}


def read_script(lines: Iterable[str]) -> Iterator[list[tuple[str, str]]]:
    """Samples of `perf script -F ip,sym,dso`: (function, file) from the outermost frame to the innermost."""
    frames: list[tuple[str, str]] = []
    for line in lines:
        if not line.strip():
            if frames:
                yield frames[::-1]
            frames = []
            continue
        words = line.strip().split(" ", 1)
        if len(words) == 2 and words[1].endswith(")"):
            name, _, file = words[1][:-1].rpartition(" (")
            frames.append((name.strip(), file))
    if frames:
        yield frames[::-1]


def within_module(frames: list[tuple[str, str]]) -> tuple[str, ...]:
    """The functions of a sample from the first kernel (or function of ours) on, down to where the system takes over.

    Empty: none of ours is under way.
    """
    first = next((i for i, (_, file) in enumerate(frames) if Path(file).name.startswith(MODULE)), len(frames))
    named = [short(name) for name, _ in frames[first:]]
    kernels = [i for i, name in enumerate(named) if name.startswith(_KERNELS)]
    named = named[kernels[0] :] if kernels else named
    for i, name in enumerate(named):
        for entry, words in _SYSTEM.items():
            if name.startswith(entry):
                return (*named[:i], words)
    return tuple(named)


def short(function: str) -> str:
    """A function's name without its namespaces, arguments and template's arguments."""
    depth, kept = 0, []
    for letter in function.replace("(anonymous namespace)::", ""):
        depth += letter in "<("
        if depth == 0:
            kept.append(letter)
        depth -= letter in ">)"
    return "".join(kept).strip().split(" ")[-1].rpartition("::")[2] or function


def fold(samples: Iterable[list[tuple[str, str]]], ms_a_sample: float, name: str) -> Profile:
    """Adds samples up, a repeated frame (recursion, a missing symbol) once."""
    profile = Profile(name)
    for frames in samples:
        stack = within_module(frames)
        stack = tuple(f for i, f in enumerate(stack) if i == 0 or stack[i - 1] != f)
        if stack:
            profile.stacks[stack] = profile.stacks.get(stack, 0.0) + ms_a_sample
    return profile


def build(tree: Path, folder: Path) -> Path:
    """A folder that holds the tree's package with a module that has symbols.

    Raises:
        RuntimeError: with the compiler's output; or the tree is older than UCCL_EP_SYMBOLS.
    """
    if "UCCL_EP_SYMBOLS" not in (tree / "cmake" / "python_module.cmake").read_text(encoding="utf-8"):
        raise RuntimeError(
            f"{tree} strips its module, so no function would have a name: add NOSTRIP to nanobind_add_module(...) in "
            "its cmake/python_module.cmake, and the word UCCL_EP_SYMBOLS in a comment there"
        )
    package, native = folder / "package", folder / "native"
    shutil.copytree(tree / "uccl_ep", package / "uccl_ep", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    nanobind = subprocess.run([sys.executable, "-m", "nanobind", "--cmake_dir"], capture_output=True, text=True)
    configure = [tool("cmake"), "-S", str(tree), "-B", str(native), "-G", "Ninja", "-DUCCL_EP_SYMBOLS=ON"]
    configure += [f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}", "-DCMAKE_BUILD_TYPE=Release"]
    configure += [f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={nanobind.stdout.strip()}"]
    configure += [f"-DCMAKE_CXX_FLAGS={_FRAME_POINTERS}"]
    for command in (configure, [tool("cmake"), "--build", str(native)]):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{tree} could not be built for profiling:\n{done.stdout[-4000:]}")
    for module in native.glob(f"{MODULE}*.so"):
        shutil.copy(module, package / "uccl_ep")
    return package


def run_with_all_below(command: list[str], environment: dict[str, str], limit_s: float) -> tuple[int, str]:
    """(status, what was printed) of a command; what it has started ends with it, ranks that wait for each other too.

    Raises:
        subprocess.TimeoutExpired: it did not end within `limit_s`.
    """
    from uccl_ep.tools.launch import end_tree

    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    try:
        said = process.communicate(timeout=limit_s)[0]
    finally:
        if process.poll() is None:
            end_tree(process)
    return process.returncode, said


def record(package: Path, options: dict[str, Any], rounds: int, name: str, folder: Path) -> Profile:
    """Runs `rounds` rounds under perf, after others that have touched all memory.

    Raises:
        RuntimeError: with what perf or a rank said.
    """
    data = folder / "perf.data"
    worker = [sys.executable, str(Path(__file__).with_name("flame_worker.py")), json.dumps(options), str(rounds)]
    pipes = [str(folder / name) for name in ("control", "ack")]
    worker += [str(package), *pipes]
    for pipe in pipes:
        if not os.path.exists(pipe):
            os.mkfifo(pipe)
    command = ["perf", "record", "-F", str(HERTZ), "-e", "cpu-clock", "--call-graph", "fp", "-o", str(data)]
    command += ["--delay", "-1", "--control", f"fifo:{','.join(pipes)}", "--"]
    environment = {**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"}
    status, said = run_with_all_below([*command, *worker], environment, _LIMIT_S)
    if status != 0:
        raise RuntimeError(f"perf record of {name} ended with status {status}:\n{said[-4000:]}")
    script = ["perf", "script", "-i", str(data), "-F", "ip,sym,dso", "--no-inline"]
    with subprocess.Popen(script, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as samples:
        assert samples.stdout is not None
        return fold(read_script(samples.stdout), 1000.0 / HERTZ / rounds, name)


def perf_absence() -> str:
    """Why nothing can be sampled here, or ""."""
    if shutil.which("perf") is None:
        return "NOT RUN: perf is not installed (Debian: linux-perf)"
    with tempfile.TemporaryDirectory() as folder:
        probe = ["perf", "record", "-e", "cpu-clock", "-o", f"{folder}/probe", "--", "true"]
        done = subprocess.run(probe, capture_output=True, text=True)
    return "" if done.returncode == 0 else f"NOT RUN: perf may not sample here: {done.stderr.strip()[-400:]}"


def main(
    out: Annotated[Path, typer.Option(help="Folder for flame-MODE.json and flame-MODE.png.")] = Path(
        "build/bench/flame"
    ),
    mode: Annotated[list[str] | None, typer.Option(help=f"{' or '.join(MODES)}; both by default.")] = None,
    before: Annotated[Path | None, typer.Option(help="An older source tree (git worktree add) to show above.")] = None,
    before_name: Annotated[str, typer.Option(help="What the picture calls it.")] = "before",
    ranks: Annotated[int, typer.Option(help="Ranks, all on one node.")] = 4,
) -> None:
    """Sample our side of the comparison with gloo and draw where its CPU time goes.

    DeepSeek-V3's shapes, all ranks on one node. Needs perf, and a compiler for the module with symbols.

    Examples:

      python -m bench.flame --mode throughput

      git worktree add ../old v0.0.9 && python -m bench.flame --before ../old --before-name 0.0.9
    """
    from bench.flame_picture import draw
    from uccl_ep.tools.bench.fingerprint import fingerprint
    from uccl_ep.tools.bench.options import BenchOptions

    if absence := perf_absence():
        raise SystemExit(absence)
    wrong = sorted(set(mode or ()) - set(MODES))
    if wrong:
        raise typer.BadParameter(f"--mode {', '.join(wrong)}: allowed are {', '.join(MODES)}")
    trees = [(before_name, before.resolve())] if before is not None else []
    trees.append(("now", ROOT))
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        packages = {name: build(tree, Path(scratch) / name.replace("/", "-")) for name, tree in trees}
        for one in mode or MODES:
            options = BenchOptions(mode=one, ranks=ranks, ranks_per_node=ranks).shaped("v3")
            rounds = 12 if one == "throughput" else 150
            spec = {
                name: getattr(options, name) for name in "mode ranks ranks_per_node tokens hidden topk experts".split()
            }
            profiles = [record(packages[name], spec, rounds, name, Path(scratch)) for name, _ in trees]
            result = {"benchmark": "flame", "options": asdict(options), "rounds": rounds, "machine": fingerprint()}
            result["profiles"] = [profile.as_json() for profile in profiles]
            (out / f"flame-{one}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            draw(result, out / f"flame-{one}.png")
            for profile in profiles:
                typer.echo(f"{one}, {profile.name}: {profile.total_ms:.1f} ms of CPU time in a round of all ranks")


if __name__ == "__main__":
    typer.run(main)

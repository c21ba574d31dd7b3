"""The parts of `make bench`: what each runs, how long it may take, and the file that it leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import costs, programs
from uccl_ep.tools.launch import end_tree

WAKE_US, IDLE_PERCENT = 50.0, 1.0


class Failed(Exception):
    """A part gave no result; the text says why, in the words of what was run."""


@dataclass(frozen=True)
class Part:
    """`run(folder, limit_s)` writes the part's JSON files into the folder."""

    name: str
    what: str
    limit_s: float
    run: Callable[[Path, float], None]


def command_part(name: str, what: str, limit_s: float, arguments: list[str]) -> Part:
    """A part that is a `uccl-ep` command; `{folder}` in an argument is the folder of the results."""

    def run(folder: Path, limit_s: float) -> None:
        words = [word.replace("{folder}", str(folder)) for word in arguments]
        output([sys.executable, "-m", "uccl_ep", *words], limit_s, folder / f"{name}.log")

    return Part(name, what, limit_s, run)


def output(command: list[str], limit_s: float, log: Path | None = None) -> str:
    """Runs a command; returns what it printed. Its children end with it.

    Raises:
        Failed: it ended with another status than 0, or not within `limit_s`.
    """
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=programs.ROOT)
    try:
        text = process.communicate(timeout=limit_s)[0]
    except subprocess.TimeoutExpired:
        raise Failed(f"not done after {limit_s:.0f} s") from None
    finally:
        if process.poll() is None:
            end_tree(process)
            process.communicate()
    if log is not None:
        log.write_text(text, encoding="utf-8")
    if process.returncode != 0:
        raise Failed(f"status {process.returncode}: " + (text.strip().splitlines() or ["no output"])[-1])
    return text


def write(path: Path, result: dict[str, Any]) -> None:
    """A result file, with the machine's fingerprint."""
    from uccl_ep.tools.bench.fingerprint import fingerprint

    path.write_text(json.dumps({**result, "machine": fingerprint()}, indent=1) + "\n", encoding="utf-8")


def run_build(folder: Path, limit_s: float) -> None:
    """Builds the native programs, in a process that can be ended."""
    output([sys.executable, "-c", "from bench.programs import build; build()"], limit_s, folder / "build.log")


def run_ring(folder: Path, limit_s: float) -> None:
    """The ring beside a raw hand-off."""
    write(folder / "ring.json", json.loads(output([str(programs.FOLDER / "ring_bench")], limit_s)))


def idle_targets(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Share of a core and wake-up, against what is wanted."""
    found = (
        ("% of a core that an idle proxy thread takes", result["core_percent_per_thread"], IDLE_PERCENT),
        ("us until a proxy takes a command after a pause, p99", result["wake_us"]["p99"], WAKE_US),
    )
    aims: list[dict[str, Any]] = [
        {"name": name, "where": "idle proxies", "measured": m, "wanted": w, "at_least": False, "met": m <= w}
        for name, m, w in found
    ]
    aims[1]["at_best"] = {"of": "a bare thread", "measured": result["bare_wake_us"]["p99"]}
    return aims


def run_idle(folder: Path, limit_s: float) -> None:
    """What idle proxies cost, and how soon they wake."""
    result = json.loads(output([str(programs.FOLDER / "proxy_idle")], limit_s))
    write(folder / "proxy-idle.json", {**result, "targets": idle_targets(result)})


def run_costs(folder: Path, limit_s: float) -> None:
    """Instructions of the proxy, in a process that can be ended."""
    absence = costs.valgrind_absence()
    if absence:
        raise Failed(absence)
    code = "import json; from bench import costs, programs as p; "
    code += "print(json.dumps(costs.result(p.FOLDER / 'proxy_costs', p.FOLDER / 'lane_costs')))"
    write(folder / "proxy-costs.json", json.loads(output([sys.executable, "-c", code], limit_s)))


_VARIANTS = {
    "private": (["--outputs", "private"], "outputs in memory of torch's"),
    "direct": (["--combine", "direct"], "each row of a combine by itself"),
}


def peers_part(mode: str, ranks: int, ranks_per_node: int, seconds: float, limit_s: float, variant: str = "") -> Part:
    """A measurement beside peers in DeepSeek-V3's shape, or one of its _VARIANTS; several nodes talk tcp."""
    nodes = -(-ranks // ranks_per_node)
    where = f"{ranks} ranks" + ("" if nodes == 1 else f" on {nodes} nodes over tcp")
    words = ["bench", "--shape", "v3", "--mode", mode, "--ranks", str(ranks), "--ranks-per-node", str(ranks_per_node)]
    words += ["--transport", "tcp" if nodes > 1 else "auto", "--seconds", str(seconds), "--out", "{folder}"]
    words += ["--rounds", "40"] if mode == "low-latency" else []  # they are short, and differ more
    name, what = f"{mode}-{ranks}x{nodes}", f"{mode} beside peers, {where}"
    if variant:
        more, what_more = _VARIANTS[variant]
        words += more
        name, what = f"{name}-{variant}", f"{what}, {what_more}"
    return command_part(name, what, limit_s, words)


def all_parts() -> list[Part]:
    """In the order in which they run: what is short first, so that an early end loses least."""
    worlds = ((2, 2), (4, 4), (8, 8), (4, 2))
    return [
        Part("build", "native programs", 300.0, run_build),
        Part("costs", "instructions of the proxy (item 5)", 120.0, run_costs),
        Part("idle", "idle proxies (item 5)", 90.0, run_idle),
        Part("ring", "the command ring (item 6)", 60.0, run_ring),
        command_part("bytes", "bytes and messages (item 4)", 120.0, ["bench", "bytes", "--out", "{folder}/bytes.json"]),
        command_part("memory", "memory (item 7)", 60.0, ["bench", "memory", "--out", "{folder}/memory.json"]),
        *(peers_part("low-latency", ranks, per_node, 10.0, 60.0) for ranks, per_node in worlds),
        peers_part("low-latency", 4, 2, 10.0, 60.0, "direct"),
        peers_part("low-latency", 4, 4, 10.0, 60.0, "private"),
        peers_part("throughput", 4, 4, 20.0, 120.0, "private"),
        *(peers_part("throughput", ranks, per_node, 5.0 * ranks, 60.0 + 15.0 * ranks) for ranks, per_node in worlds),
    ]

"""The table of a device_check result: what was done, what was reached, and in which configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bench.device.shapes import counted

Result = dict[str, Any]


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns as wide as their longest cell; the first to the left, the others to the right."""
    cells = [list(heads), *([str(c) for c in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    lines = []
    for row in cells:
        first, rest = row[0].ljust(widths[0]), [c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([first, *rest]).rstrip())
    return "\n".join(lines)


def _machine(result: Result) -> str:
    gpu, versions = result.get("gpu") or {}, result.get("versions", {})
    lines = [f"{result.get('cpu')}, {result.get('cores')} cores, load {result.get('load_1min')}"]
    if gpu:
        link = f"PCIe gen {gpu.get('pcie.link.gen.current')} x{gpu.get('pcie.link.width.current')}"
        lines.append(f"{gpu.get('name', gpu.get('unknown'))}, driver {gpu.get('driver_version')}, {link}")
    lines.append(", ".join(f"{name} {version}" for name, version in versions.items()))
    return "\n".join(lines)


def _kernels(result: Result) -> str:
    rows = [
        (k["kernel"], result["arch"], k["registers"], k["shared_bytes"], k["spilled_bytes"])
        for k in result.get("kernels", [])
    ]
    return table(("kernel", "processor", "registers", "shared B", "spilled B"), rows)


def _tests(result: Result) -> str:
    failed, skipped = result.get("failed", []), result.get("skipped", [])
    lines = [f"{result.get('passed')} passed, {len(failed)} failed, {len(skipped)} skipped"]
    lines += [f"FAILED  {f['test']}: {f['says'].strip().splitlines()[-1] if f['says'].strip() else ''}" for f in failed]
    lines += [f"skipped {s['test']}: {s['says']}" for s in skipped]
    return "\n".join(lines)


def _sanitize(result: Result) -> str:
    return "\n".join(
        f"{r['tool']}, {r['ranks']} rank(s): {r['status']}: {r['says'].strip().splitlines()[0] if r['says'] else ''}"
        for r in result.get("runs", [])
    )


def _ring(result: Result) -> str:
    rates = [(r["rings"], r["threads"], r["width"], f"{r['million_per_s']:.1f}") for r in result.get("rates", [])]
    parts = [f"producers: {result.get('producers')}"]
    parts.append(table(("rings", "threads", "push width", "M commands/s"), rates))
    late = []
    for kind, name, places in (("one way", "paced", "one_way_us"), ("half a round trip", "round_trips", "half_us")):
        for p in result.get(name, []):
            values = [f"{p[places][q]:.2f}" for q in ("p50", "p99", "p999")]
            pace = f"{p['reached_per_s'] / 1e6:.2f}" if "reached_per_s" in p else "one at a time"
            give = f"{p['clock']['uncertainty_us']:.2f}" if "clock" in p else "-"
            late.append((kind, p["rings"], p["threads"], pace, *values, give))
    heads = ("push to proxy, us", "rings", "threads", "M/s", "p50", "p99", "p99.9", "+- clocks")
    return "\n".join([*parts, table(heads, late)])


def _exchange(result: Result) -> str:
    rows = []
    for found in result.get("shapes", []):
        shape = found["shape"]
        nodes = -(-shape["ranks"] // shape["ranks_per_node"])
        where = f"{counted(shape['ranks'], 'rank')}, {counted(nodes, 'node')}, {shape['tokens']} tokens"
        if "error" in found:
            rows.append((where, "error", "", found["error"].splitlines()[0][:80], "", ""))
            continue
        for part, wall in found["wall"].items():
            rows.append((where, found["placement"], "wall", part, f"{wall['median_ms']:.3f}", f"{wall['max_ms']:.3f}"))
        for name, took in found["kernels"].items():
            rows.append((where, "", "kernel", name, f"{took['median_ms']:.3f}", f"{took['max_ms']:.3f}"))
        for name, reached in found.get("achieved", {}).items():
            share = f"{reached['of_copy']:.0%} of copy" if "of_copy" in reached else ""
            rows.append((where, "", "GB/s", name, f"{reached['gb_per_s']:.0f}", share))
    plain = result.get("copy", {})
    lines = [f"plain device copy: {plain['gb_per_s']:.0f} GB/s (read + written)"] if plain else []
    heads = ("slowest rank", "placement", "what", "part", "median ms", "max ms")
    return "\n".join([*lines, table(heads, rows)])


def model_rows(result: Result, gpu_name: str) -> list[tuple[str, int, float, float, str]]:
    """(kernel, ranks, estimated us, measured us, estimated bound) of the shapes that the time model has counters of."""
    from bench.device import time_model
    from bench.device.gpus import gpu_named

    gpu, counts = gpu_named(gpu_name), time_model.counted()
    rows = []
    for found in result.get("shapes", []) if gpu is not None else []:
        shape = found["shape"]
        if "error" in found or shape["ranks"] != shape["ranks_per_node"] or shape.get("hidden") != time_model.HIDDEN:
            continue
        estimated = time_model.on_one_gpu(counts, gpu, shape["mode"], shape["ranks"], shape["tokens"])
        for name, took in found["kernels"].items():
            if name in estimated:
                one = estimated[name]
                rows.append((name, shape["ranks"], one.total_us, took["median_ms"] * 1e3, one.bound))
    return rows


def _model(result: Result, gpu_name: str) -> str:
    rows = [
        (name, ranks, f"{us:.1f}", f"{measured:.1f}", f"{measured / us:.2f}", bound)
        for name, ranks, us, measured, bound in model_rows(result, gpu_name)
    ]
    heads = ("kernel, us", "ranks", "estimated", "measured", "ratio", "estimated bound")
    return f"\nmodel against measurement ({gpu_name}, bench/device/time_model.py)\n{table(heads, rows)}" if rows else ""


def _copies(result: Result) -> str:
    plain = result.get("copy", {}).get("gb_per_s")
    lines = [("framework", "", "", f"{plain:.0f}", "100%")] if plain else []
    for r in result.get("rows", []):
        share = f"{r['gb_per_s'] / plain:.0%}" if plain else ""
        lines.append((r["kernel"], r["row_bytes"], r["blocks_an_sm"], f"{r['gb_per_s']:.0f}", share))
    return table(("copy", "row bytes", "blocks/SM", "GB/s", "of plain"), lines)


def _launches(result: Result) -> str:
    rows = []
    for mode in result.get("modes", []):
        rows += [(mode["shape"]["mode"], name, f"{us:.1f} us") for name, us in mode["host_us"].items()]
        if mode["replay_ms"] is not None:
            rows.append((mode["shape"]["mode"], "replay of dispatch + combine", f"{mode['replay_ms']:.3f} ms"))
    return table(("one rank", "call", "host time"), rows)


SECTIONS: dict[str, Callable[[Result], str]] = {
    "machine": _machine,
    "kernels": _kernels,
    "tests": _tests,
    "sanitize": _sanitize,
    "ring": _ring,
    "throughput": _exchange,
    "low_latency": _exchange,
    "copies": _copies,
    "launches": _launches,
}


def render(result: Result) -> str:
    """The whole text of a result file."""
    quick = " (quick: a look, not a measurement)" if result["quick"] else ""
    parts = [f"device_check of {result['started']}, {result['device']}, {result['seconds']} s{quick}"]
    machine = next((step["result"] for step in result["steps"] if step["name"] == "machine"), None) or {}
    gpu_name = str((machine.get("gpu") or {}).get("name", ""))
    for step in result["steps"]:
        parts.append(f"\n## {step['name']}: {step['status']}, {step['seconds']} s")
        if step["why"] and step["status"] != "ok":
            parts.append(step["why"].strip()[:1500])
        if step["result"] and step["name"] in SECTIONS:
            parts.append(SECTIONS[step["name"]](step["result"]))
            if step["name"] in ("low_latency", "throughput") and (model := _model(step["result"], gpu_name)):
                parts.append(model)
    if result["targets"]:
        rows = [
            (t["name"], f"{t['measured']:.4g}", f"{'>=' if t['at_least'] else '<'} {t['wanted']:.4g}",
             "reached" if t["met"] else "MISSED", t["where"])
            for t in result["targets"]
        ]  # fmt: skip
        parts += ["\n## targets", table(("figure", "measured", "wanted", "", "where"), rows)]
    return "\n".join(parts)

"""Tables of estimated times beside published ones.

python -m bench.device.estimates            # prints them
python -m bench.device.estimates --write    # into bench/device/estimates.md
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence

from bench.device.gpus import GPUS, H100, Gpu
from bench.device.render import model_rows
from bench.device.time_model import (
    CASES,
    CHECK_SMS,
    HERE,
    PER_NODE,
    ROW,
    THROUGHPUT_CALLS,
    THROUGHPUT_TOKENS,
    Kernel,
    counted,
    estimate,
    low_latency,
    on_one_gpu,
    throughput,
    throughput_gb_per_s,
    visits,
    waits_for_peers,
)
from uccl_ep.config import DEFAULT_NUM_SMS

PAGE = HERE / "estimates.md"
MEASURED = HERE.parent / "results/h100/device_check-nvidia-h100-80gb-hbm3-20261127220226.json"
"""The newest run of device_check on a GPU that the model knows."""
PUBLISHED_LOW_LATENCY = {8: (77, 114), 16: (118, 195), 32: (155, 273)}
"""Dispatch and combine, us: DeepEP docs/legacy.md, H800 with 400 Gb/s; 128 tokens, FP8 out and BF16 back."""
PUBLISHED_THROUGHPUT = {8: (153, 158), 16: (43, 43), 32: (58, 57)}
"""GB/s of the narrower link, the same page: NVLink with 8 ranks, RDMA beyond; 4,096 tokens, 24 SMs, FP8 out."""


_NOTE = """Every time and rate of ours below is **estimated**, but for the last table: single GPUs have run these
kernels, of all ranks at once, and no node of several GPUs. The formula, each latency and rate with its source or as an
assumption, and what is left out are in `bench/device/time_model.py` and `gpus.py`.
Kernels' counters are of PTX that was executed on a CPU (`python -m tests.gpu.ptx.collect`), with the shapes of 132 SMs
and warps of 32 lanes, for B200 and MI300X too. DeepEP's figures are those of its page on V1 ("legacy"), measured on
H800 with 400 Gb/s NICs: compare the rows of H800.
"""


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def _low_latency_rows(counts: Mapping[str, Mapping[str, Kernel]]) -> Iterable[tuple[str, ...]]:
    for gpu in GPUS.values():
        for ranks, published in PUBLISHED_LOW_LATENCY.items():
            for form in ("direct", "node") if ranks > PER_NODE else ("direct",):
                calls = low_latency(counts, gpu, ranks, form)
                cells = []
                for (phase, call), theirs in zip(calls.items(), published, strict=True):
                    if phase == "dispatch" and form == "node":
                        cells += ["", "", ""]
                        continue
                    cells += [f"{call.total_us:.0f}", f"{theirs}", f"{call.total_us / theirs:.2f}"]
                names = f"{gpu.name}, EP{ranks}" + (", summed in the node" if form == "node" else "")
                yield (names, *cells, "; ".join(call.bound for call in calls.values()))


def _throughput_rows(counts: Mapping[str, Mapping[str, Kernel]]) -> Iterable[tuple[str, ...]]:
    for gpu in GPUS.values():
        for ranks, published in PUBLISHED_THROUGHPUT.items():
            calls = throughput(counts, gpu, ranks)
            cells = []
            for call, theirs in zip(calls.values(), published, strict=True):
                reached = throughput_gb_per_s(call.total_us, ranks)
                cells += [f"{call.total_us:.0f}", f"{reached:.0f}", f"{theirs}"]
            yield (f"{gpu.name}, EP{ranks}", *cells, "; ".join(call.bound for call in calls.values()))


def share_of_copy(counts: Mapping[str, Mapping[str, Kernel]], gpu: Gpu, ranks: int) -> dict[str, float]:
    """Of a plain copy, by throughput kernel, where one GPU plays all ranks: bytes as device/moved.py counts them."""
    taken = THROUGHPUT_TOKENS * visits(ranks) * ranks
    tokens = THROUGHPUT_TOKENS * ranks
    moved = {"throughput_dispatch": 2 * ROW * (tokens + taken), "throughput_combine": ROW * (3 * taken + tokens)}
    found = on_one_gpu(counts, gpu, "throughput", ranks, THROUGHPUT_TOKENS)
    return {name: moved[name] / each.total_us / 1e3 / gpu.copy_gb_per_s for name, each in found.items()}


def _copy_rows(counts: Mapping[str, Mapping[str, Kernel]]) -> Iterable[tuple[str, ...]]:
    for ranks in (2, 4, 8):
        kernels = counts[f"throughput, {ranks} ranks on a GPU"]
        shares = share_of_copy(counts, H100, ranks)
        busy = min(CHECK_SMS, kernels["throughput_dispatch"].blocks * ranks)
        found = on_one_gpu(counts, H100, "throughput", ranks, THROUGHPUT_TOKENS)
        names = [name for (name,) in THROUGHPUT_CALLS.values()]
        causes = "; ".join(found[name].bound for name in names)
        yield (
            f"{ranks} ranks, {busy} of {CHECK_SMS} SMs",
            *(f"{shares[name]:.0%}" for name in names),
            "80%",
            causes,
        )


def _kernel_rows(counts: Mapping[str, Mapping[str, Kernel]]) -> Iterable[tuple[str, ...]]:
    for name, kernel in counts[CASES[0].label].items():
        e = estimate(kernel, H100, waits=waits_for_peers(name))
        causes = ("launch", "asking", "ids", "chain", "memory", "link", "processors", "arrival", "total")
        parts = (getattr(e, f"{cause}_us") for cause in causes)
        trips = f"{kernel.away}/{kernel.wide}/{kernel.line}/{kernel.near}"
        cells = (f"{part:.1f}" for part in parts)
        yield (name.removeprefix("low_latency_"), f"{kernel.blocks}x{kernel.warps}", trips, *cells)


def _measured_rows() -> Iterable[tuple[str, ...]]:
    steps = {step["name"]: step["result"] for step in json.loads(MEASURED.read_text(encoding="utf-8"))["steps"]}
    for mode in ("low_latency", "throughput"):
        for name, ranks, us, measured, bound in model_rows(steps[mode], steps["machine"]["gpu"]["name"]):
            yield (name, f"{ranks}", f"{us:.1f}", f"{measured:.1f}", f"{measured / us:.2f}", bound)


def tables(counts: Mapping[str, Mapping[str, Kernel]]) -> str:
    """All of them, as Markdown."""
    dc = ("dispatch us, estimated", "DeepEP", "ratio", "combine us, estimated", "DeepEP", "ratio")
    rates = (
        "dispatch us, estimated",
        "GB/s, estimated",
        "DeepEP",
        "combine us, estimated",
        "GB/s, estimated",
        "DeepEP",
    )
    parts = ("launch", "asking", "ids", "chain", "memory", "link", "processors", "arrival", "kernel")
    return "\n".join(
        [
            _NOTE,
            "**Low latency, estimated**: 128 tokens x 7,168, top-8 of 256, FP8 out and BF16 back, both halves.\n",
            _markdown(("GPU, ranks", *dc, "bound by"), _low_latency_rows(counts)),
            "**Throughput, estimated**: 4,096 tokens, 24 SMs, BF16 rows (DeepEP's dispatch: FP8), its count of rows.\n",
            _markdown(("GPU, ranks", *rates, "bound by"), _throughput_rows(counts)),
            "**Share of a plain copy, estimated**, where one H100 plays all ranks in `bench/device_check.sh`, "
            f"up to {DEFAULT_NUM_SMS} SMs a rank.\n",
            _markdown(("ranks", "dispatch, estimated", "combine, estimated", "target", "bound by"), _copy_rows(counts)),
            "**Kernels of EP8 on H100, estimated** us by cause; trips are to a peer, own memory, L2, L1.\n",
            _markdown(("kernel", "blocks x warps", "trips", *parts), _kernel_rows(counts)),
            "**Measured beside estimated**: one H100 plays all ranks of a node, and their kernels are queued before "
            f"any starts; us, the slowest rank's median, of `bench/results/{MEASURED.parent.name}/{MEASURED.name}`.\n",
            _markdown(("kernel", "ranks", "estimated", "measured", "ratio", "estimated bound"), _measured_rows()),
        ]
    )


def main() -> None:
    """Prints the tables, or writes them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}, beside this file")
    text = tables(counted())
    if parser.parse_args().write:
        PAGE.write_text("# Estimated times\n\n" + text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()

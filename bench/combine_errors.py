"""What combine's rows cost and what they lose: bytes of a token on the wire beside the error of its sum, for each
format of rows and both forms, in a few seconds and without running a rank.

Sums are `uccl_ep.reference`'s, which tests hold the kernels to, to the bit (but for a GPU's logfmt); bytes are counted
by `uccl_ep.cost_model`, which tests hold against a running job. `python -m bench.combine_errors` prints a table.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from uccl_ep import reference
from uccl_ep.cost_model import ours, wire
from uccl_ep.cost_model.cluster import Cluster
from uccl_ep.cost_model.demand import Demand
from uccl_ep.cost_model.routing import make_routing

Tensor = torch.Tensor
TOPKS = (1, 4, 8)
TAILS = ("normal", "heavy")
RANKS, PER_NODE, LOCAL, TOKENS, HIDDEN = 4, 2, 8, 8, 1024  # of sums
SCALE = 0.02  # of rows' values, so that logfmt, which wants magnitudes below 1, has something to encode


@dataclass(frozen=True)
class Error:
    """Of all channels of all tokens, relative to the root mean square of the exact sums.

    Attributes:
        rms: root mean square. worst: the largest.
    """

    rms: float
    worst: float


@dataclass(frozen=True)
class Row:
    """One format in one form.

    Attributes:
        wire_bytes: of a token, sent to other nodes by combine: 32 ranks on nodes of 8, 128 tokens x 7168, top-8 of 256.
        errors: by tail and top-k.
    """

    rows: str
    form: str
    wire_bytes: float
    errors: dict[str, dict[int, Error]]


def outputs(tail: str, seed: int, hidden: int = HIDDEN) -> list[Tensor]:
    """What experts computed, bf16 [L, P, H] a rank: normal, or Student's t of 3 degrees of freedom (heavy)."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(RANKS):
        shape = (LOCAL, RANKS * TOKENS, hidden)
        values = torch.randn(shape, generator=generator)
        if tail == "heavy":
            squares = sum(torch.randn(shape, generator=generator) ** 2 for _ in range(3))
            values = values / (torch.as_tensor(squares) / 3).sqrt()
        made.append((values * SCALE).bfloat16())
    return made


def errors(rows: Sequence[Tensor], topk: int, seed: int = 1) -> Iterator[tuple[str, str, Error]]:
    """(format, form, error) of the sums of `rows`, top-k of all experts."""
    shape = reference.CaseShape(RANKS, RANKS * LOCAL, topk, 8, TOKENS)
    c = reference.random_case(seed, shape, "uniform")
    weights = [torch.softmax(w, -1) for w in c.topk_weights]
    received = reference.low_latency_dispatch(c.x, c.topk_idx, TOKENS, RANKS * LOCAL)
    given = (rows, c.topk_idx, weights, received)
    exact = torch.cat(_exact(*given))
    size = exact.square().mean().sqrt()
    for name in wire.COMBINE_FORMATS:
        use = {} if name == "bf16" else {f"use_{name}": True}
        for form, sums in (
            ("direct", reference.low_latency_combine(*given, **use)),
            ("node", reference.low_latency_combine_by_node(*given, PER_NODE, **use)),
        ):
            off = (torch.cat(sums).double() - exact).abs() / size
            yield name, form, Error(float(off.square().mean().sqrt()), float(off.max()))


def _exact(
    rows: Sequence[Tensor],
    topk_idx: Sequence[Tensor],
    weights: Sequence[Tensor],
    received: Sequence[reference.LowLatencyReceived],
) -> list[Tensor]:
    """float64 [T, H] a rank: the sums that nothing has rounded but the experts."""
    sums = []
    for source, ids in enumerate(topk_idx):
        table = torch.cat([reference.slots_of(handle, source, ids.shape[0]) for handle in received])
        total = torch.zeros(ids.shape[0], rows[0].shape[-1], dtype=torch.float64)
        for token, k in (ids >= 0).nonzero().tolist():
            expert = int(ids[token, k])
            row = rows[expert // LOCAL][expert % LOCAL, int(table[expert, token])]
            total[token] += row.double() * weights[source][token, k].double()
        sums.append(total)
    return sums


def wire_bytes() -> dict[tuple[str, str], float]:
    """By format and form, see Row."""
    cluster = Cluster.even(32, 8)
    demand = Demand(make_routing("random", 32, 128, 8, 256, 0), cluster, 256)
    counted = {}
    for name in wire.COMBINE_FORMATS:
        call = ours.LowLatencyCall(7168, combine_format=name)
        for form in ours.COMBINE_FORMS:
            traffic = ours.low_latency_combine(demand, call, form)
            counted[name, form] = sum(float(flow.num_bytes.sum()) for flow in traffic.flows) / demand.tokens
    return counted


def measure(hidden: int = HIDDEN) -> list[Row]:
    """All formats in both forms."""
    found: dict[tuple[str, str], dict[str, dict[int, Error]]] = {}
    for tail in TAILS:
        rows = outputs(tail, 5, hidden)
        for topk in TOPKS:
            for name, form, error in errors(rows, topk):
                found.setdefault((name, form), {}).setdefault(tail, {})[topk] = error
    counted = wire_bytes()
    return [Row(name, form, counted[name, form], of) for (name, form), of in found.items()]


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    plain = next(row.wire_bytes for row in rows if (row.rows, row.form) == ("bf16", "direct"))
    heads = [f"{tail}, top-{k}" for tail in TAILS for k in TOPKS]
    lines = [f"| rows | form | KB a token | of bf16 | {' | '.join(heads)} |", "|---" * (4 + len(heads)) + "|"]
    for row in rows:
        cells = [f"{row.errors[t][k].rms:.2%} ({row.errors[t][k].worst:.1%})" for t in TAILS for k in TOPKS]
        size = f"{row.wire_bytes / 1000:.1f} | {row.wire_bytes / plain:.2f}"
        lines.append(f"| {row.rows} | {row.form} | {size} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; with --out also leaves the figures in a file."""
    parser = argparse.ArgumentParser(prog="python -m bench.combine_errors", description=__doc__)
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    options = parser.parse_args(argv)
    rows = measure()
    print(table(rows))
    if options.out is not None:
        found = {"benchmark": "combine errors", "rows": [asdict(row) for row in rows]}
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

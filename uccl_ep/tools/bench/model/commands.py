"""The commands `uccl-ep bench bytes`, `memory`, `growth` and `rebalance`; they load what they do when they run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from uccl_ep.tools import figures

_COUNTED, _OUTPUT = "What is counted", "Output"

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.", rich_help_panel=_OUTPUT)]
Out = Annotated[Path | None, typer.Option(help="File for the JSON result.", rich_help_panel=_OUTPUT)]
Plot = Annotated[
    Path | None,
    typer.Option(
        help="File for a picture; its suffix chooses the format.", rich_help_panel=_OUTPUT, callback=figures.check
    ),
]


def count_bytes(
    ranks: Annotated[
        list[int] | None,
        typer.Option(help="A rank count; may be repeated. Default: 8 to 1024, doubling.", rich_help_panel=_COUNTED),
    ] = None,
    ranks_per_node: Annotated[
        int, typer.Option(help="Ranks that reach each other by load/store.", rich_help_panel=_COUNTED)
    ] = 8,
    mode: Annotated[
        list[str] | None, typer.Option(help="low-latency or throughput. Default: both.", rich_help_panel=_COUNTED)
    ] = None,
    routing: Annotated[
        list[str] | None,
        typer.Option(
            help="random, group-limited (4 of 8 groups) or skewed (Zipf). Default: all.", rich_help_panel=_COUNTED
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens of a rank, low latency.", rich_help_panel=_COUNTED)] = 128,
    throughput_tokens: Annotated[
        int, typer.Option(help="Tokens of a rank, throughput.", rich_help_panel=_COUNTED)
    ] = 512,
    hidden: Annotated[int, typer.Option(help="Channels of a token.", rich_help_panel=_COUNTED)] = 7168,
    topk: Annotated[int, typer.Option(help="Experts that a token visits.", rich_help_panel=_COUNTED)] = 8,
    experts: Annotated[
        int, typer.Option(help="Experts of all ranks, at least; more where ranks are more.", rich_help_panel=_COUNTED)
    ] = 256,
    row_format: Annotated[
        str, typer.Option("--format", help="Dispatch rows: bf16, fp8, fp8-ue8m0.", rich_help_panel=_COUNTED)
    ] = "fp8",
    combine_format: Annotated[
        str,
        typer.Option(
            help="Rows of our low-latency combine, in both forms: bf16, logfmt, fp8, mxfp8 or nvfp4.",
            rich_help_panel=_COUNTED,
        ),
    ] = "bf16",
    network: Annotated[
        str, typer.Option(help="What the choice is made for: cx7, efa or tcp.", rich_help_panel=_COUNTED)
    ] = "cx7",
    seed: Annotated[int, typer.Option(help="Chooses routes.", rich_help_panel=_COUNTED)] = 0,
    plot: Plot = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Count the bytes and messages that a token costs, ours beside upstream's, without running anything.

    For one routing after the other, every write of our kernels and every work request of upstream's algorithm are
    counted exactly (tests hold ours against a running job). A cost model then says whether a row should go directly or
    be reduced in the node first, with its reasons. The last lines say whether targets are met.

    Examples:

      uccl-ep bench bytes

      uccl-ep bench bytes --ranks 32 --routing random --network efa --json

      uccl-ep bench bytes --plot bytes.png --out build/bench/results/bytes.json
    """
    from uccl_ep.tools.bench.model.compare import CompareOptions, compare
    from uccl_ep.tools.bench.model.plot import draw_bytes
    from uccl_ep.tools.bench.model.report import show_bytes

    base = CompareOptions()
    options = CompareOptions(
        ranks=tuple(ranks) if ranks else base.ranks,
        ranks_per_node=ranks_per_node,
        modes=tuple(mode) if mode else base.modes,
        routings=tuple(routing) if routing else base.routings,
        tokens=tokens,
        throughput_tokens=throughput_tokens,
        hidden=hidden,
        topk=topk,
        experts=experts,
        row_format=row_format,
        combine_format=combine_format,
        network=network,
        seed=seed,
    )
    _finish(compare(options), show_bytes, draw_bytes, _Output(plot, out, as_json))


def memory(
    ranks: Annotated[
        list[int] | None,
        typer.Option(help="A rank count; may be repeated. Default: 8 to 512, doubling.", rich_help_panel=_COUNTED),
    ] = None,
    experts: Annotated[
        list[int] | None,
        typer.Option(help="Experts of all ranks; may be repeated. Default: 256 and 288.", rich_help_panel=_COUNTED),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Most tokens of a rank and call.", rich_help_panel=_COUNTED)] = 128,
    hidden: Annotated[int, typer.Option(help="Channels of a token.", rich_help_panel=_COUNTED)] = 7168,
    ranks_per_node: Annotated[
        int, typer.Option(help="Ranks that reach each other by load/store.", rich_help_panel=_COUNTED)
    ] = 8,
    plot: Plot = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Say what low-latency mode takes of a rank's memory, beside what upstream's formula asks for.

    Allocates nothing. With one rank a node, or with enable_shrink, each rank takes in every row for itself, which is
    shown too. The last lines say whether targets are met.

    Examples:

      uccl-ep bench memory

      uccl-ep bench memory --ranks 72 --experts 288 --ranks-per-node 72 --json
    """
    from uccl_ep.tools.bench.model.memory import MemoryOptions, memory_table
    from uccl_ep.tools.bench.model.plot import draw_memory
    from uccl_ep.tools.bench.model.report import show_memory

    base = MemoryOptions()
    options = MemoryOptions(
        tokens=tokens,
        hidden=hidden,
        ranks=tuple(ranks) if ranks else base.ranks,
        experts=tuple(experts) if experts else base.experts,
        ranks_per_node=ranks_per_node,
    )
    _finish(memory_table(options), show_memory, draw_memory, _Output(plot, out, as_json))


def growth(
    axis: Annotated[
        list[str] | None,
        typer.Option(
            help="tokens, hidden, topk, ranks or nodes; may be repeated. Default: all.", rich_help_panel=_COUNTED
        ),
    ] = None,
    measured: Annotated[
        bool, typer.Option("--measured/--counted-only", help="Also run small jobs here and time them.")
    ] = True,
    rounds: Annotated[int, typer.Option(help="Timed rounds of each small job.")] = 7,
    plot: Plot = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Show how bytes, messages, memory and time grow with tokens, hidden, top-k, ranks and nodes.

    Bytes, messages and memory are counted by the model at DeepSeek-V3's shapes; time is measured on small jobs of this
    machine (median over rounds of the slowest rank). To each series a power law is fitted: exponent 1 is linear.
    Whatever is worse than linear is explained, also where it is so between two sizes only.

    Examples:

      uccl-ep bench growth --counted-only

      uccl-ep bench growth --axis tokens --axis ranks --rounds 15 --plot growth.png --out growth.json
    """
    from uccl_ep.tools.bench.fingerprint import fingerprint
    from uccl_ep.tools.bench.model import growth as model
    from uccl_ep.tools.bench.model.measure import measured_growth
    from uccl_ep.tools.bench.model.plot import draw_growth
    from uccl_ep.tools.bench.model.report import show_growth

    axes = model.checked_axes(axis or model.AXES)
    result: dict[str, Any] = {"benchmark": "growth", "counted": model.growth(model.GrowthShape(), axes), "measured": []}
    if measured:
        result |= {"measured": measured_growth(axes, rounds), "machine": fingerprint()}
    _finish(result, show_growth, draw_growth, _Output(plot, out, as_json))


def rebalance(
    ranks: Annotated[int, typer.Option(help="Ranks of the job.", rich_help_panel=_COUNTED)] = 32,
    ranks_per_node: Annotated[
        int, typer.Option(help="Ranks that reach each other by load/store.", rich_help_panel=_COUNTED)
    ] = 8,
    mode: Annotated[str, typer.Option(help="low-latency or throughput.", rich_help_panel=_COUNTED)] = "low-latency",
    routing: Annotated[
        str,
        typer.Option(help="random, group-limited (4 of 8 groups) or skewed (Zipf).", rich_help_panel=_COUNTED),
    ] = "skewed",
    tokens: Annotated[int, typer.Option(help="Tokens of a rank in a step.", rich_help_panel=_COUNTED)] = 128,
    hidden: Annotated[int, typer.Option(help="Channels of a token.", rich_help_panel=_COUNTED)] = 7168,
    topk: Annotated[int, typer.Option(help="Experts that a token visits.", rich_help_panel=_COUNTED)] = 8,
    experts: Annotated[int, typer.Option(help="Experts of a layer.", rich_help_panel=_COUNTED)] = 256,
    redundant: Annotated[
        int, typer.Option(help="Slots beyond one for each expert, of all ranks.", rich_help_panel=_COUNTED)
    ] = 32,
    before: Annotated[
        Path | None,
        typer.Option(
            help="JSON list: the expert in each slot, as EPLB's physical_to_logical_map of a layer has it. Default: "
            "experts in order, then the first ones once more.",
            rich_help_panel=_COUNTED,
        ),
    ] = None,
    after: Annotated[
        Path | None,
        typer.Option(help="The same afterwards. Default: balanced for this routing.", rich_help_panel=_COUNTED),
    ] = None,
    row_format: Annotated[
        str, typer.Option("--format", help="Dispatch rows: bf16, fp8, fp8-ue8m0.", rich_help_panel=_COUNTED)
    ] = "fp8",
    network: Annotated[str, typer.Option(help="cx7, efa or tcp.", rich_help_panel=_COUNTED)] = "cx7",
    intermediate: Annotated[
        int, typer.Option(help="Width of an expert: 3 x hidden x this many parameters.", rich_help_panel=_COUNTED)
    ] = 2048,
    weight_bytes: Annotated[
        float, typer.Option(help="Bytes of a parameter: fp8 1, bf16 2.", rich_help_panel=_COUNTED)
    ] = 1.0,
    state_bytes: Annotated[
        float,
        typer.Option(
            help="A trainer's optimizer state and gradients, bytes of a parameter, which move too: Adam in fp32 16.",
            rich_help_panel=_COUNTED,
        ),
    ] = 0.0,
    row_us: Annotated[
        float,
        typer.Option(help="Microseconds that a rank computes for one (token, expert) row.", rich_help_panel=_COUNTED),
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Chooses routes.", rich_help_panel=_COUNTED)] = 0,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Say what a rebalancing of experts (EPLB) costs and saves, in bytes, and after how many steps it pays.

    Counted for one layer and one routing, with an expert's copies taking turns: what moves between ranks once, inside
    nodes and between them; what a dispatch and its combine send between nodes before and after, and how many rows the
    busiest rank computes. Nothing is run. The network is an assumption from published figures, and says so.

    Examples:

      uccl-ep bench rebalance

      uccl-ep bench rebalance --row-us 0.05 --weight-bytes 2 --state-bytes 16

      uccl-ep bench rebalance --ranks 16 --experts 64 --redundant 0 --before old.json --after new.json --json
    """
    from uccl_ep.tools.bench.model.rebalance import RebalanceOptions, rebalance
    from uccl_ep.tools.bench.model.report import show_rebalance

    given = {name: value for name, value in locals().items() if name in RebalanceOptions.__dataclass_fields__}
    _finish(rebalance(RebalanceOptions(**given)), show_rebalance, _no_picture, _Output(None, out, as_json))


def _no_picture(result: dict[str, Any], path: Path) -> None:
    """There is none of a rebalancing."""


@dataclass(frozen=True)
class _Output:
    plot: Path | None
    out: Path | None
    as_json: bool


def _finish(
    result: dict[str, Any],
    show: Callable[[dict[str, Any], Any], None],
    draw: Callable[[dict[str, Any], Path], None],
    output: _Output,
) -> None:
    """Prints tables or JSON; writes the files that were asked for."""
    from rich.console import Console

    if output.out is not None:
        output.out.parent.mkdir(parents=True, exist_ok=True)
        output.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if output.plot is not None:
        draw(result, output.plot)
    if output.as_json:
        typer.echo(json.dumps(result, indent=1))
    else:
        show(result, Console())

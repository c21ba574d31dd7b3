"""The command `uccl-ep bench scale`; what it does is in modules loaded when it runs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from uccl_ep.tools.bench.model.commands import Json, Out, Plot

_SIMULATED = "What is simulated"


def scale(
    platform: Annotated[
        list[str] | None,
        typer.Option(
            help="p5en, p6-b200, p6-b200-aws, mi300x-cx7, mi300x-thor2, mi355x-pollara or gh200-cxi; may be repeated. "
            "Default: p5en and mi300x-cx7.",
            rich_help_panel=_SIMULATED,
        ),
    ] = None,
    ranks: Annotated[
        list[int] | None,
        typer.Option(help="A rank count; may be repeated. Default: 16, 64, 256 and 1024.", rich_help_panel=_SIMULATED),
    ] = None,
    disturbed: Annotated[
        list[int] | None,
        typer.Option(
            help="A rank count to disturb too (incast, slow rail, slow rank); may be repeated; 0: none. Default: 64.",
            rich_help_panel=_SIMULATED,
        ),
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(help="low-latency or throughput. Default: both.", rich_help_panel=_SIMULATED),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens of a rank, low latency.", rich_help_panel=_SIMULATED)] = 128,
    throughput_tokens: Annotated[
        int, typer.Option(help="Tokens of a rank, throughput.", rich_help_panel=_SIMULATED)
    ] = 1024,
    hidden: Annotated[int, typer.Option(help="Channels of a token.", rich_help_panel=_SIMULATED)] = 7168,
    topk: Annotated[int, typer.Option(help="Experts that a token visits.", rich_help_panel=_SIMULATED)] = 8,
    experts: Annotated[int, typer.Option(help="Experts of all ranks, at least.", rich_help_panel=_SIMULATED)] = 256,
    row_format: Annotated[
        str, typer.Option("--format", help="Dispatch rows: bf16 or fp8.", rich_help_panel=_SIMULATED)
    ] = "fp8",
    late_us: Annotated[
        float, typer.Option(help="By how much the slow rank begins late.", rich_help_panel=_SIMULATED)
    ] = 500.0,
    seed: Annotated[int, typer.Option(help="Chooses routes, orders and jitter.", rich_help_panel=_SIMULATED)] = 0,
    refit: Annotated[
        bool,
        typer.Option("--refit", help="First fit the testbeds' constants again (minutes).", rich_help_panel=_SIMULATED),
    ] = False,
    plot: Plot = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Simulate published testbeds: upstream's traffic against its published times, then ours up to 1,024 ranks.

    Nothing here is measured on such hardware. Writes and bytes are counted exactly; proxies, NICs, the network and the
    links of a node are queues in virtual time, with a few constants of each testbed fitted on published rows of one and
    two nodes. The first table has the error of every published row; rows of three nodes and more are predictions. Then
    AWS's comparison of three libraries with ours beside them, rounds of both sides, and what incast, a slow rail and a
    slow rank cost, and whom.

    Examples:

      uccl-ep bench scale

      uccl-ep bench scale --platform p6-b200 --ranks 32 --ranks 512 --disturbed 32 --json

      uccl-ep bench scale --plot scale.png --out build/bench/results/scale.json
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from uccl_ep.tools.bench.scale.plot import draw_scale
    from uccl_ep.tools.bench.scale.report import show_scale
    from uccl_ep.tools.bench.scale.sweep import ScaleOptions
    from uccl_ep.tools.bench.scale.sweep import scale as run

    base = ScaleOptions()
    options = ScaleOptions(
        platforms=tuple(platform) if platform else base.platforms,
        ranks=tuple(ranks) if ranks else base.ranks,
        disturbed=base.disturbed if not disturbed else tuple(count for count in disturbed if count),
        modes=tuple(mode) if mode else base.modes,
        tokens=tokens,
        throughput_tokens=throughput_tokens,
        hidden=hidden,
        topk=topk,
        experts=experts,
        row_format=row_format,
        late_us=late_us,
        seed=seed,
        refit=refit,
    )
    options.check()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=as_json) as progress:
        task = progress.add_task("simulating", total=options.steps)
        result = run(options, lambda: progress.advance(task))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if plot is not None:
        draw_scale(result, plot)
    if as_json:
        typer.echo(json.dumps(result, indent=1))
    else:
        show_scale(result, Console())

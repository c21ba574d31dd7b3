# The `uccl-ep` command. Each command imports what it needs when it runs, so that --help answers without loading torch;
# an error of ours is one red line and exit status 2, never a trace.
from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from uccl_ep.bench.options import MODES, BenchOptions
from uccl_ep.demo.options import GATES, PROXIES, TRANSPORTS, DemoOptions
from uccl_ep.errors import UcclEpError

STATUS_ERROR = 2
STATUS_STOPPED = 128
"""Plus the signal's number, as shells have it."""

DEFAULTS = DemoOptions()
BENCH = BenchOptions()
MODEL, WORLD, OUTPUT = "Model and training", "Ranks and network", "Output"

app = typer.Typer(
    name="uccl-ep",
    help="Expert-parallel dispatch and combine on any GPU and any NIC, behind DeepEP's Python API.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.command()
def version() -> None:
    """Print the versions of uccl-ep, Python and torch (torch's without loading it)."""
    from importlib import metadata

    for name in ("uccl-ep", "torch"):
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = "not installed as a package"
        typer.echo(f"{name} {found}")
    typer.echo(f"python {sys.version.split()[0]}")


@app.command()
def env() -> None:
    """Print every UCCL_EP_* environment variable: its meaning, what it may be, its default, and its value here."""
    from rich.console import Console
    from rich.table import Table

    from uccl_ep.settings import describe

    table = Table()
    for heading in ("variable", "here", "default", "allowed", "meaning"):
        table.add_column(heading, overflow="fold")
    for row in describe():
        table.add_row(row.name, os.environ.get(row.name, "-"), row.default, row.allowed, row.help)
    Console().print(table)


@app.command()
def demo(
    steps: Annotated[int, typer.Option(help="Training steps.", rich_help_panel=MODEL)] = DEFAULTS.steps,
    experts: Annotated[
        int, typer.Option(help="Routed experts in a layer; a multiple of --ranks.", rich_help_panel=MODEL)
    ] = DEFAULTS.experts,
    topk: Annotated[int, typer.Option(help="Experts that each token visits.", rich_help_panel=MODEL)] = DEFAULTS.topk,
    hidden: Annotated[
        int, typer.Option(help="Channels in a row; a multiple of 32, with --fp8 of 128.", rich_help_panel=MODEL)
    ] = DEFAULTS.hidden,
    gate: Annotated[
        str, typer.Option(help=f"Score of an expert: {' or '.join(GATES)}.", rich_help_panel=MODEL)
    ] = DEFAULTS.gate,
    seed: Annotated[
        int, typer.Option(help="Chooses weights and text; equal seeds give equal losses.", rich_help_panel=MODEL)
    ] = DEFAULTS.seed,
    fp8: Annotated[
        bool, typer.Option("--fp8", help="Dispatch rows as e4m3 with a scale per 128 channels.", rich_help_panel=WORLD)
    ] = False,
    ranks: Annotated[
        int, typer.Option(help="Processes that share the experts.", rich_help_panel=WORLD)
    ] = DEFAULTS.ranks,
    ranks_per_node: Annotated[
        int,
        typer.Option(help="Ranks that reach each other by load/store; others use the proxies.", rich_help_panel=WORLD),
    ] = DEFAULTS.ranks_per_node,
    proxy: Annotated[
        str,
        typer.Option(help=f"Where the proxy runs: {' or '.join(PROXIES)} beside the rank.", rich_help_panel=WORLD),
    ] = DEFAULTS.proxy,
    transport: Annotated[
        str, typer.Option(help=f"Network between nodes: {', '.join(TRANSPORTS)}.", rich_help_panel=WORLD)
    ] = DEFAULTS.transport,
    out: Annotated[
        Path, typer.Option(help="The picture: loss curves and bytes matrix.", rich_help_panel=OUTPUT)
    ] = Path("uccl-ep-demo.png"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.", rich_help_panel=OUTPUT)
    ] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="When a rank fails, print its Python trace too.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Train a small Mixture-of-Experts language model with its experts spread over ranks, and compare with one process.

    Four ranks on this host play two nodes. Every row that crosses between the nodes goes kernel, ring, proxy, network,
    proxy, kernel; rows inside a node go by load and store. Then one process trains the same model on the same text
    (Python's own standard library) with no communication, and the two final losses must agree within 1e-3.

    Takes about a minute and a half on two cores and needs no GPU and no NIC. Ends with status 0 when the losses agree,
    1 when they do not, 2 when something failed.

    Examples:

      uccl-ep demo

      uccl-ep demo --fp8 --proxy process --steps 40

      uccl-ep demo --ranks 8 --ranks-per-node 2 --experts 32 --json
    """
    from rich.console import Console

    from uccl_ep.demo.launch import RankFailed, Stopped
    from uccl_ep.demo.run import run_demo

    options = DemoOptions(
        steps=steps,
        ranks=ranks,
        ranks_per_node=ranks_per_node,
        experts=experts,
        topk=topk,
        hidden=hidden,
        gate=gate,
        fp8=fp8,
        proxy=proxy,
        transport=transport,
        seed=seed,
    )
    try:
        status = run_demo(options, out, as_json, Console())
    except RankFailed as error:
        if trace:
            typer.echo(error.trace, err=True)
        elif error.trace:
            typer.echo("(add --trace to see where)", err=True)
        raise
    except KeyboardInterrupt:
        raise Stopped(signal.SIGINT) from None
    raise typer.Exit(status)


@app.command()
def bench(
    mode: Annotated[str, typer.Option(help="throughput, low-latency, or both.")] = "both",
    ranks: Annotated[int, typer.Option(help="Processes.")] = BENCH.ranks,
    ranks_per_node: Annotated[int, typer.Option(help="Ranks that reach each other by load/store.")] = (
        BENCH.ranks_per_node
    ),
    tokens: Annotated[int, typer.Option(help="Tokens of each rank (low latency: at most 128).")] = BENCH.tokens,
    hidden: Annotated[int, typer.Option(help="Channels of a token.")] = BENCH.hidden,
    topk: Annotated[int, typer.Option(help="Experts that a token visits.")] = BENCH.topk,
    experts: Annotated[int, typer.Option(help="Experts of all ranks.")] = BENCH.experts,
    rounds: Annotated[int, typer.Option(help="Timed pairs.")] = BENCH.rounds,
    transport: Annotated[str, typer.Option(help="Network between nodes: auto, shared_memory, tcp.")] = BENCH.transport,
    out: Annotated[Path | None, typer.Option(help="Folder for the JSON results.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Measure dispatch and combine beside torch's all_to_all on gloo, in the same processes, as pairs.

    Every timed round is checked. Times are the slowest rank's; the ratio is the median over pairs, because absolute
    times drift on a shared machine. Results carry the machine's fingerprint.

    Examples:

      uccl-ep bench

      uccl-ep bench --mode throughput --tokens 4096 --hidden 7168 --experts 256 --out bench/results
    """
    from dataclasses import replace

    from rich.console import Console

    from uccl_ep.bench.run import run_bench

    base = replace(
        BENCH,
        ranks=ranks,
        ranks_per_node=ranks_per_node,
        tokens=tokens,
        hidden=hidden,
        topk=topk,
        experts=experts,
        rounds=rounds,
        transport=transport,
    )
    console = Console()
    for one in MODES if mode == "both" else (mode,):
        options = replace(base, mode=one, tokens=min(tokens, 128) if one == "low-latency" else tokens)
        run_bench(options, None if out is None else out / f"{one}.json", as_json, console)


def main() -> None:
    """The console script: runs a command and turns our errors into a line and a status."""
    from uccl_ep.demo.launch import Stopped

    try:
        app()
    except UcclEpError as error:
        fail(str(error), STATUS_ERROR)
    except Stopped as stopped:
        fail(str(stopped), STATUS_STOPPED + stopped.signal_number)


def fail(text: str, status: int) -> None:
    from rich.console import Console

    Console(stderr=True).print(f"uccl-ep: {text}", style="bold red", markup=False, highlight=False, soft_wrap=True)
    raise SystemExit(status)

# The `uccl-ep` command. Each command imports what it needs when it runs, so that --help answers without loading torch;
# an error of ours is one red line and exit status 2, never a trace.
from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from uccl_ep.errors import InvalidArgument, UcclEpError
from uccl_ep.tools.bench.command import bench_app
from uccl_ep.tools.bench.model.commands import count_bytes, growth, memory, rebalance
from uccl_ep.tools.bench.render_command import render
from uccl_ep.tools.bench.scale.command import scale
from uccl_ep.tools.bench.transport_command import transport
from uccl_ep.tools.check.command import check
from uccl_ep.tools.conformance.options import ConformanceOptions
from uccl_ep.tools.demo.options import GATES, PROXIES, TRANSPORTS, DemoOptions
from uccl_ep.tools.doctor.command import doctor
from uccl_ep.tools.env import env
from uccl_ep.tools.explain.explain_command import explain
from uccl_ep.tools.explain.trace_command import trace as make_trace
from uccl_ep.tools.manners import CONTEXT, finished
from uccl_ep.tools.plan.command import plan
from uccl_ep.tools.top.command import top

STATUS_ERROR = 2
STATUS_STOPPED = 128
"""Plus the signal's number, as shells have it."""

DEFAULTS = DemoOptions()
CHECKED = ConformanceOptions()
MODEL, WORLD, OUTPUT = "Model and training", "Ranks and network", "Output"

app = typer.Typer(
    name="uccl-ep",
    no_args_is_help=True,
    context_settings=CONTEXT,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def show_version(wanted: bool) -> None:
    """What --version does: as it is read, before a command is asked for."""
    if wanted:
        typer.echo(f"uccl-ep {versions()['uccl-ep']}")
        raise typer.Exit


@app.callback()
def whole(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=show_version, help="Print the version of uccl-ep and exit."),
    ] = False,
) -> None:
    """Expert-parallel dispatch and combine on any GPU and any NIC, behind DeepEP's Python API."""


@app.command()
def version(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Print the versions of uccl-ep, Python and torch (torch's without loading it)."""
    import json

    found = versions()
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    for name, one in found.items():
        typer.echo(f"{name} {one or 'not installed as a package'}")


def versions() -> dict[str, str | None]:
    """Versions of uccl-ep, torch and Python; None: not installed as a package."""
    from importlib import metadata

    found: dict[str, str | None] = {}
    for name in ("uccl-ep", "torch"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return {**found, "python": sys.version.split()[0]}


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
    kill: Annotated[
        str,
        typer.Option(
            help="RANK@stepN: kill that rank in the middle of step N; the others go on.", rich_help_panel=WORLD
        ),
    ] = DEFAULTS.kill,
    out: Annotated[
        Path, typer.Option(help="The picture: loss curves and bytes matrix.", rich_help_panel=OUTPUT)
    ] = Path("uccl-ep-demo.png"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.", rich_help_panel=OUTPUT)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show no progress, only the comparison.", rich_help_panel=OUTPUT)
    ] = False,
    trace: Annotated[
        bool,
        typer.Option(
            "--trace", "-v", "--verbose", help="When a rank fails, print its Python trace too.", rich_help_panel=OUTPUT
        ),
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

      uccl-ep demo --kill 2@step40
    """
    from rich.console import Console

    from uccl_ep.tools.demo.launch import RankFailed
    from uccl_ep.tools.demo.run import run_demo
    from uccl_ep.tools.launch import Stopped

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
        kill=kill,
    )
    try:
        status = run_demo(options, out, as_json, Console(), quiet)
    except RankFailed as error:
        if trace:
            typer.echo(error.trace, err=True)
        elif error.trace:
            typer.echo("(add --trace to see where)", err=True)
        raise
    except KeyboardInterrupt:
        raise Stopped(signal.SIGINT) from None
    raise typer.Exit(status)


app.add_typer(bench_app, name="bench")
app.command()(doctor)
app.command()(env)
app.command()(plan)
app.command()(check)
app.command()(top)
app.command()(explain)
app.command("trace")(make_trace)
bench_app.command()(transport)
bench_app.command()(render)
bench_app.command("bytes")(count_bytes)
bench_app.command()(memory)
bench_app.command()(growth)
bench_app.command()(rebalance)
bench_app.command()(scale)


@app.command()
def warmup(
    arch: Annotated[
        list[str] | None,
        typer.Option(help="Processor such as sm_90a or gfx942; may be repeated. Default: the GPUs here."),
    ] = None,
    cache_dir: Annotated[
        Path | None, typer.Option(help="Where to keep the kernels. Default: UCCL_EP_CACHE_DIR, or the user's cache.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Compile every GPU kernel ahead of time, so that the first Buffer of a job starts at once. Needs no GPU.

    Prints what each kernel takes of a processor (registers a lane, static shared memory a block, bytes spilled to
    memory) and whether it was compiled or already there. Kernels are found again by the same uccl-ep and compiler only.

    Examples:

      uccl-ep warmup

      uccl-ep warmup --arch sm_90a --arch sm_100a --cache-dir /shared/uccl-ep
    """
    from rich.console import Console

    from uccl_ep.gpu.warmup import run_warmup

    run_warmup(arch or [], cache_dir, Console(), as_json=as_json)


@app.command()
def simulate(
    seeds: Annotated[
        int | None, typer.Option(help="How many runs. Default: 1000, or as many as --minutes allows.")
    ] = None,
    first: Annotated[int, typer.Option(help="The first seed; the others follow it.")] = 1,
    fresh: Annotated[bool, typer.Option("--fresh", help="Take the first seed from the time, and print it.")] = False,
    seed: Annotated[int | None, typer.Option(help="Run this one seed, and explain its failure.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Threads. Default: one for each core.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after so many minutes.")] = None,
    profile: Annotated[
        str, typer.Option(help="rc: in order per queue pair. srd: any order. any: the seed chooses.")
    ] = "any",
    ranks: Annotated[int, typer.Option(help="Ranks of every run, with --nodes. Default: the seed chooses.")] = 0,
    nodes: Annotated[int, typer.Option(help="Nodes that these ranks are on, as equal as there can be.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write totals and failing seeds to this file, as JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Prove dispatch and combine against simulated networks that reorder, delay and fail.

    Each seed stands for one whole run: 2 to 64 ranks on any nodes (or what --ranks and --nodes say), their tokens, ring
    sizes, limits, a network and what goes wrong in it. The real kernels, rings and proxy engines of all ranks run on
    one thread in virtual time. Writes and immediates arrive in any order that the transport contract allows; links
    stall, ranks are slow, links are cut and ranks die. Every row is compared with an oracle; where something was lost,
    every survivor must say so before its deadline and name a rank that can be to blame.

    The same seed gives the same run, to the bit. A failing seed is printed with the command that replays it and with a
    shortened list of what went wrong in its network. Ends with status 0 when all pass, 1 when one fails.

    Examples:

      uccl-ep simulate --seeds 20000

      uccl-ep simulate --minutes 5 --fresh --profile srd --out totals.json

      uccl-ep simulate --seeds 50 --ranks 256 --nodes 32 --jobs 1

      uccl-ep simulate --seed 4711
    """
    import time
    from dataclasses import replace

    from rich.console import Console

    from uccl_ep.tools.launch import Stopped
    from uccl_ep.tools.simulate import SimulateOptions, run_one, run_simulate

    console = Console()
    threads = len(os.sched_getaffinity(0)) if jobs is None else jobs
    options = SimulateOptions(None, first, threads, minutes, profile, ranks, nodes)
    if seed is not None:
        if as_json or out is not None:
            raise InvalidArgument("--seed explains one seed in words: give --json or --out with --seeds instead")
        raise typer.Exit(run_one(seed, options, console))
    if fresh:
        first = time.time_ns() // 1_000_000 % (1 << 40)
    if fresh and not as_json:
        console.print(f"first seed: {first}", highlight=False)
    options = replace(options, first=first, seeds=1000 if seeds is None and minutes is None else seeds)
    try:
        status = run_simulate(options, out, console, as_json)
    except KeyboardInterrupt:
        raise Stopped(signal.SIGINT) from None
    raise typer.Exit(status)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
)
def run(context: typer.Context) -> None:
    """Run a program in which `import deep_ep` gives uccl_ep, in every Python process that it starts.

    The program is a script, `-m module`, `-c code`, or any command such as torchrun; it takes this process's place. No
    file is written, and a deep_ep that is installed stays as it is. See uccl_ep/drop_in for other ways.

    Examples:

      uccl-ep run -- train.py --steps 10

      uccl-ep run -- torchrun --nproc-per-node 4 train.py

      uccl-ep run -- -c "import deep_ep; print(deep_ep.__version__)"
    """
    from uccl_ep.drop_in.run import execute

    execute(context.args)


@app.command()
def conformance(
    module: Annotated[str, typer.Argument(help="What to check: deep_ep, uccl_ep, or any module with their names.")],
    ranks: Annotated[int, typer.Option(help="Processes.")] = CHECKED.ranks,
    nodes: Annotated[
        int, typer.Option(help="Nodes to spread them over; other libraries than ours: 1.")
    ] = CHECKED.nodes,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda. auto: a GPU if there is one.")] = CHECKED.device,
    only: Annotated[list[str] | None, typer.Option(help="Only checks whose name has this; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(help="Chooses tokens and routes.")] = CHECKED.seed,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show no progress, and of the checks only those that failed.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Check a DeepEP-like module against DeepEP's contract: what it returns, to the row, and what it refuses.

    Each row of the table names the part of the contract that it checks. Ends with status 0 when all that is required
    holds, 1 when something does not.

    Examples:

      uccl-ep conformance uccl_ep --ranks 4 --nodes 2

      uccl-ep conformance deep_ep --only low_latency --json
    """
    from rich.console import Console

    from uccl_ep.tools.conformance.launch import run_conformance
    from uccl_ep.tools.conformance.options import ConformanceOptions

    options = ConformanceOptions(module, ranks, nodes, device, tuple(only or ()), seed)
    raise typer.Exit(run_conformance(options, as_json, Console(), quiet))


def main() -> None:
    """The console script: runs a command and turns our errors into a line and a status."""
    from uccl_ep.tools.launch import Stopped

    try:
        finished(app)()
    except UcclEpError as error:
        fail(str(error), STATUS_ERROR)
    except Stopped as stopped:
        fail(str(stopped), STATUS_STOPPED + stopped.signal_number)


def fail(text: str, status: int) -> None:
    from rich.console import Console

    Console(stderr=True).print(f"uccl-ep: {text}", style="bold red", markup=False, highlight=False, soft_wrap=True)
    raise SystemExit(status)

"""The command `uccl-ep plan`; what it does is in make.py and report.py, which are loaded when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JOB, MACHINES, OUTPUT = "The job", "Its hosts", "Output"
STATUS_WARNED = 1
USUAL = 8
"""Ranks of a host that has no GPU to count."""


def plan(
    ranks: Annotated[int, typer.Option(help="Ranks of the job.", rich_help_panel=JOB)] = 16,
    ranks_per_node: Annotated[
        int,
        typer.Option(help="Ranks on each host; 0: as many as it has GPUs, else 8 (it says so).", rich_help_panel=JOB),
    ] = 0,
    tokens: Annotated[int, typer.Option(help="Tokens of a rank in a step.", rich_help_panel=JOB)] = 128,
    hidden: Annotated[int, typer.Option(help="Channels of a token.", rich_help_panel=JOB)] = 7168,
    experts: Annotated[int, typer.Option(help="Experts of all ranks.", rich_help_panel=JOB)] = 256,
    topk: Annotated[int, typer.Option(help="Experts that a token visits.", rich_help_panel=JOB)] = 8,
    mode: Annotated[str, typer.Option(help="low_latency or throughput.", rich_help_panel=JOB)] = "low_latency",
    row_format: Annotated[
        str, typer.Option("--format", help="Rows of a dispatch: bf16, fp8, fp8_ue8m0, nvfp4.", rich_help_panel=JOB)
    ] = "fp8",
    shrink: Annotated[
        bool, typer.Option("--shrink", help="With enable_shrink: ranks that fail are left out.", rich_help_panel=JOB)
    ] = False,
    sysfs: Annotated[
        list[Path] | None,
        typer.Option(
            help="A host's /sys, or a recorded tree of one; may be repeated, one a host, and the last stands for all "
            "further hosts. Default: this machine's, for all hosts.",
            rich_help_panel=MACHINES,
        ),
    ] = None,
    why: Annotated[
        list[int] | None,
        typer.Option(help="Explain every choice of this rank; may be repeated.", rich_help_panel=OUTPUT),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", "-v", "--verbose", help="Also ranks of hosts that are like the first.", rich_help_panel=OUTPUT
        ),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="End with status 1 when anything is warned of.", rich_help_panel=OUTPUT)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Only warnings, and their number.", rich_help_panel=OUTPUT)
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON object and nothing else; it has a schema version.", rich_help_panel=OUTPUT
        ),
    ] = False,
) -> None:
    """Say what a job would decide, before it runs: GPU, NICs, addresses, transport, memory and bytes of every rank.

    It reads the machines by the code that a Buffer starts with, and takes UCCL_EP_* variables as the job would. Each
    choice comes with its reason and what it was chosen over. Two ranks on one NIC, a fallback, ranks that differ and
    limits that are too low are warned of first. Drivers cannot be asked before a job: that GPU memory is exported is
    presumed. A Buffer prints the same from what its ranks really say when UCCL_EP_EXPLAIN=1.

    Ends with status 0; 2 when the job would be refused, with the job's own words; with --strict 1 when it warns.

    Examples:

      uccl-ep plan --ranks 16 --ranks-per-node 8 --tokens 128 --hidden 7168 --experts 256 --topk 8

      uccl-ep plan --mode throughput --tokens 4096 --ranks 64 --why 3

      uccl-ep plan --sysfs trees/p5en --sysfs trees/odd-one --ranks 32 --json

      UCCL_EP_TRANSPORT=tcp UCCL_EP_DEVICE=cpu uccl-ep plan --ranks 4 --ranks-per-node 2 --strict
    """
    import json

    from rich.console import Console

    from uccl_ep.cost_model.expected_bytes import Load
    from uccl_ep.errors import refuse
    from uccl_ep.fabric.sysfs import read_machine
    from uccl_ep.settings import settings
    from uccl_ep.tools.plan.imagine import Job
    from uccl_ep.tools.plan.make import make_plan
    from uccl_ep.tools.plan.report import as_json as to_json
    from uccl_ep.tools.plan.report import print_plan

    trees = tuple(map(str, sysfs or [Path("/sys")]))
    per_host, assumed = ranks_per_node, ""
    if not per_host:
        gpus = len(read_machine(trees[0]).gpus)
        per_host = min(gpus or USUAL, ranks)
        since = f"the first host has {gpus} GPU(s)" if gpus else "no GPU says otherwise"
        assumed = f"Assumed: {per_host} rank(s) on each host, since {since}; --ranks-per-node says how many there are."
    load = Load(tokens, hidden, experts, topk, mode, row_format)
    made = make_plan(Job(ranks, min(per_host, ranks), load, shrink, trees), settings())
    for number in why or ():
        if not 0 <= number < len(made.ranks):
            refuse("--why", number, f"0 to {len(made.ranks) - 1}")
    if as_json:
        typer.echo(json.dumps(to_json(made, assumed), indent=1))
    else:
        print_plan(made, Console(), why or [0], everything, quiet, assumed)
    raise typer.Exit(STATUS_WARNED if strict and made.cautions else 0)

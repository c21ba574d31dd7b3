"""Measures one shape beside its peers, prints a table and writes JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from uccl_ep.errors import UcclEpError
from uccl_ep.tools.bench.collectives import openmpi_absence
from uccl_ep.tools.bench.fingerprint import fingerprint
from uccl_ep.tools.bench.launch import launch
from uccl_ep.tools.bench.limit import needed_bytes
from uccl_ep.tools.bench.options import BenchOptions
from uccl_ep.tools.bench.summary import summarise

SCHEMA = 2
"""Of the file; 1 had one peer, no limit and no targets."""

TCP_NOTE = (
    "2 or more nodes: openmpi and gloo use tcp between all ranks; uccl_ep load/store inside a node, as chosen there"
)


def available(options: BenchOptions) -> tuple[BenchOptions, dict[str, str]]:
    """(the options with the peers that are here, why each other one is not)."""
    why = openmpi_absence() if "openmpi" in options.peers else ""
    absent = {"openmpi": why} if why else {}
    return replace(options, peers=tuple(peer for peer in options.peers if peer not in absent)), absent


def check_memory(options: BenchOptions) -> None:
    """Refuses what the machine has no memory for, before the system ends a process of someone else.

    Raises:
        UcclEpError: with what is needed and what there is.
    """
    needed, free = needed_bytes(options), psutil.virtual_memory().available
    if needed > free:
        raise UcclEpError(
            f"bench: {options.ranks} ranks of {options.tokens} tokens x {options.hidden} take about "
            f"{needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free: fewer --ranks or --tokens, or --shape small"
        )


def _notes(options: BenchOptions, report: dict[str, Any]) -> list[str]:
    if options.num_nodes == 1:
        return []
    form = report["combine"]
    return [TCP_NOTE] if form is None else [TCP_NOTE, f"our combine is {form['form']}: {form['reason']}"]


def run_bench(options: BenchOptions, out: Path | None, as_json: bool, console: Console) -> dict[str, Any]:
    """Measures, prints a table (or the JSON), writes `out` when given; returns what was written.

    Raises:
        InvalidArgument: the options cannot run, or no peer that was asked for is here.
        UcclEpError: a rank failed, or a timed round returned wrong rows.
    """
    options.check()
    options, absent = available(options)
    if not as_json:
        for peer, why in absent.items():
            console.print(f"[bold yellow]{peer} is not measured[/]: {why}", highlight=False)
    if not options.peers:
        raise UcclEpError("bench: no peer to measure beside: " + "; ".join(f"{p}: {why}" for p, why in absent.items()))
    check_memory(options)
    reports = launch(options)
    result = {
        "schema": SCHEMA,
        "benchmark": "beside peers",
        "options": {**asdict(options), "peers": list(options.peers)},
        "machine": {**fingerprint(), "loaded": reports[0]["loaded"]},
        "absent": absent,
        "combine": reports[0]["combine"],
        "notes": _notes(options, reports[0]),
        "paths": reports[0]["via"],
        "proxy_writes": sum(r["proxy"]["writes"] for r in reports),
        "proxy_bytes": sum(r["proxy"]["write_bytes"] for r in reports),
        **summarise(options, reports),
    }
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if as_json:
        console.print_json(json.dumps(result))
    else:
        from uccl_ep.tools.bench.show import show_peers

        show_peers(result, console)
    return result

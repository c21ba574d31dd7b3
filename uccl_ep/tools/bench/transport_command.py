"""The command `uccl-ep bench transport`; what it does is in transport.py, which is loaded when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from uccl_ep.tools.bench.transport_options import NETWORKS, TransportOptions

_DEFAULTS = TransportOptions()


def transport(
    network: Annotated[
        list[str] | None,
        typer.Option(help=f"One of {', '.join(n.name for n in NETWORKS)}; may be repeated. Default: all."),
    ] = None,
    size: Annotated[
        list[int] | None,
        typer.Option(help="Bytes of a write; may be repeated. Default: " + ", ".join(map(str, _DEFAULTS.sizes)) + "."),
    ] = None,
    rounds: Annotated[int, typer.Option(help="How often every network takes its turn.")] = _DEFAULTS.rounds,
    megabytes: Annotated[
        int, typer.Option(help="What a network writes at a size in a round, at most.")
    ] = _DEFAULTS.megabytes,
    out: Annotated[Path | None, typer.Option(help="File for the JSON result.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Compare the networks of this host: shared memory, our tcp, and libfabric's tcp and shm.

    Two processes write to each other, at each size as fast as a network takes it (rate, bandwidth) and one write at a
    time (round trip). The networks take turns, because absolute times drift on a shared machine. Bytes are checked.
    At the end it says which of our tcp and libfabric's tcp is the faster, for hosts without an RDMA NIC. A network that
    this machine lacks is named with the reason.

    Examples:

      uccl-ep bench transport

      uccl-ep bench transport --network tcp --network "libfabric tcp" --size 7168 --rounds 20 --out transport.json
    """
    from rich.console import Console

    from uccl_ep.tools.bench.transport import run_transport

    options = TransportOptions(
        networks=_DEFAULTS.networks if network is None else tuple(network),
        sizes=_DEFAULTS.sizes if size is None else tuple(size),
        rounds=rounds,
        megabytes=megabytes,
    )
    run_transport(options, out, as_json, Console())

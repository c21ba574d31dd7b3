"""The command `uccl-ep check`; what it does is loaded when it runs."""

from __future__ import annotations

from typing import Annotated

import typer


def check(
    peer: Annotated[
        str,
        typer.Argument(help="HOST:PORT, as the other host has printed it; without it, wait."),
    ] = "",
    code: Annotated[str, typer.Option(help="The code that the other host has printed.")] = "",
    listen: Annotated[
        str, typer.Option(help="Wait on this address instead of the one that other hosts reach this host by.")
    ] = "",
    port: Annotated[int, typer.Option(help="Wait on this port; 0: any that is free.")] = 0,
    rounds: Annotated[int, typer.Option(help="Rounds of each measurement, of which medians are taken.")] = 5,
    megabytes: Annotated[int, typer.Option(help="What is written at a size in a round, at most.")] = 256,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else; it has a schema version.")
    ] = False,
) -> None:
    """Measure the network between two hosts, read both NICs' counters, and name the command that mends what is wrong.

    Start it on one host without PEER: it prints what to type on the other. The network is the one that a job between
    the two would choose, with the same variables. Bandwidth, round trips and immediates are measured both ways, from
    host memory, by one thread. Counters of losses, pauses (PFC), marks (ECN, DCQCN) and link errors are compared before
    and after. Both hosts print the same report. Nothing is changed.

    Ends with status 0 when the hosts could talk, whatever was found.

    Examples:

      uccl-ep check

      uccl-ep check 10.0.0.5:41297 --code 5f0c9e7ab1d24c33
    """
    import json

    from rich.console import Console

    from uccl_ep.errors import refuse
    from uccl_ep.fabric.facts import host_address
    from uccl_ep.settings import Settings
    from uccl_ep.tools.check import report
    from uccl_ep.tools.check.measure import Effort, measure
    from uccl_ep.tools.check.talk import call, new_code
    from uccl_ep.tools.check.talk import listen as wait_for

    settings, console = Settings.from_environment(), Console()
    said = Console(stderr=True) if as_json else console
    for option, value in (("--rounds", rounds), ("--megabytes", megabytes)):
        if value < 1:
            refuse(option, value, "1 or more")
    if peer:
        host, colon, number = peer.rpartition(":")
        if not colon or not number.isdecimal() or not 0 < int(number) < 1 << 16:
            refuse("PEER", peer, "HOST:PORT, as the other host has printed it")
        if not code:
            refuse("--code", code, "the code that the other host has printed")
        talk = call(host.strip("[]"), int(number), code)
    else:
        code = code or new_code()

        def ready(address: str, on: int) -> None:
            where = f"[{address}]:{on}" if ":" in address else f"{address}:{on}"
            said.print(f"on the other host: uccl-ep check {where} --code {code}", soft_wrap=True, highlight=False)

        talk = wait_for(listen or host_address(settings)[0], port, code, ready)
    with talk:
        effort = Effort(rounds=rounds, megabytes=megabytes)
        measured = measure(talk, settings, effort, lambda words: said.print(f"{words} ...", style="dim"))
    if as_json:
        typer.echo(json.dumps(report.as_json(measured), indent=1))
    else:
        report.print_report(measured, console)

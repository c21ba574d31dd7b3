"""The command `uccl-ep doctor`; the checks are loaded when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from uccl_ep.tools.doctor.record import PATHS

WHAT, OUTPUT = "What to look at", "Output"
STATUS_NOT_USABLE = 1


def doctor(
    path: Annotated[
        list[str] | None,
        typer.Option(help=f"Only this path; may be repeated. One of {', '.join(PATHS)}.", rich_help_panel=WHAT),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            help="End with status 1 unless this path can be used; may be repeated. For a job's first line, or an "
            "image's health check.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    sysfs: Annotated[
        Path,
        typer.Option(
            help="A recorded tree of another machine's /sys: its GPUs, NICs and ports are judged, and nothing is asked "
            "of this machine's devices.",
            rich_help_panel=WHAT,
        ),
    ] = Path("/sys"),
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            "-v",
            "--verbose",
            help="Also the checks of paths that this machine does not need.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Only the line of each path.", rich_help_panel=OUTPUT)
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON object and nothing else; it has a schema version.", rich_help_panel=OUTPUT
        ),
    ] = False,
) -> None:
    """Say what each path of uccl-ep finds on this machine, what is missing, and the command that fixes it.

    A path is a place to compute (cpu, cuda, rocm) or a way to move rows (host: shared memory inside a host; tcp, verbs,
    efa, libfabric). The first lines are the verdicts. Each check says ok, slow (the path works all the same, only
    slower or less surely), missing, unknown, or no device (nothing here is for it). Nothing is changed, and no check
    can end the report: what cannot be read is a finding. Run it where the job runs: in its container, as its user, with
    its variables.

    Ends with status 0; with --require, 1 unless those paths can be used.

    Examples:

      uccl-ep doctor

      uccl-ep doctor --path verbs --path cuda

      uccl-ep doctor --require cuda --require efa --json
    """
    import json

    from rich.console import Console

    from uccl_ep.errors import refuse
    from uccl_ep.tools.doctor.catalogue import check_names, examine_host
    from uccl_ep.tools.doctor.host import Host
    from uccl_ep.tools.doctor.report import as_json as to_json
    from uccl_ep.tools.doctor.report import print_report, unsatisfied

    required = tuple(require or ())
    check_names("--path", path or ())
    check_names("--require", required)
    if not sysfs.is_dir():
        refuse("--sysfs", str(sysfs), "a folder that looks like /sys")
    wanted = PATHS if not path else tuple({*path, *required})
    examination = examine_host(Host(sys=str(sysfs)), wanted)
    console = Console()
    if as_json:
        typer.echo(json.dumps(to_json(examination, required), indent=1))
    else:
        print_report(examination, console, everything, quiet)
        for name in unsatisfied(examination, required):
            console.print(f"--require {name}: it cannot be used here", style="bold red")
    raise typer.Exit(STATUS_NOT_USABLE if unsatisfied(examination, required) else 0)

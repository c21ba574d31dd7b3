"""The command `uccl-ep trace`; what it does is in chrome.py, which is loaded when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def trace(
    records: Annotated[list[Path], typer.Argument(help="Folders of flight records, or the records.", metavar="DIR...")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The trace.")] = Path("uccl-ep-trace.json"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was written as one JSON object: file, events, ranks.")
    ] = False,
) -> None:
    """Make one trace of all ranks' records, for Perfetto (ui.perfetto.dev) or chrome://tracing.

    With UCCL_EP_TRACE=DIR each rank records every command (the last 65,536 events of each proxy thread) and leaves its
    record in DIR when its Buffer is destroyed; of one that was killed, its journal in memory of this host is read. A
    process a rank, with rows for calls, kernels, and each proxy thread's ring, network, arrivals and flags, all on one
    clock. Records of faults, which have less, can be drawn as well.

    Examples:

      UCCL_EP_TRACE=steps torchrun ... ; uccl-ep trace steps -o steps.json

      uccl-ep trace host-a/steps host-b/steps
    """
    import json

    from uccl_ep.recorder.find import read_all
    from uccl_ep.tools.explain.chrome import trace_of

    found = read_all(records)
    made = trace_of(found)
    out.write_text(json.dumps(made, separators=(",", ":")), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps({"out": str(out), "events": len(made["traceEvents"]), "ranks": [r.rank for r in found]}))
        return
    typer.echo(f"{out}: {len(made['traceEvents'])} events of {len(found)} rank(s). Open it in ui.perfetto.dev")

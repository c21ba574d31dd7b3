"""`uccl-ep trace`: a file that Perfetto opens, from a folder of records."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from tests.uccl_ep.recorder.records import SECOND, event, record, word, worker
from uccl_ep import InvalidArgument
from uccl_ep._native import EventKind
from uccl_ep.cli import app
from uccl_ep.recorder.events import ARRIVE
from uccl_ep.recorder.record import write

runner = CliRunner()


def test_recorder_trace_writes_a_file(tmp_path: Path) -> None:
    for rank in range(2):
        arrival = event(SECOND, EventKind.ARRIVAL, 1 - rank, word(ARRIVE, 1 - rank, 3))
        write(record(rank, 2, workers=[worker(arrival, traced=True)]), tmp_path / "steps")
    out = tmp_path / "trace.json"
    done = runner.invoke(app, ["trace", str(tmp_path / "steps"), "-o", str(out)])
    assert done.exit_code == 0 and "2 rank(s)" in done.output and str(out) in done.output
    trace = json.loads(out.read_text())
    told = json.loads(runner.invoke(app, ["trace", str(tmp_path / "steps"), "-o", str(out), "--json"]).stdout)
    assert told == {"out": str(out), "events": len(trace["traceEvents"]), "ranks": [0, 1]}
    shown = [(row["pid"], row["name"]) for row in trace["traceEvents"] if row["ph"] == "X"]
    assert shown == [(0, "rows of dispatch 3 from 1"), (1, "rows of dispatch 3 from 0")]


def test_recorder_trace_refuses_an_empty_folder(tmp_path: Path) -> None:
    done = runner.invoke(app, ["trace", str(tmp_path), "-o", str(tmp_path / "t.json")])
    assert isinstance(done.exception, InvalidArgument) and not (tmp_path / "t.json").exists()

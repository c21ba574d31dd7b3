"""A story on a terminal: the root_cause's row and sentence, ranks without a record, and words that are no markup."""

from __future__ import annotations

import io

from rich.console import Console

from tests.uccl_ep.recorder.records import bereaved, record, timed_out
from uccl_ep.recorder.record import Record
from uccl_ep.tools.explain.show import show
from uccl_ep.tools.explain.story import read_story


def shown(*records: Record) -> str:
    out = io.StringIO()
    show(read_story(records), Console(file=out, width=200))
    return out.getvalue()


def test_recorder_show_has_a_row_for_every_rank() -> None:
    text = shown(bereaved(0, 2), bereaved(1, 2), bereaved(3, 2))
    assert "job 1234abcd: 4 ranks, 3 records" in text and "Rank 2 was lost." in text
    row = next(line for line in text.splitlines() if line.startswith("│ 2 "))
    assert "lost T+0.000 s" in row and "alpha" in row
    assert text.count("PeerLost") >= 3


def test_recorder_show_waits_and_missing_ranks() -> None:
    text = shown(timed_out(0, 1), record(2, host="[bold]", hostnames=["[bold]"] * 4))
    assert "rank 1 in dispatch (receive)" in text and text.count("no record") == 2 and "[bold]" in text

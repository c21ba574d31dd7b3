"""A story on a terminal: the root_cause's row and sentence, ranks without a record, and words that are no markup."""

from __future__ import annotations

import io

from rich.console import Console

from tests.uccl_ep.recorder.records import bereaved, record, timed_out
from uccl_ep.recorder.events import NOBODY
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
    assert "job 1234abcd: 4 ranks, 1 record\n" in shown(bereaved(0, 2)).replace(" \n", "\n")
    row = next(line for line in text.splitlines() if line.startswith("│ 2 "))
    assert "lost T+0.000 s" in row and "alpha" in row
    assert text.count("PeerLost") >= 3


def test_recorder_show_ends_with_what_to_do() -> None:
    records = [bereaved(0, 2), bereaved(1, 2), bereaved(3, 2, hostnames=["alpha", "b", "\x1b[2Jc", "d"])]
    lines = shown(*records).splitlines()
    place = lines.index("What to do")
    assert lines[place + 1].startswith("- Look at the last lines of rank 2") and place > lines.index(
        next(line for line in lines if line.startswith("│ 3 "))
    )
    assert all(line.startswith("- ") for line in lines[place + 1 :] if not line.startswith(" "))
    assert "\x1b" not in "".join(lines)
    out = io.StringIO()
    show(read_story(records), Console(file=out, width=200), quiet=True)
    assert "│" not in out.getvalue() and "What to do" in out.getvalue() and "Rank 2 was lost." in out.getvalue()


def test_recorder_show_waits_and_missing_ranks() -> None:
    text = shown(timed_out(0, 1), record(2, host="[bold]", hostnames=["[bold]"] * 4))
    nobody = shown(timed_out(0, NOBODY, num_ranks=1, node_of=[0], hostnames=["alpha"]))
    assert "job 1234abcd: 1 rank, 1 record" in nobody and "│ somebody in dispatch (receive)" in nobody
    assert "rank 1 in dispatch (receive)" in text and text.count("no record") == 2 and "[bold]" in text

"""tests.tour.timeline: the arrows that are drawn are those of the file, the closest together first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tour.timeline import ARROWS, draw
from tests.tour.window import uniform


def trace_of(messages: list[tuple[float, int, int]]) -> dict[str, Any]:
    """A trace with messages (when, from, to), 5 us under way each."""
    rows: list[dict[str, Any]] = []
    for rank in (0, 1, 2):
        rows.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank} host"}})
        rows.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": 2, "args": {"name": "proxy 0 ring"}})
    for number, (when, source, target) in enumerate(messages):
        rows.append({"ph": "X", "pid": source, "tid": 2, "name": "row", "ts": when, "dur": 2.0})
        rows.append({"ph": "s", "id": number, "pid": source, "tid": 2, "ts": when})
        rows.append({"ph": "f", "id": number, "pid": target, "tid": 4, "ts": when + 5.0})
    return {"traceEvents": rows}


def test_tour_timeline_draws_the_densest_messages(tmp_path: Path) -> None:
    sparse = [(1e6 * n, 2, 0) for n in range(40)]
    dense = [(7.5e6 + n, 0, 1) for n in range(ARROWS)]
    picture = tmp_path / "trace.png"
    assert draw(trace_of([*sparse, *dense]), picture) == [(0, 1)] * ARROWS
    assert not uniform(picture)
    assert draw(trace_of(sparse[:3]), picture) == [(2, 0)] * 3


@pytest.mark.parametrize("messages", [[], [(0.0, 1, 1)]])
def test_tour_timeline_of_no_message_between_ranks_is_no_picture(
    messages: list[tuple[float, int, int]], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="no message"):
        draw(trace_of(messages), tmp_path / "trace.png")
    assert not (tmp_path / "trace.png").exists()

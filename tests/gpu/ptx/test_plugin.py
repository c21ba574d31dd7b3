"""What `pytest -p tests.gpu.ptx.plugin` plays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.gpu.ptx.plugin import pytest_collection_modifyitems

pytestmark = [pytest.mark.compile]


def _left(most: int, cases: list[str]) -> tuple[list[str], list[str]]:
    """What plays, and what was left out."""
    out: list[Any] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: out.extend(items))
    config = SimpleNamespace(getoption={"--ptx-most": most}.__getitem__, hook=hook)
    items: list[Any] = [SimpleNamespace(nodeid=case) for case in cases]
    pytest_collection_modifyitems(config, items)  # type: ignore[arg-type]
    return [item.nodeid for item in items], [item.nodeid for item in out]


def test_ptx_plays_a_sample_of_each_body() -> None:
    rows, graph = [f"a.py::test_rows[{n}-fake]" for n in range(9)], ["a.py::test_graph[fake]"]
    played, left_out = _left(3, rows + graph)
    assert len(played) == 4 and graph[0] in played and set(played) | set(left_out) == {*rows, *graph}
    assert played == [case for case in rows + graph if case in played]  # in their order
    assert _left(3, rows + graph) == (played, left_out)
    assert _left(0, rows + graph) == (rows + graph, [])

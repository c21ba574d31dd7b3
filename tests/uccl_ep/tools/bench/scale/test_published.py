"""The published figures as they stand on upstream's pages, and which of them constants were fitted on."""

from __future__ import annotations

from uccl_ep.tools.bench.scale.platforms import PLATFORMS
from uccl_ep.tools.bench.scale.published import HARNESS, PAPER, ROWS, TABLE, THIRD, Row, is_fitted


def test_published_rows_are_whole() -> None:
    keys = [(r.platform, r.mode, r.ranks, r.phase, r.row_format, r.of, r.batched) for r in ROWS]
    assert len(set(keys)) == len(keys)
    assert all((row.us > 0) != (row.gb_per_s > 0) for row in ROWS)
    table = [row for row in ROWS if row.of == TABLE]
    count = {name: sum(row.platform == name for row in table) for name in PLATFORMS}
    assert count == {
        "p5en": 14, "p6-b200": 14, "mi300x-cx7": 18, "mi355x-pollara": 12, "mi300x-thor2": 6, "gh200-cxi": 15,
        "p6-b200-aws": 0,
    }  # fmt: skip


def test_published_some_figures() -> None:
    def found(platform: str, mode: str, ranks: int, phase: str) -> Row:
        return next(r for r in ROWS if (r.platform, r.mode, r.ranks, r.phase) == (platform, mode, ranks, phase))

    assert found("p5en", "throughput", 16, "combine").us == 6379
    assert found("p6-b200", "low-latency", 24, "dispatch").us == 448
    assert found("mi300x-cx7", "throughput", 64, "combine").gb_per_s == 51


def test_published_nothing_beyond_two_nodes_and_nothing_of_others_is_fitted() -> None:
    for row in ROWS:
        per_node = PLATFORMS[row.platform].ranks_per_node
        if is_fitted(row, per_node):
            assert row.of in (TABLE, HARNESS) and row.ranks <= 2 * per_node
    predicted = [row for row in ROWS if not is_fitted(row, PLATFORMS[row.platform].ranks_per_node)]
    assert len(predicted) > len(ROWS) / 2
    assert {PAPER, THIRD, TABLE} <= {row.of for row in predicted}

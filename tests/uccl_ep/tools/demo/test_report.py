"""The report: sums by path, the verdict, tables and JSON, on made-up results."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from tests.uccl_ep.tools.demo.worlds import result_of, small
from uccl_ep.tools.demo.report import BETWEEN_NODES, INSIDE_NODE, OWN_RANK, Report, human_bytes, show
from uccl_ep.tools.demo.result import RunResult


def made_up(difference: float = 0.0, ranks: int = 4, ranks_per_node: int = 2) -> Report:
    options = small(ranks=ranks, ranks_per_node=ranks_per_node, experts=8 * ranks, steps=3)
    losses = [5.5, 3.25, 2.125]
    results = [result_of(options, rank, losses) for rank in range(ranks)]
    theirs = [*losses[:-1], losses[-1] + difference]
    return Report(options, results, RunResult(theirs, theirs[-1] + 0.5, 4.0, 4000))


def test_rows_and_bytes_add_up_by_path() -> None:
    paths = {path.path: path for path in made_up().paths()}
    assert list(paths) == [OWN_RANK, INSIDE_NODE, BETWEEN_NODES]
    assert paths[OWN_RANK].rows == 0 + 11 + 22 + 33
    assert paths[INSIDE_NODE].rows == 1 + 10 + 23 + 32
    assert paths[BETWEEN_NODES].rows == (2 + 3) + (12 + 13) + (20 + 21) + (30 + 31)
    assert paths[BETWEEN_NODES].bytes == 256 * paths[BETWEEN_NODES].rows
    assert (paths[INSIDE_NODE].via, paths[BETWEEN_NODES].via) == ("load/store", "tcp")
    assert made_up().proxy("write_bytes") == 4096


def test_matrix_has_senders_in_rows() -> None:
    matrix = made_up().matrix("bytes_sent")
    assert matrix[1][3] == 13 * 256
    assert matrix[3][1] == 31 * 256


@pytest.mark.parametrize("difference", [0.0, 9.9e-4, -9.9e-4])
def test_losses_within_the_tolerance_are_fine(difference: float) -> None:
    assert made_up(difference).problems() == []


@pytest.mark.parametrize("difference", [1.1e-3, -1.1e-3, float("nan")])
def test_losses_apart_are_a_problem_with_the_first_unequal_step(difference: float) -> None:
    problems = made_up(difference).problems()
    assert len(problems) == 2  # training and validation
    assert "final training losses differ" in problems[0]
    assert "step 3" in problems[0]


def test_silent_proxies_are_a_problem_only_between_nodes() -> None:
    for ranks_per_node, count in ((2, 1), (4, 0)):
        report = made_up(ranks_per_node=ranks_per_node)
        for result in report.ranks:
            result.stats["proxy"]["write_bytes"] = 0
        assert len(report.problems()) == count
        assert all("no byte went through the proxies" in problem for problem in report.problems())


def rendered(report: Report) -> str:
    stream = io.StringIO()
    show(report, Console(file=stream, width=80))
    return stream.getvalue()


def test_tables_show_both_losses_speed_paths_and_waits() -> None:
    text = rendered(made_up(5e-4))
    for word in ("2.125000", "2.125500", "5.0e-04", "EP, 4 ranks", "one process", "between nodes", "tcp", "load/store"):
        assert word in text
    assert "4.0 KiB" in text  # through the proxies
    assert "192" in text and "96" in text  # tokens/s: 3 steps of 128 tokens in 2 s and in 4 s
    assert "3.00" in text  # rank 3 waits (3 + 2 * 3) ms for rank 3 in 3 steps
    assert "agree within 1e-03" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_problem_is_printed_in_place_of_the_agreement() -> None:
    text = rendered(made_up(0.1))
    assert "problem: the final training losses differ by 1.00e-01" in text
    assert "agree within" not in text


def test_one_rank_and_many_ranks_render() -> None:
    assert "EP, 1 ranks" in rendered(made_up(ranks=1, ranks_per_node=1))
    assert "rank 7" in rendered(made_up(ranks=8))


def test_json_holds_what_the_tables_show() -> None:
    found = json.loads(json.dumps(made_up(5e-4).as_json()))
    assert found["expert_parallel"]["loss"] == 2.125
    assert found["one_process"]["loss"] == 2.1255
    assert found["training_difference"] == pytest.approx(5e-4)
    assert found["tolerance"] == 1e-3
    assert found["options"]["ranks_per_node"] == 2
    assert found["wait_ns"][1][2] == 5_000_000
    assert found["problems"] == []
    assert len(found["stats"]) == 4


def test_bytes_are_readable() -> None:
    assert [human_bytes(n) for n in (0, 1023, 1024, 1536 * 1024, 3 << 30, 5 << 40)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 MiB", "3.0 GiB", "5.0 TiB",
    ]  # fmt: skip

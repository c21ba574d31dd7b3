"""Options: what is refused and with which words, what follows from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from uccl_ep.errors import InvalidArgument
from uccl_ep.tools.demo.options import DemoOptions


def test_defaults_are_two_nodes_of_two_over_tcp() -> None:
    options = DemoOptions()
    options.check()
    assert (options.ranks, options.nodes, options.transport) == (4, 2, "tcp")
    assert options.environment()["UCCL_EP_RANKS_PER_NODE"] == "2"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": 0}, ["--steps", "0", "at least 1"]),
        ({"ranks_per_node": 0}, ["--ranks-per-node", "at least 1"]),
        ({"seed": -1}, ["--seed", "-1"]),
        ({"experts": 6}, ["--experts", "6", "multiple of --ranks (4)", "8"]),
        ({"topk": 17}, ["--topk", "17", "--experts (16)"]),
        ({"hidden": 100}, ["--hidden", "100", "32"]),
        ({"hidden": 192, "fp8": True}, ["--hidden", "192", "128"]),
        ({"gate": "tanh"}, ["--gate", "tanh", "sigmoid, softmax"]),
        ({"proxy": "none"}, ["--proxy", "thread, process"]),
        ({"transport": "loopback"}, ["--transport", "loopback", "tcp"]),
    ],
)
def test_a_refusal_names_option_value_and_what_is_allowed(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        DemoOptions(**changes).check()
    for word in words:
        assert word in str(caught.value)


def test_uneven_last_node_counts_as_a_node() -> None:
    options = DemoOptions(ranks=5, experts=15, ranks_per_node=2)
    options.check()
    assert options.nodes == 3
    assert [options.node_of(rank) for rank in range(5)] == [0, 0, 1, 1, 2]


def test_options_survive_the_way_to_a_rank(tmp_path: Path) -> None:
    options = DemoOptions(fp8=True, learning_rate=3e-4, gate="softmax")
    options.save(tmp_path / "o.json")
    assert DemoOptions.load(tmp_path / "o.json") == options


def test_kill_names_a_rank_and_a_step() -> None:
    options = DemoOptions(kill="2@step40")
    options.check()
    assert options.doom == (2, 39) and options.survivors == [0, 1, 3]
    assert DemoOptions().doom is None and DemoOptions().survivors == [0, 1, 2, 3]


@pytest.mark.parametrize("bad", ["2", "4@step1", "1@step0", "1@step61", "x@step2", "1@2", "-1@step2", "1@step2 "])
def test_kill_is_refused_with_an_example(bad: str) -> None:
    with pytest.raises(InvalidArgument, match=r"--kill is .*RANK@stepN.*for example 1@step40"):
        DemoOptions(kill=bad).check()
    with pytest.raises(InvalidArgument, match="--kill"):
        DemoOptions(ranks=1, experts=16, kill="0@step2").check()

"""vLLM's server on CPUs, where its wheel is installed; and that what judges it can find fault."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.integrations.installed import python_or_skip
from tests.integrations.launch import launch
from tests.integrations.report import table
from tests.integrations.serving import client, driver
from tests.integrations.serving.__main__ import NAME
from tests.integrations.serving.client import Speed
from tests.integrations.serving.compare import Served, different_tokens, largest_difference, ranks_named, requests
from tests.integrations.serving.model import TEXT, letters
from tests.integrations.serving.server import Answer, ServerFailed
from tests.integrations.versions import integrators

LINE = "INFO 11-26 vllm_plugin.py: Using uccl_ep.Buffer for experts: rank {} of 4, 2 of 8 experts here."


@pytest.mark.slow
@pytest.mark.timeout(1900)  # four servers, one after another, of up to four ranks that import vLLM
def test_serving_by_vllm_is_that_of_one_process() -> None:
    (server,) = [one for one in integrators() if one.name == NAME]
    told = launch(server, python_or_skip(server, make=False))
    assert len(told.rows) == 6 and all(row.passed for row in told.rows), "\n" + table(row.cells() for row in told.rows)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_serving_asks_every_rank_alone_and_together(ranks: int) -> None:
    alone, together = requests(ranks)
    assert {request.rank for request in alone} == {request.rank for request in together} == set(range(ranks))
    assert len({request.prompt for request in alone + together}) == len(alone + together)
    for request in alone + together:
        assert request.prompt in TEXT * 2 and len(request.prompt) + request.tokens < 256
    assert [r.prompt for r in alone + together] == [r.prompt for group in requests(1) for r in group]


def test_serving_finds_other_tokens_and_bits() -> None:
    one = [Answer([1, 2, 3], [-0.5, -0.25, -1.0], "abc"), Answer([4], [-2.0], "d")]
    other = [Answer([1, 9, 8], [-0.5, -0.25, -1.0], "axy"), Answer([4], [-2.5], "d")]
    assert different_tokens(one, one) == 0 and different_tokens(one, other) == 2
    assert largest_difference(one, one) == 0.0 and largest_difference(one, other) == 0.5


def test_serving_finds_a_rank_that_does_not_name_us() -> None:
    assert ranks_named([LINE.format(0), "Using allgather_reducescatter all2all manager.", LINE.format(3)]) == {0, 3}


def test_serving_measures_by_vllms_client() -> None:
    result = {
        "failed": 0, "completed": client.PROMPTS, "total_output_tokens": client.PROMPTS * client.TOKENS,
        "output_throughput": 250.0, "mean_ttft_ms": 90.0, "mean_tpot_ms": 12.5,
    }  # fmt: skip
    assert Speed.of(result) == Speed(250.0, 90.0, 12.5, client.PROMPTS * client.TOKENS)
    for bad in ({"failed": 1}, {"completed": 3}, {"total_output_tokens": 5}):
        with pytest.raises(ServerFailed, match="it reports"):
            Speed.of(result | bad)
    given = client.arguments(Path("folder"), 81)
    assert client.PROMPT_TOKENS + client.TOKENS < 256 and given[given.index("--base-url") + 1].endswith(":81")


@pytest.mark.timeout(60)
def test_serving_says_why_the_client_has_ended(tmp_path: Path) -> None:
    """This Python has no vLLM."""
    with client.Client(Path(sys.executable), tmp_path, tmp_path) as one, pytest.raises(ServerFailed, match="vllm"):
        one.measure(81)


def test_serving_table_has_a_line_for_each_server() -> None:
    answers, speed = [Answer([1, 2], [-0.5, -0.25], "ab")], Speed(250.0, 90.0, 12.5, 10)
    every = {
        "one process": Served("one process", 1, answers, speed=speed),
        "uccl_ep, 4 ranks": Served("uccl_ep, 4 ranks", 4, answers, sent=2048, speed=speed, bench_sent=4000),
    }
    header, one, ours = driver.table(every)
    assert header.startswith("server ") and "–" in one
    assert ours.split() == ["uccl_ep", "4", "0", "0", "2,048", "250.0", "90", "12.5", "400"]


def test_serving_tokenizer_has_each_byte_once() -> None:
    assert len(set(letters())) == 256 and letters()[65] == "A" and letters()[32] == chr(288)

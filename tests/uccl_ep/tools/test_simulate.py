"""`uccl-ep simulate`: seeds dealt out and added up, replay, help; and its oracle against uccl_ep.reference.calls."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from uccl_ep import _simulation, cli, reference
from uccl_ep.errors import InvalidArgument
from uccl_ep.tools import simulate as sim

runner = CliRunner()
WIDE = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}


def tensor(data: bytes, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype).view(*shape) if data else torch.empty(shape, dtype=dtype)


def node_sizes(node_of: list[int]) -> list[int]:
    return [node_of.count(node) for node in range(max(node_of) + 1)]


def cases(low_latency: bool, wanted: int) -> list[tuple[int, int, dict[str, Any]]]:
    """(seed, round, answers) of small cases whose nodes are contiguous, as the reference has them."""
    found = []
    for seed in range(1, 400):
        got = _simulation.answers(seed, seed % 3)
        nodes = got["node_of"]
        if got["low_latency"] == low_latency and nodes == sorted(nodes) and len(nodes) <= 8:
            found.append((seed, seed % 3, got))
        if len(found) == wanted:
            break
    return found


def test_throughput_oracle_is_the_references() -> None:
    rows_seen = 0
    for seed, round_, got in cases(False, 12):
        ranks, hidden, back = got["ranks"], got["hidden"], got["combine_hidden"]
        n = len(ranks)
        inputs = []
        for one in ranks:
            shape = (one["num_tokens"], one["topk"])
            ids = tensor(one["topk_idx"], torch.int64, *shape)
            in_rank = reference.dispatch_layout(ids, got["num_experts"], n).is_token_in_rank
            x = tensor(one["x"], torch.bfloat16, one["num_tokens"], hidden)
            weights = tensor(one["topk_weights"], torch.float32, *shape)
            inputs.append(reference.ThroughputInput(x, in_rank, ids, weights))
        received = reference.throughput_dispatch(inputs, got["num_experts"])
        y, y_weights, bias = [], [], []
        for one, r in zip(ranks, received, strict=True):
            pairs = torch.tensor(one["rows"], dtype=torch.int32).view(-1, 2)
            assert torch.equal(pairs[:, 0], r.src_rank) and torch.equal(pairs[:, 1], r.src_token), (seed, round_)
            rows_seen += pairs.shape[0]
            y.append(tensor(one["y"], torch.bfloat16, pairs.shape[0], back))
            y_weights.append(tensor(one["y_weights"], torch.float32, pairs.shape[0], got["combine_topk"]))
            given = [tensor(one[f"bias{b}"], torch.bfloat16, one["num_tokens"], back) for b in range(got["biases"])]
            bias.append(tuple([*given, None, None][:2]))
        out, out_weights = reference.throughput_combine(y, received, y_weights, bias, node_sizes(got["node_of"]))
        assert out_weights is not None
        for one, x, w in zip(ranks, out, out_weights, strict=True):
            expected = tensor(one["combined"], torch.bfloat16, one["num_tokens"], back)
            assert torch.equal(x.view(torch.int16), expected.view(torch.int16)), (seed, round_)
            assert torch.equal(w, tensor(one["combined_weights"], torch.float32, *w.shape)), (seed, round_)
    assert rows_seen > 100


def test_low_latency_oracle_is_the_references() -> None:
    rows_seen = 0
    for seed, round_, got in cases(True, 12):
        ranks, hidden, experts = got["ranks"], got["hidden"], got["num_experts"]
        local = experts // len(ranks)
        ids = [tensor(one["topk_idx"], torch.int64, one["num_tokens"], one["topk"]) for one in ranks]
        weights = [tensor(one["topk_weights"], torch.float32, one["num_tokens"], one["topk"]) for one in ranks]
        x = [tensor(one["x"], torch.bfloat16, one["num_tokens"], hidden) for one in ranks]
        received = reference.low_latency_dispatch(x, ids, got["max_tokens"], experts)
        y = []
        for rank, (one, r) in enumerate(zip(ranks, received, strict=True)):
            rows = torch.tensor(one["rows"], dtype=torch.int64).view(-1, 3)
            back = tensor(one["y"], torch.bfloat16, rows.shape[0], hidden)
            filled = torch.zeros(local, r.src_info.shape[1], hidden, dtype=torch.bfloat16)
            for e in range(local):
                mine = rows[:, 0] == rank * local + e
                assert int(mine.sum()) == int(r.recv_count[e]), (seed, round_)
                assert torch.equal(rows[mine, 2].int(), r.src_info[e, : r.recv_count[e]]), (seed, round_)
                counts = torch.bincount(rows[mine, 1], minlength=len(ranks))
                assert torch.equal(counts, r.layout_range[e] & 0xFFFFFFFF), (seed, round_)
                filled[e, : r.recv_count[e]] = back[mine]
            rows_seen += rows.shape[0]
            y.append(filled)
        for one, out in zip(ranks, reference.low_latency_combine(y, ids, weights, received), strict=True):
            expected = tensor(one["combined"], torch.bfloat16, one["num_tokens"], hidden)
            assert torch.equal(out.view(torch.int16), expected.view(torch.int16)), (seed, round_)
    assert rows_seen > 100


def test_totals_do_not_depend_on_threads() -> None:
    one, two = (sim.simulate(sim.SimulateOptions(seeds=100, first=7000, jobs=jobs)) for jobs in (1, 2))
    one.seconds = two.seconds = 0.0
    assert one == two
    assert one.seeds == 100 and one.failures == []
    assert one.rows > 1000 and one.overtakes > 100 and one.faults > 20 and one.most_ranks <= 64


def test_minutes_end_a_run_without_end() -> None:
    began = time.monotonic()
    result = sim.simulate(sim.SimulateOptions(seeds=None, minutes=0.02))
    assert 0 < result.seeds < 100_000 and time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"profile": "tcp"}, "--profile must be any, rc or srd; got 'tcp'."),
        ({"jobs": 0}, "--jobs must be 1 or more; got 0."),
        ({"seeds": 0}, "--seeds must be 1 or more; got 0."),
        ({"first": -1}, "--first must be 0 or more; got -1."),
        (
            {"ranks": 12},
            "--ranks must be 2 to 4096 and --nodes so many that each has 1 to 64 of them; got '12 with --nodes 0'.",
        ),
        ({"ranks": 130, "nodes": 2}, "got '130 with --nodes 2'."),
        ({"minutes": 0.0}, "--minutes must be more than 0; got 0.0."),
    ],
)
def test_refusals_name_the_option(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(words)):
        sim.simulate(sim.SimulateOptions(**change))


def test_failing_seeds_are_shown_and_end_with_status_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Totals(sim.SimulationResult):
        pass

    def fail(first: int, count: int, *_: object) -> Totals:
        return Totals(seeds=count, rows=9, deepest=first, failures=[(first, "row 3: payload differs")])

    monkeypatch.setattr(_simulation, "simulate", fail)
    monkeypatch.setattr(_simulation, "explain", lambda seed, *_: f"the short form of {seed}")
    file = tmp_path / "totals.json"
    with open(tmp_path / "shown", "w+") as shown:
        options = sim.SimulateOptions(seeds=10_000, first=40, profile="srd", ranks=12, nodes=3)
        assert sim.run_simulate(options, file, Console(file=shown, width=200)) == 1
        shown.seek(0)
        text = shown.read()
    for words in (
        "seed 40 fails: row 3: payload differs",
        "replay: uccl-ep simulate --seed 40 --profile srd --ranks 12 --nodes 3",
        "the short form of 40",
        "failing seeds",
    ):
        assert words in text
    written = json.loads(file.read_text())
    assert len(written["failures"]) == sim.MOST_FAILURES  # and not all 10,000 seeds
    assert written["failures"][0]["replay"] == "uccl-ep simulate --seed 40 --profile srd --ranks 12 --nodes 3"
    assert written["totals"]["deepest"] == 40 + 32 * (sim.MOST_FAILURES - 1)


def test_an_error_in_a_thread_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> object:
        raise MemoryError("no more")

    monkeypatch.setattr(_simulation, "simulate", fail)
    with pytest.raises(MemoryError, match="no more"):
        sim.simulate(sim.SimulateOptions(seeds=10, jobs=2))


def test_the_command_runs_and_prints_totals(tmp_path: Path) -> None:
    file = tmp_path / "totals.json"
    result = runner.invoke(cli.app, ["simulate", "--seeds", "40", "--jobs", "2", "--out", str(file)], env=WIDE)
    assert result.exit_code == 0, result.output
    for words in ("rows checked", "deepest reorder", "faults injected", "virtual time", "failing seeds"):
        assert words in result.output
    assert json.loads(file.read_text())["totals"]["seeds"] == 40
    result = runner.invoke(cli.app, ["simulate", "--seeds", "40", "--fresh", "--json"], env=WIDE)
    assert result.exit_code == 0 and json.loads(result.stdout)["totals"]["seeds"] == 40, "nothing but the object"


def test_one_seed_is_told_in_words_only() -> None:
    result = runner.invoke(cli.app, ["simulate", "--seed", "7", "--json"])
    assert isinstance(result.exception, InvalidArgument) and "in words" in str(result.exception)


def test_where_the_module_is_missing_the_command_says_what_to_do() -> None:
    """As in a user's `pip install`."""
    code = "import sys; sys.modules['uccl_ep._simulation'] = None; from uccl_ep.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "simulate", "--seeds", "1"],
        env={**os.environ, **WIDE},
        capture_output=True,
        text=True,
    )
    assert done.returncode == cli.STATUS_ERROR and done.stdout == ""
    assert "in a checkout and no wheel holds" in done.stderr and "`make setup`" in done.stderr
    assert "Traceback" not in done.stderr


def test_one_seed_is_described_and_repeated() -> None:
    result = runner.invoke(cli.app, ["simulate", "--seed", "4711"], env=WIDE)
    assert result.exit_code == 0, result.output
    assert "seed 4711: " in result.output and "trace" in result.output and "passes" in result.output


def test_help_teaches() -> None:
    result = runner.invoke(cli.app, ["simulate", "--help"], env=WIDE)
    assert result.exit_code == 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", result.output)
    for words in ("--seeds", "--first", "--minutes", "--profile", "--json", "--seed", "virtual time", "bit", "status 0",
                  "uccl-ep simulate --seeds 20000"):  # fmt: skip
        assert words in text


@pytest.mark.slow
@pytest.mark.timeout(400)  # a fixed set and fresh seeds within five minutes together
def test_a_fixed_set_and_fresh_seeds() -> None:
    fixed = sim.simulate(sim.SimulateOptions(seeds=10_000, first=10_000_000, jobs=2, minutes=2.5))
    assert fixed.failures == [], fixed.failures
    first = time.time_ns() // 1_000_000 % (1 << 40)
    print(f"\nfresh seeds from {first}", file=sys.stderr)
    fresh = sim.simulate(sim.SimulateOptions(seeds=None, first=first, jobs=2, minutes=2.0))
    assert fresh.failures == [], [sim.replay_command(seed, sim.SimulateOptions()) for seed, _ in fresh.failures]
    print(sim.as_json(sim.SimulateOptions(), fresh), file=sys.stderr)
    assert fixed.seeds + fresh.seeds > 2000

"""The whole demo: order and verdict with made-up ranks, and (slow) the real command through real proxies."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from tests.uccl_ep.tools.demo.worlds import World, on_ranks, small, text
from uccl_ep.errors import InvalidArgument
from uccl_ep.tools.demo import corpus, launch
from uccl_ep.tools.demo.options import DemoOptions
from uccl_ep.tools.demo.progress import TrainingProgress
from uccl_ep.tools.demo.result import RunResult, train
from uccl_ep.tools.demo.run import check_out, run_demo, run_one_process


@pytest.fixture
def ranks_as_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher's place is taken by threads over the plain buffer; the text is short."""

    def launch_threads(options: DemoOptions, show: bool) -> list[RunResult]:
        world = World(options)

        def rank_work(rank: int) -> RunResult:
            buffer = world.buffer(rank)
            result = train(world.trainer(rank, buffer, text()), options.steps, TrainingProgress("", 1, 1, None))
            result.stats = buffer.stats()
            return result

        return on_ranks(options.ranks, rank_work)

    monkeypatch.setattr(launch, "launch", launch_threads)
    monkeypatch.setattr(corpus, "load_corpus", text)


def run(options: DemoOptions, out: Path, as_json: bool = False, quiet: bool = False) -> tuple[int, str]:
    stream = io.StringIO()
    return run_demo(options, out, as_json, Console(file=stream, width=100), quiet), stream.getvalue()


@pytest.mark.usefixtures("ranks_as_threads")
def test_status_0_both_losses_and_a_picture(tmp_path: Path) -> None:
    status, output = run(small(), tmp_path / "demo.png")
    assert status == 0
    assert "bf16 rows, transport tcp, proxy thread" in output
    losses = re.search(r"final loss\D+([\d.]+)\D+([\d.]+)\D", output)
    assert losses is not None and losses[1] == losses[2]
    assert "between nodes" in output
    assert (tmp_path / "demo.png").stat().st_size > 10_000


@pytest.mark.usefixtures("ranks_as_threads")
def test_without_matplotlib_the_demo_runs_and_says_what_a_picture_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uccl_ep.tools.figures.available", lambda: False)
    status, output = run(small(), tmp_path / "demo.png")
    assert status == 0 and "No picture: pictures need matplotlib: pip install 'matplotlib>=" in output
    assert not (tmp_path / "demo.png").exists()


@pytest.mark.usefixtures("ranks_as_threads")
def test_quiet_shows_the_comparison_and_no_progress(tmp_path: Path) -> None:
    status, output = run(small(), tmp_path / "demo.png", quiet=True)
    assert status == 0 and "final loss" in output and "Picture: " in output
    assert "Training a byte-level MoE" not in output and "one process: step" not in output
    assert "one process: step" in run(small(), tmp_path / "demo.png")[1]


@pytest.mark.usefixtures("ranks_as_threads")
def test_json_is_all_that_is_printed(tmp_path: Path) -> None:
    status, output = run(small(fp8=True), tmp_path / "demo.png", as_json=True)
    found = json.loads(output)
    assert status == 0
    assert found["training_difference"] == 0.0
    assert found["options"]["fp8"] is True


@pytest.mark.usefixtures("ranks_as_threads")
def test_status_1_and_a_reason_when_the_losses_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uccl_ep.tools.demo.one_process.add_by_node", lambda parts, tokens, num_tokens, options: (
        parts[0].new_zeros((num_tokens, parts[0].shape[1]))
    ))  # fmt: skip
    status, output = run(small(steps=12, learning_rate=2e-2), tmp_path / "demo.png")
    assert status == 1
    assert "problem: the final training losses differ" in output


def test_one_process_needs_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "load_corpus", text)
    result = run_one_process(small(steps=2), None)
    assert len(result.losses) == 2
    assert result.stats == {}


def test_a_picture_that_cannot_be_written_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="does not exist"):
        check_out(tmp_path / "missing" / "x.png")
    with pytest.raises(InvalidArgument, match=r"\.png, \.pdf or \.svg"):
        check_out(tmp_path / "x.gif")
    check_out(tmp_path / "x.PNG")


COMMAND = [sys.executable, "-m", "uccl_ep", "demo", "--hidden", "128"]


def real(tmp_path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "--out", str(tmp_path / "demo.png"), *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=170, cwd=tmp_path
    )


@pytest.mark.slow
@pytest.mark.timeout(180)  # four processes load torch on two cores
def test_the_real_demo_agrees_through_real_proxies(tmp_path: Path) -> None:
    ended = real(tmp_path, "--steps", "12")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    losses = re.search(r"final loss\D+([\d.]+)\D+([\d.]+)\D", ended.stdout)
    assert losses is not None
    assert abs(float(losses[1]) - float(losses[2])) <= 1e-3
    assert float(losses[1]) < 5.0  # it learned
    through = re.search(r"through the proxies\s*│\s*([\d,]+) commands\s*│\s*([\d,]+) writes", ended.stdout)
    assert through is not None and int(through[2].replace(",", "")) > 0
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "arguments",
    [
        ("--fp8",),
        ("--proxy", "process"),
        ("--transport", "shared_memory", "--gate", "softmax"),
        ("--ranks", "3", "--experts", "9", "--ranks-per-node", "1"),
        ("--ranks", "2", "--ranks-per-node", "2"),
    ],
)
def test_every_way_through_the_real_demo_agrees_to_the_bit(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    ended = real(tmp_path, "--json", "--steps", "6", *arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(ended.stdout)
    assert found["expert_parallel"]["losses"] == found["one_process"]["losses"]
    if found["options"]["ranks"] > found["options"]["ranks_per_node"]:
        assert sum(stats["proxy"]["write_bytes"] for stats in found["stats"]) > 0


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_failing_rank_is_one_line_and_status_2(tmp_path: Path) -> None:
    ended = real(tmp_path, "--steps", "3", UCCL_EP_RING_CAPACITY="1000")  # not a power of two: refused in every rank
    assert ended.returncode == 2
    assert re.search(r"uccl-ep: rank \d: InvalidArgument: .*RING_CAPACITY", ended.stderr)
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_ctrl_c_ends_every_process(tmp_path: Path) -> None:
    command = [*COMMAND, "--steps", "5000", "--out", str(tmp_path / "demo.png")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True
    )
    try:
        children: list[psutil.Process] = []
        deadline = time.monotonic() + 90
        while len(children) < 4 and time.monotonic() < deadline:
            children = psutil.Process(process.pid).children(recursive=True)
            time.sleep(0.1)
        assert len(children) >= 4, process.poll()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
        _, error = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "stopped by SIGINT" in error
        assert "Traceback" not in error
        assert psutil.wait_procs(children, timeout=10)[1] == []
    finally:
        process.kill()
